"""The generated worlds: deterministic, unambiguous, without leaks between splits or between the two worlds."""

import itertools
import re
from collections import Counter

import pytest

from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.core.records import Question
from deepsearch_rl.toy.grammar import (
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    STYLES,
    Grammar,
    find_entities,
    name_words,
    read_object,
)
from deepsearch_rl.toy.world_questions import Generated, WorldConfig, generate

CONFIG = WorldConfig(
    in_domain={"person": 120, "film": 80, "company": 60, "city": 20, "country": 6},
    out_of_domain={
        "artist": 40, "novel": 25, "song": 25, "press": 10, "academy": 8, "town": 12, "waterway": 8, "crossing": 16,
        "museum": 8, "painting": 20, "ship": 16, "festival": 8, "team": 12,
    },
    missing=0.12,
    second_words=0.2,
    questions={"train": 200, "dev": 40, "val": 80},
    mix={"1_hop": 0.3, "2_hop": 0.4, "3_hop": 0.2, "null": 0.1},
    out_of_domain_questions=40,
)  # fmt: skip


@pytest.fixture(scope="module")
def made() -> Generated:
    return generate(CONFIG, seed=0)


def every_question(made: Generated) -> list[tuple[Grammar, Question]]:
    return [
        (IN_DOMAIN if dataset == "multihoprag" else OUT_OF_DOMAIN, question)
        for dataset, splits in made.questions.items()
        for questions in splits.values()
        for question in questions
    ]


def extras(question: Question) -> dict:
    assert question.metadata.model_extra is not None
    return question.metadata.model_extra


def follow(grammar: Grammar, chain: list[str], head: str, text: str) -> str | None:
    subject: str | None = head
    for noun in chain:
        words = (noun, grammar.relations[noun].second)
        subject = (
            next(filter(None, (read_object(word, subject, text) for word in words)), None)
            if subject
            else None
        )
    return subject


@pytest.mark.slow
def test_the_same_seed_gives_the_same_worlds_and_another_seed_others(made: Generated) -> None:
    assert generate(CONFIG, seed=0).model_dump_json() == made.model_dump_json()
    assert generate(CONFIG, seed=1).questions != made.questions


@pytest.mark.slow
def test_following_a_plan_through_the_articles_gives_the_golden_answer_or_nothing_if_it_is_null(
    made: Generated,
) -> None:
    # Each plan is followed over the text of the whole corpus, so a fact that counts as missing is
    # stated nowhere.
    texts = {
        grammar: "\n".join(document.contents for document in made.corpora[corpus])
        for grammar, corpus in ((id(IN_DOMAIN), "world"), (id(OUT_OF_DOMAIN), "outworld"))
    }
    for grammar, question in every_question(made):
        (head,) = find_entities(question.question)
        end = follow(grammar, extras(question)["plan"], head, texts[id(grammar)])
        assert question.golden_answers == (end or INSUFFICIENT,)
        assert (end is None) == (question.metadata.question_type == "null")


def test_every_fact_of_the_evidence_is_a_sentence_of_the_document_it_names(made: Generated) -> None:
    documents = {
        (corpus, document.id): document
        for corpus, found in made.corpora.items()
        for document in found
    }
    for grammar, question in every_question(made):
        evidence = question.metadata.evidence_list
        assert evidence is not None
        assert len(evidence) == (
            0 if question.metadata.question_type == "null" else extras(question)["hops"]
        )
        for fact in evidence:
            document = documents["world" if grammar is IN_DOMAIN else "outworld", fact.doc_id or ""]
            assert fact.fact in document.text
            assert fact.title == document.title


def test_no_entity_heads_questions_of_two_splits(made: Generated) -> None:
    heads = {
        split: {head for question in questions for head in find_entities(question.question)}
        for split, questions in made.questions["multihoprag"].items()
    }
    assert all(heads.values())
    for first, second in itertools.combinations(heads, 2):
        assert heads[first].isdisjoint(heads[second])


def test_no_question_is_asked_twice_in_different_words_and_no_id_is_used_twice(
    made: Generated,
) -> None:
    asked = Counter(
        (dataset, *find_entities(question.question), *extras(question)["plan"])
        for dataset, splits in made.questions.items()
        for questions in splits.values()
        for question in questions
    )
    assert max(asked.values()) == 1
    ids = [question.id for _, question in every_question(made)]
    assert len(ids) == len(set(ids))


def test_each_split_has_the_asked_number_of_questions_in_the_asked_mix(made: Generated) -> None:
    for split, size in CONFIG.questions.items():
        types = Counter(
            question.metadata.question_type for question in made.questions["multihoprag"][split]
        )
        assert types.total() == size
        assert all(abs(types[kind] - share * size) < 1 for kind, share in CONFIG.mix.items())


def test_the_stand_in_sets_have_the_shapes_of_the_sets_they_stand_for(made: Generated) -> None:
    shapes = {
        dataset: {question.metadata.question_type for question in made.questions[dataset]["val"]}
        for dataset in ("musique", "2wikimultihopqa", "hotpotqa")
    }
    assert shapes == {
        "musique": {"2_hop", "3_hop", "4_hop"},
        "2wikimultihopqa": {"compositional", "inference"},
        "hotpotqa": {"bridge"},
    }


def test_inference_questions_call_two_relations_by_one_noun(made: Generated) -> None:
    for question in made.questions["2wikimultihopqa"]["val"]:
        chain, words = extras(question)["plan"], set(re.findall(r"\w+", question.question))
        inferred = words & set(OUT_OF_DOMAIN.inferences)
        assert bool(inferred) == (question.metadata.question_type == "inference")
        assert inferred or words >= set(chain)


def test_the_other_sets_share_no_name_no_relation_and_no_template_with_the_set_that_is_trained_on(
    made: Generated,
) -> None:
    trained = {
        question.question
        for questions in made.questions["multihoprag"].values()
        for question in questions
    }
    documents = [document.contents for document in made.corpora["world"]]
    seen = set(re.findall(r"\w+", " ".join([*trained, *documents])))
    assert seen.isdisjoint(name_words(OUT_OF_DOMAIN))
    assert seen.isdisjoint(OUT_OF_DOMAIN.relations)
    for dataset in ("musique", "2wikimultihopqa", "hotpotqa"):
        for template in (STYLES[dataset].step, *STYLES[dataset].questions):
            parts = [part for part in re.split(r"\{\w+\}", template) if len(part) > 5]
            assert parts or template == STYLES[dataset].step
            assert not [part for part in parts for question in trained if part in question]


def test_a_share_of_the_facts_is_stated_with_second_words(made: Generated) -> None:
    text = " ".join(document.contents for document in made.corpora["world"])
    counts = Counter(re.findall(r"\w+", text))
    seconds = sum(counts[relation.second] for relation in IN_DOMAIN.relations.values())
    assert 0.15 < seconds / (seconds + sum(counts[noun] for noun in IN_DOMAIN.relations)) < 0.25


def test_everything_generated_says_so(made: Generated) -> None:
    assert all(extras(question)["generated"] is True for _, question in every_question(made))
    assert all(
        document.metadata["generated"] is True
        for found in made.corpora.values()
        for document in found
    )


def test_articles_have_one_to_six_paragraphs_and_titles_differ(made: Generated) -> None:
    documents = [document for found in made.corpora.values() for document in found]
    lengths = {len(document.text.split("\n")) for document in documents}
    assert lengths == {1, 2, 3, 4, 5, 6}
    assert len({document.title for document in documents}) == len(documents)
    assert [document.id for document in made.corpora["world"]] == sorted(
        document.id for document in made.corpora["world"]
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"in_domain": CONFIG.in_domain | {"persn": 3}}, UnknownNameError, "Did you mean 'person'"),
        ({"in_domain": CONFIG.in_domain | {"city": 57}}, ConfigError, "2 to 56 entities of kind 'city', not 57"),
        ({"in_domain": {"person": 5}}, ConfigError, "number of entities for city, company, country, film"),
        ({"mix": {"1_hops": 1.0}}, UnknownNameError, "Did you mean '1_hop'"),
        ({"mix": {"3_hop": 1.0}, "questions": {"val": 90_000}}, ConfigError, "chains of 3 facts with an answer"),
        ({"out_of_domain_questions": 100_000}, ConfigError, "chains of 2 facts"),
    ],
)  # fmt: skip
def test_a_world_that_cannot_be_is_refused_with_the_number_that_would_do(
    change: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        generate(CONFIG.model_copy(update=change), seed=0)
