import itertools
import json
import random
import re

import pytest

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.answers import INSUFFICIENT, extract_answer
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN, name_words, read_object
from deepsearch_rl.training.pretrain.lessons import Tutor
from deepsearch_rl.training.pretrain.prepare import strange_words
from deepsearch_rl.training.pretrain.scenes import Names

ONLY = {"repeating": 0.0, "reasoning": 0.0, "searching": 0.0, "continuing": 0.0, "demonstrations": 0.0}


@pytest.fixture
def tutor(lesson_config):
    names = Names(strange_words(OUT_OF_DOMAIN), lesson_config.strange_names)
    return Tutor(IN_DOMAIN, names, load_prompt("tiny"), lesson_config)


def take(tutor, level, count, **shares):
    level = level.model_copy(update={**ONLY, **shares})
    return list(itertools.islice(tutor.lessons(level, random.Random(5)), count))


def test_a_seed_names_its_lessons(tutor, level):
    first, again = (list(itertools.islice(tutor.lessons(level, random.Random(5)), 50)) for _ in range(2))
    assert first == again


def test_a_demonstration_searches_once_for_its_first_fact_and_reads_the_answer_there(tutor, level):
    nouns = {relation.noun: relation.name for relation in IN_DOMAIN.relations.values()}
    missing = 0
    for lesson in take(tutor, level, 100, demonstrations=1.0):
        question, call, response, answer = lesson.turns[-4:]
        query = json.loads(call["tool_calls"][0]["function"]["arguments"])["query"]
        head, first_noun = re.search(r"((?: [A-Z]\w+)+)'s (\w+)", question["content"]).groups()
        head = head.strip()
        assert query.endswith(head)
        found = read_object(IN_DOMAIN, nouns[first_noun], head, response["content"])
        assert extract_answer(answer["content"]) == (found or INSUFFICIENT)
        missing += found is None
    assert 5 <= missing <= 40  # a fifth on average


def test_a_continued_search_looks_up_the_next_relation_of_what_the_last_search_found(tutor, level):
    for lesson in take(tutor, level, 100, continuing=1.0):
        turns = [turn for turn in lesson.turns if turn["role"] != "system"]
        head, path = re.search(r"((?: [A-Z]\w+)+)((?:'s \w+)+)", turns[0]["content"]).groups()
        subject, relations = head.strip(), path.removeprefix("'s ").split("'s ")
        queries = [json.loads(turn["tool_calls"][0]["function"]["arguments"])["query"] for turn in turns[1::2]]
        assert 2 <= len(queries) <= len(relations)
        for place, query in enumerate(queries):
            assert query == f"{relations[place]} of {subject}"
            if place + 1 < len(queries):
                subject = read_object(IN_DOMAIN, relations[place], subject, turns[2 + 2 * place]["content"])
        assert turns[-1]["role"] == "assistant"


def test_every_answer_of_a_reading_lesson_is_stated_in_its_passages(tutor, level):
    for lesson in take(tutor, level, 100):
        passages = lesson.turns[0]["content"].rpartition("\n\n")[0]
        for turn in lesson.turns[1::2]:
            answer = extract_answer(turn["content"])
            assert answer == INSUFFICIENT or f" {answer}" in passages


def test_each_step_of_a_reasoning_lesson_is_stated_and_opens_the_next(tutor, level):
    for lesson in take(tutor, level, 100, reasoning=1.0):
        (passages, _, question), reply = lesson.turns[0]["content"].rpartition("\n\n"), lesson.turns[1]["content"]
        *steps, answer = reply.splitlines()
        subject = re.search(r"((?: [A-Z]\w+)+)'s ", question).group(1).strip()
        for step in steps:
            query, _, found = step.partition(": ")
            relation = next(
                r for r in IN_DOMAIN.relations.values() for q in r.queries if q.format(subject=subject) == query
            )
            assert (read_object(IN_DOMAIN, relation.name, subject, passages) or INSUFFICIENT) == found
            subject = found
        assert extract_answer(answer) == subject
        assert len(steps) == question.count("'s ") or subject == INSUFFICIENT


def test_lessons_hold_no_sentence_and_no_entity_of_the_other_world(tutor, level):
    sentences = [part for relation in OUT_OF_DOMAIN.relations.values() for text in relation.statements for part in
                 re.split(r"\{\w+\}", text) if len(part) > 8]  # fmt: skip
    words = set(name_words(OUT_OF_DOMAIN))
    seen = set()
    for lesson in take(tutor, level, 200, demonstrations=0.3, repeating=0.2, reasoning=0.2):
        text = json.dumps(lesson.turns)
        assert not [sentence for sentence in sentences if sentence in text]
        for first, second in itertools.pairwise(re.findall(r"\w+", text)):
            seen |= {first, second} & words
            assert not is_entity(first, second)
    assert len(seen) > 50


def is_entity(first, second):
    return any(
        len(kind.word_lists) == 2 and first in kind.word_lists[0] and second in kind.word_lists[1]
        for kind in OUT_OF_DOMAIN.kinds.values()
    )


def test_a_share_of_tool_lessons_goes_without_the_system_block(tutor, level):
    lessons = take(tutor, level, 300, demonstrations=0.5, searching=0.5)
    bare = [lesson for lesson in lessons if not lesson.with_tools]
    assert 0.3 < len(bare) / len(lessons) < 0.5
    assert all((lesson.turns[0]["role"] == "system") == lesson.with_tools for lesson in lessons)
