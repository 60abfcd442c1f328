import numpy as np
import pytest

from deepsearch_rl.search.hybrid import FEATURES, Candidates
from deepsearch_rl.search.learning import (
    QuestionExample,
    choose,
    drawn_folds,
    fit_weights,
    ranking_loss,
    score_example,
    score_held_out,
)

SIGNAL = FEATURES.index("date")
RIDGE = 0.001


def examples(count: int, planted: bool, seed: int = 0) -> list[QuestionExample]:
    """Questions with 20 candidates and random features; the relevant one has the greatest date, where planted."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        features_CF = generator.random((20, len(FEATURES)))
        relevant = int(features_CF[:, SIGNAL].argmax()) if planted else int(generator.integers(20))
        items_C = tuple(frozenset({0} if row == relevant else ()) for row in range(20))
        made.append(QuestionExample(Candidates(np.arange(20) * 3, features_CF), items_C, 1))
    return made


def held_out_mrr(known: list[QuestionExample]) -> float:
    scores = score_held_out(known, RIDGE, drawn_folds(len(known), 5, seed=0))
    return float(np.mean([own["mrr@10"] for own in scores]))


def test_a_planted_signal_is_found() -> None:
    weights_F = fit_weights(examples(60, planted=True), RIDGE)
    assert weights_F.argmax() == SIGNAL
    assert np.abs(np.delete(weights_F, SIGNAL)).max() < weights_F[SIGNAL] / 5
    assert held_out_mrr(examples(60, planted=True)) > 0.8


def test_noise_does_not_help_on_questions_held_out() -> None:
    # a random order of 20 has an expected MRR@10 of (1 + 1/2 + ... + 1/10) / 20 = 0.146
    assert held_out_mrr(examples(200, planted=False)) == pytest.approx(0.146, abs=0.05)


def test_the_minimum_is_where_the_slope_vanishes() -> None:
    # one question, two candidates that differ in one feature by 1: the slope is ridge * w - (1 -
    # sigmoid(w))
    features_CF = np.zeros((2, len(FEATURES)))
    features_CF[0, 0] = 1.0
    known = QuestionExample(
        Candidates(np.array([4, 9]), features_CF), (frozenset({0}), frozenset()), 1
    )
    weight, *others = fit_weights([known], 0.1).tolist()
    assert 0.1 * weight == pytest.approx(1 / (1 + np.exp(weight)), abs=1e-4)
    assert others == [0.0] * (len(FEATURES) - 1)


def test_the_order_of_the_questions_does_not_matter() -> None:
    known = examples(30, planted=True)
    assert fit_weights(known, RIDGE) == pytest.approx(fit_weights(known[::-1], RIDGE), abs=1e-3)


def test_the_slope_is_the_derivative_of_the_loss() -> None:
    loss_and_slope = ranking_loss([several_relevant(seed) for seed in range(5)], RIDGE)
    weights_F = np.random.default_rng(1).normal(size=len(FEATURES))
    _, slope_F = loss_and_slope(weights_F)
    step = 1e-6
    for feature in range(len(FEATURES)):
        ahead_F, behind_F = weights_F.copy(), weights_F.copy()
        ahead_F[feature] += step
        behind_F[feature] -= step
        difference = loss_and_slope(ahead_F)[0] - loss_and_slope(behind_F)[0]
        assert slope_F[feature] == pytest.approx(difference / (2 * step), abs=1e-7)


def several_relevant(seed: int) -> QuestionExample:
    """Six random candidates; the first ``seed`` + 1 are relevant, and all of them in the last of five."""
    features_CF = np.random.default_rng(seed).random((6, len(FEATURES)))
    items_C = tuple(frozenset({0} if row <= seed or seed == 4 else ()) for row in range(6))
    return QuestionExample(Candidates(np.arange(6), features_CF), items_C, 1)


def test_questions_without_a_relevant_candidate_teach_nothing() -> None:
    lost = [
        QuestionExample(one.candidates, (frozenset(),) * 20, 1) for one in examples(5, planted=True)
    ]
    assert fit_weights(lost, RIDGE).tolist() == [0.0] * len(FEATURES)
    assert score_example(lost[0], np.ones(len(FEATURES)))["mrr@10"] == 0.0


def test_no_question_is_ranked_with_weights_that_it_taught() -> None:
    known = examples(10, planted=False)
    fold_Q = drawn_folds(10, 5, seed=0)
    expected = []
    for own, own_fold in zip(known, fold_Q, strict=True):
        others = [one for one, fold in zip(known, fold_Q, strict=True) if fold != own_fold]
        expected.append(score_example(own, fit_weights(others, RIDGE)))
    assert score_held_out(known, RIDGE, fold_Q) == expected
    assert expected != [score_example(own, fit_weights(known, RIDGE)) for own in known]


def scores(mrr: float, ap: float) -> dict[str, float]:
    return {"mrr@10": mrr, "map@10": ap}


@pytest.mark.parametrize(
    ("learned", "chosen"),
    [((0.6, 0.4), "learned"), ((0.6, 0.2), "dense"), ((0.4, 0.4), "dense"), ((0.5, 0.3), "dense")],
)
def test_the_better_half_is_taken_unless_learning_is_below_it_in_nothing(
    learned: object, chosen: str
) -> None:
    assert (
        choose({"learned": scores(*learned), "bm25": scores(0.3, 0.2), "dense": scores(0.5, 0.3)})
        == chosen
    )
