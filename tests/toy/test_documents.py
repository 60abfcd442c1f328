import itertools
import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.answers import INSUFFICIENT, extract_answer
from deepsearch_rl.toy.curriculum import CurriculumStage, DocumentConfig
from deepsearch_rl.toy.documents import GIVEN, DocumentGenerator
from deepsearch_rl.toy.grammar import (
    GRAMMARS,
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    find_entities,
    read_object,
)

KINDS = ("copy", "lookup", "search", "continuation", "given")
Turns = list[dict[str, Any]]
RELATIONS = {
    noun: relation for grammar in GRAMMARS.values() for noun, relation in grammar.relations.items()
}


@pytest.fixture
def generator(document_config: DocumentConfig) -> DocumentGenerator:
    return DocumentGenerator(load_prompt("tiny"), document_config)


def take(
    generator: DocumentGenerator, stage: CurriculumStage, count: int, **shares: float
) -> list[Turns]:
    """The turns of the first documents, mixed as ``shares`` says; the rest is demonstrations."""
    mixed = stage.model_copy(update={f"{kind}_share": shares.get(kind, 0.0) for kind in KINDS})
    return list(itertools.islice(generator.documents(mixed, random.Random(5)), count))


def query_of(call: dict[str, Any]) -> str:
    return json.loads(call["tool_calls"][0]["function"]["arguments"])["query"]


def read(noun: str, subject: str, passages: str) -> str | None:
    """The object of a fact, whichever of its words the passages say."""
    return read_object(noun, subject, passages) or read_object(
        RELATIONS[noun].second, subject, passages
    )


def asked(query: str) -> tuple[str, str]:
    """The subject and the relation's noun of a query."""
    subject, _, word = query.removeprefix("about ").rpartition(" ")
    return subject, next(
        noun for noun, relation in RELATIONS.items() if word in (noun, relation.second)
    )


def check_notes(notes: list[str], subject: str, passages: str) -> str | None:
    """Check that each note states what the passages say of the name before it; return the last name."""
    name: str | None = subject
    for note in notes:
        found, noun, name = note.split(" ", 2)
        assert found == "found"
        if name == "nothing":
            return None
        assert read(noun, subject, passages) == name
        subject = name
    return name


def test_a_share_of_questions_names_two_relations_by_one_word_and_their_searches_follow_both(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    config = generator.config.model_copy(
        update={"in_domain": 0.0, "inferences": 0.5, "second_query": 0.0}
    )
    documents = take(replace(generator, config=config), stage, 200, continuation=1.0)
    inferred = 0
    for turns in documents:
        question = next(turn["content"] for turn in turns if turn["role"] == "user")
        pairs = [pair for word, pair in OUT_OF_DOMAIN.inferences.items() if f" {word}" in question]
        calls = [turn for turn in turns if turn.get("tool_calls")]
        if pairs:
            inferred += 1
            assert [asked(query_of(call))[1] for call in calls] == list(pairs[0])
    assert 70 <= inferred <= 130


def test_equal_seeds_give_equal_documents(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    first, again = (
        list(itertools.islice(generator.documents(stage, random.Random(5)), 50)) for _ in range(2)
    )
    assert first == again


def test_a_demonstration_searches_once_for_its_first_fact_and_reads_the_answer_there(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    missing = 0
    for turns in take(generator, stage, 100):
        system, question, call, result, answer = turns
        assert system["role"] == "system"
        subject, noun = asked(query_of(call))
        assert [subject] == find_entities(question["content"])
        name = read(noun, subject, result["content"])
        *notes, last = answer["content"].splitlines()
        assert check_notes(notes, subject, result["content"]) == name
        assert extract_answer(last) == (name or INSUFFICIENT)
        missing += name is None
    assert 5 <= missing <= 40  # a fifth on average


def test_a_lookup_asks_for_every_stated_fact_and_for_one_that_is_missing(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    missing = similar = 0
    for turns in take(generator, stage, 100, lookup=1.0):
        assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
        text, first_query = turns[0]["content"].split("\n")
        queries = [first_query, *(turn["content"] for turn in turns[2::2])]
        assert len(set(queries)) == len(queries)
        subjects: set[str] = set()

        for query, note in zip(queries, turns[1::2], strict=True):
            subject, noun = asked(query)
            subjects.add(subject)
            name = read_object(noun, subject, text)
            assert note["content"] == f"found {noun} {name or 'nothing'}"
            missing += name is None

        names = len(re.findall(r"[.] ", f"{text} "))
        assert names == sum("nothing" not in note["content"] for note in turns[1::2])
        words = [set(subject.split()) for subject in subjects]
        similar += any(one & other for one, other in itertools.combinations(words, 2))

    assert 50 <= missing <= 95  # of two to twelve facts, each missing in one of five cases
    assert similar >= 30


def plan_of(line: str) -> list[str]:
    """The relations that a turn still has to follow."""
    need, _, nouns = line.partition(" ")
    assert need == "need"
    return nouns.split(", ")


def test_a_continuation_follows_its_plan_and_answers_where_that_ends(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    second_queries = answers = refusals = 0
    for turns in take(generator, stage, 200, continuation=1.0):
        query = query_of(turns[1])
        subject, noun = asked(query)
        assert [subject] == find_entities(turns[0]["content"])
        plan = plan_of(turns[1]["content"])
        for result, call in zip(turns[2::2], turns[3::2], strict=True):
            assert plan[0] == noun
            name = read(noun, subject, result["content"])
            note, last = call["content"].splitlines()
            assert check_notes([note], subject, result["content"]) == name
            if len(plan) == 1 and name:
                assert extract_answer(last) == name
                answers += 1
                continue
            second = RELATIONS[noun].second
            if name is None and query == f"about {subject} {second}":
                assert extract_answer(last) == INSUFFICIENT
                refusals += 1
                continue
            following = query_of(call)
            if name is None:
                assert following == f"about {subject} {second}"
                assert plan_of(last) == plan
                second_queries += 1
            else:
                if query.endswith(second):
                    assert read_object(second, subject, result["content"]) == name
                assert plan_of(last) == plan[1:]
                assert asked(following)[0] == name
                subject, noun = asked(following)
            query, plan = following, plan_of(last)
        assert turns[-1]["role"] == "assistant"
    assert 40 <= second_queries <= 120
    assert 40 <= answers <= 120
    assert 5 <= refusals <= 0.4 * second_queries  # a fifth on average


def test_a_continuation_with_the_tool_ends_in_a_call_or_a_refusal(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    config = generator.config.model_copy(update={"tool_continuations": 1.0})
    for turns in take(DocumentGenerator(generator.prompt, config), stage, 50, continuation=1.0):
        assert turns[0]["role"] == "system"
        assert "tool_calls" in turns[-1] or extract_answer(turns[-1]["content"]) == INSUFFICIENT


def test_a_given_search_answers_from_passages_that_the_model_did_not_ask_for(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    lengths = set()
    for document in take(generator, stage, 100, given=1.0):
        question, call, result, answer = [turn for turn in document if turn["role"] != "system"]
        assert call[GIVEN]
        assert query_of(call) == question["content"]
        *notes, last = answer["content"].splitlines()
        assert check_notes(
            notes, *find_entities(question["content"]), result["content"]
        ) == extract_answer(last)
        lengths.add(len(notes))
    assert lengths == {1, 2, 3}


def test_documents_are_about_both_languages_and_never_mix_them(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    documents = [
        json.dumps(turns)
        for turns in itertools.islice(generator.documents(stage, random.Random(5)), 200)
    ]
    words = [set(re.findall(r"\w+", text)) for text in documents]
    inside, outside = (
        [each & set(grammar.relations) for each in words] for grammar in (IN_DOMAIN, OUT_OF_DOMAIN)
    )
    assert not [None for first, second in zip(inside, outside, strict=True) if first and second]
    assert 60 <= sum(map(bool, inside)) <= 120


def test_a_share_of_the_first_calls_and_given_searches_goes_without_the_system_block(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    documents = take(generator, stage, 300, search=0.5, given=0.5)
    bare = [turns for turns in documents if turns[0]["role"] != "system"]
    assert 0.3 < len(bare) / len(documents) < 0.5


def test_a_first_call_has_a_plan_unless_the_tool_is_there(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    for *before, _, call in take(generator, stage, 50, search=1.0):
        if before:
            assert call["content"] == ""
        else:
            nouns = plan_of(call["content"])
            assert nouns[0] == asked(query_of(call))[1]
            for noun, later in itertools.pairwise(nouns):
                assert RELATIONS[later].subject_kind == RELATIONS[noun].object_kind


def test_shares_of_a_stage_over_one_are_refused(stage: CurriculumStage) -> None:
    values = stage.model_dump() | {"copy_share": 0.7, "lookup_share": 0.4}
    with pytest.raises(ValidationError, match=r"shares of a curriculum stage add up to 1\.6"):
        CurriculumStage.model_validate(values)


def test_shares_that_are_one_but_for_rounding_leave_no_demonstration(
    stage: CurriculumStage,
) -> None:
    shares = dict.fromkeys((f"{kind}_share" for kind in KINDS), 0.2)
    assert CurriculumStage.model_validate(stage.model_dump() | shares).demonstration_share == 0
