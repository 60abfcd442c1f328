"""Lost points add up to 1 - F1 exactly, whatever the answers are."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepsearch_rl.core.answers import score
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.evaluate.explain.causes import Cause, Findings, find_cause
from deepsearch_rl.evaluate.explain.lost_points import (
    CAUSES,
    ScoredAnswer,
    count_lost_points,
    estimate,
    estimate_movement,
)

WORDS = st.lists(
    st.sampled_from(["ada", "stone", "of", "acme", "yes", "no", "the", "1999", "unknown", ""]),
    max_size=4,
).map(" ".join)
KNOWN = st.none() | st.integers(0, 3)


@st.composite
def judged_answers(draw: st.DrawFn) -> ScoredAnswer:
    """Any answer with its cause, as the rules find it."""
    pred = draw(WORDS)
    golds = tuple(draw(st.lists(WORDS, min_size=1, max_size=3)))
    findings = Findings(
        pred=pred,
        last_text=draw(WORDS),
        golds=golds,
        scores=score(pred, golds),
        stop=draw(st.sampled_from([*StopReason, "failed"])),
        unanswerable=draw(st.booleans()),
        searches=draw(KNOWN),
        items=draw(KNOWN),
        in_corpus=draw(KNOWN),
        shown_items=draw(KNOWN),
        findable=draw(st.none() | st.booleans()),
    )
    name = draw(st.sampled_from("abcde"))
    return ScoredAnswer(name, findings.scores.f1, find_cause(findings), findings.without_evidence)


@pytest.mark.slow
@given(st.lists(judged_answers(), min_size=1, max_size=30))
def test_lost_points_of_all_causes_add_up_to_one_minus_f1_exactly(
    answers: list[ScoredAnswer],
) -> None:
    points = count_lost_points(answers)
    assert sum(points.lost(cause) for cause in CAUSES) == 1 - points.f1
    for f1, lost_C in zip(points.f1_Q, points.lost_QC, strict=True):
        assert sum(lost_C) == 1 - f1

    estimates = estimate(points, seed=0, draws=10)
    total = sum(interval.mean for interval in estimates.lost.values())
    assert total == pytest.approx(1 - estimates.f1.mean, abs=1e-12)


@pytest.mark.slow
@given(st.lists(judged_answers(), min_size=1, max_size=20))
def test_every_answer_has_exactly_one_cause_or_lost_nothing(answers: list[ScoredAnswer]) -> None:
    for answer in answers:
        assert (answer.cause is None) == (answer.f1 == 1)
        assert not answer.without_evidence or answer.cause is None


def test_an_answer_without_a_cause_is_an_error() -> None:
    with pytest.raises(CheckFailedError, match="has no cause"):
        count_lost_points([ScoredAnswer("a", 0.5, None)])


def test_a_question_with_several_answers_counts_once() -> None:
    points = count_lost_points(
        [
            ScoredAnswer("a", 0.0, Cause.BAD_QUERY),
            ScoredAnswer("a", 0.5, Cause.METRIC),
            ScoredAnswer("a", 1.0, None, without_evidence=True),
            ScoredAnswer("b", 0.0, Cause.NOT_USED),
        ]
    )
    assert points.f1 == Fraction(1, 4)
    assert points.lost(Cause.BAD_QUERY) == Fraction(1, 6)
    assert points.lost(Cause.METRIC) == Fraction(1, 12)
    assert points.lost(Cause.NOT_USED) == Fraction(1, 2)
    assert points.without_evidence_Q == (Fraction(1, 3), Fraction(0))


def test_movements_are_paired_and_refuse_other_questions() -> None:
    before = count_lost_points([ScoredAnswer(name, 0.0, Cause.BAD_QUERY) for name in "abcd"])
    after = count_lost_points(
        [ScoredAnswer(name, 1.0, None) for name in "ab"]
        + [ScoredAnswer(name, 0.0, Cause.NOT_USED) for name in "cd"]
    )
    movement = estimate_movement(after, before, seed=0, draws=200)
    assert movement.f1.mean == 0.5
    assert movement.lost[Cause.BAD_QUERY].mean == movement.lost[Cause.BAD_QUERY].high == -1
    assert movement.lost[Cause.NOT_USED].mean == 0.5
    with pytest.raises(CheckFailedError, match="different questions"):
        estimate_movement(after.of("abc"), before, seed=0, draws=10)
