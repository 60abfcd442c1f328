import itertools
import json
import random
import re
from typing import Any

import pytest

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.answers import INSUFFICIENT, extract_answer
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN, name_words, read_object
from deepsearch_rl.training.pretrain.documents import (
    CurriculumStage,
    DocumentConfig,
    DocumentGenerator,
    PassageSet,
    draw_similar_name,
)

KINDS = ("copy", "reasoning", "search", "continuation", "demonstration")
Turns = list[dict[str, Any]]


@pytest.fixture
def generator(document_config: DocumentConfig) -> DocumentGenerator:
    return DocumentGenerator(load_prompt("tiny"), document_config)


def take(generator: DocumentGenerator, stage: CurriculumStage, count: int, **shares: float) -> list[Turns]:
    """The turns of the first documents, mixed as ``shares`` says; the rest is reading."""
    mixed = stage.model_copy(update={f"{kind}_share": shares.get(kind, 0.0) for kind in KINDS})
    return list(itertools.islice(generator.documents(mixed, random.Random(5)), count))


def match(pattern: str, text: str) -> tuple[str, ...]:
    groups = re.search(pattern, text)
    assert groups, text
    return groups.groups()


def query_of(call: dict[str, Any]) -> str:
    return json.loads(call["tool_calls"][0]["function"]["arguments"])["query"]


def test_equal_seeds_give_equal_documents(generator: DocumentGenerator, stage: CurriculumStage) -> None:
    first, again = (list(itertools.islice(generator.documents(stage, random.Random(5)), 50)) for _ in range(2))
    assert first == again


def test_a_demonstration_searches_once_for_its_first_fact_and_reads_the_answer_there(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    nouns = {relation.noun: relation.name for relation in IN_DOMAIN.relations.values()}
    missing = 0
    for turns in take(generator, stage, 100, demonstration=1.0):
        question, call, result, answer = turns[-4:]
        head, first_noun = match(r"((?: [A-Z]\w+)+)'s (\w+)", question["content"])
        head = head.strip()
        assert query_of(call).endswith(head)
        name = read_object(IN_DOMAIN, nouns[first_noun], head, result["content"])
        assert extract_answer(answer["content"]) == (name or INSUFFICIENT)
        missing += name is None
    assert 5 <= missing <= 40  # a fifth on average


def test_a_continuation_looks_up_the_next_relation_of_the_name_in_the_last_result(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    for document in take(generator, stage, 100, continuation=1.0):
        turns = [turn for turn in document if turn["role"] != "system"]
        head, path = match(r"((?: [A-Z]\w+)+)((?:'s \w+)+)", turns[0]["content"])
        subject, relations = head.strip(), path.removeprefix("'s ").split("'s ")
        queries = [query_of(turn) for turn in turns[1::2]]
        assert 2 <= len(queries) <= len(relations)
        for place, query in enumerate(queries):
            assert query == f"{relations[place]} of {subject}"
            if place + 1 < len(queries):
                subject = read_object(IN_DOMAIN, relations[place], subject, turns[2 + 2 * place]["content"])
        assert turns[-1]["role"] == "assistant"


def test_every_answer_of_a_reading_document_is_stated_in_its_passages(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    for turns in take(generator, stage, 100):
        passages = turns[0]["content"].rpartition("\n\n")[0]
        for turn in turns[1::2]:
            answer = extract_answer(turn["content"])
            assert answer == INSUFFICIENT or f" {answer}" in passages


def test_each_step_of_a_reasoning_document_is_stated_and_opens_the_next(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    for turns in take(generator, stage, 100, reasoning=1.0):
        (passages, _, question), reply = turns[0]["content"].rpartition("\n\n"), turns[1]["content"]
        *steps, answer = reply.splitlines()
        subject = match(r"((?: [A-Z]\w+)+)'s ", question)[0].strip()
        for step in steps:
            query, _, name = step.partition(": ")
            relation = next(
                r for r in IN_DOMAIN.relations.values() for q in r.queries if q.format(subject=subject) == query
            )
            assert (read_object(IN_DOMAIN, relation.name, subject, passages) or INSUFFICIENT) == name
            subject = name
        assert extract_answer(answer) == subject
        assert len(steps) == question.count("'s ") or subject == INSUFFICIENT


def test_documents_hold_no_sentence_and_no_entity_of_the_other_world(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    statements = [text for relation in OUT_OF_DOMAIN.relations.values() for text in relation.statements]
    sentences = [part for text in statements for part in re.split(r"\{\w+\}", text) if len(part) > 8]
    words = set(name_words(OUT_OF_DOMAIN))
    seen: set[str] = set()
    for turns in take(generator, stage, 200, demonstration=0.3, copy=0.2, reasoning=0.2):
        text = json.dumps(turns)
        assert not [sentence for sentence in sentences if sentence in text]
        for first, second in itertools.pairwise(re.findall(r"\w+", text)):
            seen |= {first, second} & words
            assert not is_entity(first, second)
    assert len(seen) > 50


def is_entity(first: str, second: str) -> bool:
    return any(
        len(kind.word_lists) == 2 and first in kind.word_lists[0] and second in kind.word_lists[1]
        for kind in OUT_OF_DOMAIN.kinds.values()
    )


def test_a_share_of_the_tool_conversations_goes_without_the_system_block(
    generator: DocumentGenerator, stage: CurriculumStage
) -> None:
    shares = {f"{kind}_share": 0.5 * (kind in ("demonstration", "search")) for kind in KINDS}
    documents = list(itertools.islice(generator.documents(stage.model_copy(update=shares), random.Random(5)), 300))
    bare = [turns for turns in documents if turns[0]["role"] != "system"]
    assert 0.3 < len(bare) / len(documents) < 0.5


def passage_set(seed: int) -> PassageSet:
    return PassageSet(0.0, (0, 2), (1, 2), random.Random(seed))


def test_a_chain_never_comes_back_to_a_subject_though_its_kind_has_few_names() -> None:
    country, capital = IN_DOMAIN.relations["country"], IN_DOMAIN.relations["capital"]
    for seed in range(20):
        passages, subject, subjects = passage_set(seed), "Harwick", {"Harwick"}
        for relation in (country, capital, country, capital, country, capital):
            subject = passages.state(relation, subject)
            assert subject not in subjects
            subjects.add(subject)


def test_a_hidden_fact_is_stated_nowhere() -> None:
    birthplace = IN_DOMAIN.relations["birthplace"]
    for seed in range(50):
        passages = passage_set(seed)
        assert passages.state(birthplace, "Ada Abbott", hidden=True) == INSUFFICIENT
        passages.add(4)
        text = "\n".join(passage.contents for passage in passages.passages)
        assert read_object(IN_DOMAIN, "birthplace", "Ada Abbott", text) is None


def test_a_similar_name_differs_in_one_word() -> None:
    rng = random.Random(0)
    similar = [draw_similar_name("Silent Harbor", IN_DOMAIN.kinds["film"], 0.0, rng).split() for _ in range(50)]
    assert all((first == "Silent") or (last == "Harbor") for first, last in similar)
    assert len({tuple(name) for name in similar}) > 20
