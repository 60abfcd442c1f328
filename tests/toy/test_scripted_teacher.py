"""The scripted teacher over a real index: what it knows, what it says when a fact is missing, how it errs."""

import asyncio
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from deepsearch_rl.agent.config import ScriptedConfig
from deepsearch_rl.agent.protocols import FunctionCalling, SearchTags
from deepsearch_rl.agent.synthesize import SynthesizeConfig
from deepsearch_rl.chat.chat_messages import format_passages
from deepsearch_rl.core.answers import INSUFFICIENT, SUCCESS_F1, extract_answer, f1
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Chunk, Message, Question
from deepsearch_rl.search.build import IndexSection, build_index
from deepsearch_rl.search.searcher import Searcher, open_index
from deepsearch_rl.toy.grammar import IN_DOMAIN, find_entities
from deepsearch_rl.toy.scripted_teacher import (
    ScriptedTeacher,
    read_plan,
)
from tests.worlds import World, smoke, world

__all__ = ["smoke", "world"]
FAULTLESS = ScriptedConfig(
    partial_query=0, misspelt_query=0, wrong_relation=0, misread=0, max_facts=3, gives_up=1
)


@pytest.fixture(scope="module")
def questions(world: World) -> list[Question]:
    return list(read_jsonl(world.questions, Question))


@pytest.fixture(scope="module")
def searcher(world: World) -> Searcher:
    return open_index(world.index, world.chunks, "bm25")


def scripted_teacher(
    question: Question, config: ScriptedConfig = FAULTLESS, seed: int = 0
) -> ScriptedTeacher:
    return ScriptedTeacher(question, 0, config, seed, FunctionCalling("Search."))


def teach(
    questions: Iterable[Question],
    searcher: Searcher,
    config: ScriptedConfig = FAULTLESS,
    seed: int = 0,
) -> list[list[str]]:
    """Per question what the teacher read and wrote in turn: passages and queries, the answer last."""

    async def converse(question: Question) -> list[str]:
        teacher, said = scripted_teacher(question, config, seed), [question.question]
        while True:
            turn = (await teacher.reply([Message(role="tool", content=said[-1])], 64)).turn
            if not turn.tool_calls:
                return [*said, turn.content]
            said.append(json.loads(turn.tool_calls[0].arguments)["query"])
            said.append(
                format_passages([hit.chunk for hit in searcher.find_hits([said[-1]], 3)[0]])
            )

    return [asyncio.run(converse(question)) for question in questions]


def says_second_word(question: Question) -> bool:
    facts = " ".join(evidence.fact for evidence in question.metadata.evidence_list or ())
    return any(relation.second in facts for relation in IN_DOMAIN.relations.values())


def hops(question: Question) -> int:
    return (question.metadata.model_extra or {})["hops"]


def test_a_faultless_teacher_answers_every_question_but_those_in_second_words(
    questions: list[Question], searcher: Searcher
):
    for question, said in zip(questions, teach(questions, searcher), strict=True):
        right = f1(extract_answer(said[-1]), question.golden_answers) == 1
        assert right != says_second_word(question)
    assert 0 < sum(map(says_second_word, questions)) < len(questions) / 2


def test_after_its_most_facts_the_teacher_answers_with_the_last(
    questions: list[Question], searcher: Searcher
):
    short = FAULTLESS.model_copy(update={"max_facts": 2})
    known = [q for q in questions if not says_second_word(q) and q.metadata.question_type != "null"]
    for question, said in zip(known, teach(known, searcher, short), strict=True):
        right = f1(extract_answer(said[-1]), question.golden_answers) == 1
        assert right == (hops(question) <= 2)
    assert any(hops(question) == 3 for question in known)


def test_a_teacher_that_gives_up_now_and_then_answers_some_of_the_long_questions(
    questions: list[Question], searcher: Searcher
):
    half = FAULTLESS.model_copy(update={"max_facts": 2, "gives_up": 0.5})
    known = [
        q for q in questions if not says_second_word(q) and q.metadata.question_type == "3_hop"
    ]
    answers = [extract_answer(said[-1]) for said in teach(known, searcher, half)]
    right = sum(
        f1(answer, question.golden_answers) == 1
        for question, answer in zip(known, answers, strict=True)
    )
    assert 0 < right < len(known)


def test_every_turn_notes_the_fact_that_was_found_and_what_is_left_of_the_plan(
    questions: list[Question], searcher: Searcher
):
    async def notes(question: Question) -> list[str]:
        teacher, seen, passages = scripted_teacher(question), [], question.question
        while True:
            turn = (await teacher.reply([Message(role="tool", content=passages)], 64)).turn
            seen.append(turn.content)
            if not turn.tool_calls:
                return seen
            query = json.loads(turn.tool_calls[0].arguments)["query"]
            passages = format_passages([hit.chunk for hit in searcher.find_hits([query], 3)[0]])

    for question in [question for question in questions if not says_second_word(question)][:30]:
        first, *others = asyncio.run(notes(question))
        plan = (question.metadata.model_extra or {})["plan"]
        assert first == f"need {', '.join(plan)}"
        if question.metadata.question_type == "null":
            assert re.match(r"found \w+ nothing\n", others[-1])
        else:
            assert [note.split()[:2] for note in others] == [["found", noun] for noun in plan]
            for place, note in enumerate(others[:-1], 1):
                assert note.splitlines()[1] == f"need {', '.join(plan[place:])}"
        assert others[-1].endswith(f"<answer> {question.golden_answers[0]}</answer>")


def test_no_query_names_an_entity_that_was_not_read_before(
    questions: list[Question], searcher: Searcher
):
    for said in teach(questions, searcher):
        queries = range(1, len(said) - 1, 2)
        assert queries
        for place in queries:
            names = find_entities(said[place])
            assert names
            assert all(name in " ".join(said[:place]) for name in names)


def test_without_the_gold_passage_the_information_is_insufficient(
    questions: list[Question], world: World, tmp_path: Path, smoke: Profile
):
    asked = [question for question in questions if question.metadata.question_type == "2_hop"][:15]
    facts = {
        evidence.fact
        for question in asked
        for evidence in (question.metadata.evidence_list or ())[-1:]
    }
    kept = [
        chunk
        for chunk in read_jsonl(world.chunks, Chunk)
        if not any(fact in chunk.contents for fact in facts)
    ]
    write_jsonl(tmp_path / "chunks.jsonl", kept)
    section = smoke.section("index", IndexSection).of("world")
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", section, 0)
    without = open_index(tmp_path / "index", tmp_path / "chunks.jsonl", "bm25")
    assert {extract_answer(said[-1]) for said in teach(asked, without)} == {INSUFFICIENT}


def test_neither_the_gold_answer_nor_the_evidence_changes_what_is_said(
    questions: list[Question], searcher: Searcher
):
    metadata = {"evidence_list": None, "question_type": ""}
    lies = [
        question.model_copy(
            update={
                "golden_answers": ("Nobody",),
                "metadata": question.metadata.model_copy(update=metadata),
            }
        )
        for question in questions[:40]
    ]
    assert teach(lies, searcher) == teach(questions[:40], searcher)


@pytest.mark.slow
def test_with_the_error_rates_of_params_the_teacher_rarely_shows_a_third_hop(
    questions: list[Question], searcher: Searcher, smoke: Profile
):
    config = smoke.section("synthesize", SynthesizeConfig).scripted
    assert config
    solved = [
        question
        for seed in range(3)
        for question, said in zip(questions, teach(questions, searcher, config, seed), strict=True)
        if f1(extract_answer(said[-1]), question.golden_answers) >= SUCCESS_F1
    ]
    assert 0.4 <= len(solved) / (3 * len(questions)) <= 0.8
    third = [
        sum(question.metadata.question_type == "3_hop" for question in each)
        for each in (solved, 3 * questions)
    ]
    assert 0 < third[0] / third[1] < 0.3


def test_a_question_without_a_plan_or_with_an_unknown_relation_is_refused(
    questions: list[Question],
):
    bare = Question(id="real-1", question="Who?", golden_answers=("Mary",))
    with pytest.raises(ConfigError, match="real-1"):
        read_plan(bare)
    metadata = questions[0].metadata.model_copy(update={"plan": ["owner"]})
    with pytest.raises(ConfigError, match="owner"):
        read_plan(questions[0].model_copy(update={"metadata": metadata}))


def test_in_tags_it_writes_its_note_as_a_thought_and_reads_the_shown_documents(
    questions: list[Question], searcher: Searcher
):
    protocol = SearchTags("Write <search> query </search>.")

    async def converse(question: Question) -> list[Message]:
        teacher = ScriptedTeacher(question, 0, FAULTLESS, 0, protocol)
        messages = protocol.opening(question.question)
        while True:
            turn = (await teacher.reply(messages, 64)).turn
            messages.append(turn)
            assert protocol.correction(turn) is None, "a search or an answer"
            if not turn.tool_calls:
                return messages
            query = json.loads(turn.tool_calls[0].arguments)["query"]
            assert turn.content.endswith(f"<search>{query}</search>")
            found = [hit.chunk for hit in searcher.find_hits([query], 3)[0]]
            messages.append(Message(role="tool", content=protocol.observation(found)))

    known = [each for each in questions if not says_second_word(each)][:10]
    for question in known:
        *_, answer = asyncio.run(converse(question))
        assert f1(extract_answer(answer.content), question.golden_answers) >= SUCCESS_F1
