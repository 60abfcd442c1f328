"""Causes of planted faults: a hand-made key of sixty rollouts, and the edges of single rules."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from deepsearch_rl.core.answers import score
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.evaluate.explain.causes import (
    Cause,
    Findings,
    find_cause,
    is_refusal,
    lost_to_metric,
)
from deepsearch_rl.evaluate.explain.judging import Corpus, JudgedRun, judge_run
from deepsearch_rl.evaluate.explain.runs import read_run
from deepsearch_rl.search.searcher import open_index
from tests.evaluate.explain.planted import planted, questions

TOP_K = 3


@pytest.fixture(scope="module")
def judged(planted_folder: Path) -> JudgedRun:
    searcher = open_index(planted_folder / "index")
    corpus = Corpus(searcher.chunks, searcher)
    return judge_run(read_run(planted_folder / "run.jsonl"), questions(), corpus, TOP_K)


def test_sixty_planted_rollouts_have_the_causes_of_the_key(judged: JudgedRun) -> None:
    key = {case.rollout.id: case.cause for case in planted()}
    assert len(key) == 60
    assert set(key.values()) - {""} == {*Cause} - {Cause.NOT_FOUND, Cause.UNKNOWN}
    causes = {answer.name: answer.cause or "" for answer in judged.answers}
    other = {name: (key[name], causes[name]) for name in key if key[name] != causes[name]}
    assert other == {}


def test_right_answers_without_evidence_are_told_from_those_with_it(judged: JudgedRun) -> None:
    lucky = {answer.name for answer in judged.answers if answer.findings.without_evidence}
    assert lucky == {"one-1#0", "two-2#0"}


def test_without_a_corpus_nothing_is_missing_and_not_found_is_not_split(
    planted_folder: Path,
) -> None:
    run = read_run(planted_folder / "run.jsonl")
    causes = causes_of(judge_run(run, questions(), None, TOP_K))
    key = Counter(case.cause for case in planted())
    assert Cause.NOT_IN_CORPUS not in causes
    assert Cause.BAD_QUERY not in causes
    # What the corpus lacks was either not found or not looked for
    found_nowhere = ("bad_query", "index_misses", "not_in_corpus", "never_searched")
    others = ("infrastructure", "cut_off")
    expected = sum(key[name] for name in (*found_nowhere, *others))
    names = (Cause.NOT_FOUND, Cause.NEVER_SEARCHED, Cause.INFRASTRUCTURE, Cause.CUT_OFF)
    assert sum(causes[name] for name in names) == expected
    for name in (Cause.PARTLY_FOUND, Cause.NOT_USED, Cause.REFUSED, Cause.METRIC):
        assert causes[name] == key[name]


def test_a_corpus_without_an_index_says_what_it_lacks_and_does_not_split_not_found(
    planted_folder: Path,
) -> None:
    run = read_run(planted_folder / "run.jsonl")
    corpus = Corpus(open_index(planted_folder / "index").chunks)
    causes = causes_of(judge_run(run, questions(), corpus, TOP_K))
    key = Counter(case.cause for case in planted())
    assert causes[Cause.NOT_IN_CORPUS] == key["not_in_corpus"]
    assert causes[Cause.NOT_FOUND] == key["bad_query"] + key["index_misses"]


def causes_of(judged: JudgedRun) -> Mapping[Cause, int]:
    return Counter(answer.cause for answer in judged.answers if answer.cause is not None)


@pytest.mark.parametrize(
    ("pred", "golds", "way"),
    [
        ("Paris, France", ["Paris"], "extra words"),
        ("the United States of America", ["United States"], "extra words"),
        ("Beyonce Knowles", ["Beyoncé Knowles"], "alias"),
        ("9 11", ["9/11"], "alias"),
        ("John Fitzgerald Kennedy", ["John F Kennedy"], ""),
        ("Yes, both", ["yes"], "extra words"),
        # "no" is a part of "know", and not the first word of the other
        ("I know", ["no"], ""),
        ("It has no end", ["no"], ""),
        ("parisian", ["Paris"], ""),
        ("I do not know whether it is Paris", ["Paris"], ""),
        ("", ["Paris"], ""),
    ],
)
def test_right_answers_that_lose_points_are_told_from_wrong_ones(
    pred: str, golds: list[str], way: str
) -> None:
    answer = Findings(pred, pred, tuple(golds), score(pred, golds), "answered", False, 1, 1, 1, 1)
    assert lost_to_metric(answer) == way
    assert (find_cause(answer) is Cause.METRIC) == bool(way)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Insufficient information.", True),
        ("I don't know.", True),
        ("The passages do not say; it is not specified", True),
        ("Unknown", True),
        ("N/A", True),
        ("", True),
        ("The Unknown Soldier", False),
        ("None of the Above", False),
        ("Paris", False),
        ("no", False),
    ],
)
def test_texts_that_refuse_are_told_from_answers(text: str, expected: bool) -> None:
    assert is_refusal(text) is expected


def test_an_answer_whose_searches_or_evidence_are_unknown_is_unknown_and_no_guess() -> None:
    def cause(searches: int | None, items: int | None, stop: str = "answered") -> Cause | None:
        scores = score("Rome", ["Paris"])
        shown = None if items is None else 0
        return find_cause(
            Findings("Rome", "", ("Paris",), scores, stop, False, searches, items, None, shown)
        )

    assert cause(None, 1) is Cause.UNKNOWN
    assert cause(2, None) is Cause.UNKNOWN
    assert cause(0, None) is Cause.NEVER_SEARCHED
    assert cause(None, None, StopReason.DEADLINE) is Cause.CUT_OFF
    assert cause(None, None, StopReason.MODEL_ERROR) is Cause.INFRASTRUCTURE
