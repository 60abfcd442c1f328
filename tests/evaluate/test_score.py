from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from deepsearch_rl.core.answers import METRICS
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.evaluate.score import (
    Interval,
    PairedDifference,
    QuestionScores,
    bootstrap_intervals,
    build_control,
    build_row,
    paired_differences,
    pass_at_k,
    score_questions,
)
from tests.evaluate.conftest import make_rollout, row_key

KEY = row_key("sft", "musique", "outworld", samples=2)


def scores(values: list[float], prefix: str = "q") -> QuestionScores:
    ids = tuple(f"{prefix}{number:04}" for number in range(len(values)))
    return QuestionScores(ids, ("",) * len(ids), {"f1": np.array(values)})


def bootstrap_interval(values_Q: NDArray[np.float64], seed: int, draws: int) -> Interval:
    [interval] = bootstrap_intervals(values_Q[:, None], seed, draws)
    return interval


def paired_difference(
    run: QuestionScores, other: QuestionScores, seed: int, draws: int
) -> PairedDifference:
    return paired_differences(run, other, seed, draws, ("f1",))["f1"]


def test_samples_are_averaged_per_question_before_anything_else() -> None:
    # one question right twice, one wrong once in two: means of 1 and 1/2, not of four rollouts in a
    # row
    rollouts = [make_rollout(1, 0, "Port Vale"), make_rollout(1, 1, "Port Vale")]
    rollouts += [make_rollout(0, 0, "Port Vale"), make_rollout(0, 1, "Stoke")]
    scored = score_questions(rollouts, samples=2)
    assert scored.question_ids == ("q0", "q1")
    assert scored.metrics["f1"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    "reason", [reason for reason in StopReason if reason is not StopReason.ANSWERED]
)
def test_a_failed_rollout_scores_zero_and_stays_in_the_denominator(reason: StopReason) -> None:
    # Its empty answer would match the empty gold
    failed = make_rollout(1, gold="", stop=reason)
    scored = score_questions([make_rollout(0, answer="Port Vale"), failed], samples=1)
    assert [scored.metrics[name].tolist() for name in METRICS] == [[1.0, 0.0]] * 5


@pytest.mark.parametrize("samples", [[0], [0, 0], [0, 2], [0, 1, 2]])
def test_a_missing_or_doubled_sample_is_refused(samples: list[int]) -> None:
    with pytest.raises(CheckFailedError, match="'q7'"):
        score_questions([make_rollout(7, sample) for sample in samples], samples=2)


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(CheckFailedError):
        score_questions([], samples=1)


def test_a_paired_difference_is_sharper_than_the_two_intervals_apart() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(300)  # questions differ much, the two models little
    scored = paired_difference(
        scores((hard + 0.02).tolist()), scores(hard.tolist()), seed=0, draws=1000
    )
    assert (scored.mean, scored.low, scored.high) == (
        pytest.approx(0.02),
        pytest.approx(0.02),
        pytest.approx(0.02),
    )
    assert scored.p_value == pytest.approx(1 / 1001)
    alone = bootstrap_interval(hard, seed=0, draws=1000)
    assert alone.high - alone.low > 0.05


def test_intervals_are_those_of_scipys_percentile_bootstrap() -> None:
    values_QM = np.random.default_rng(3).random((60, 2))
    intervals = bootstrap_intervals(values_QM, seed=5, draws=300)
    reference = stats.bootstrap(
        (values_QM,),
        np.mean,
        axis=0,
        n_resamples=300,
        batch=1,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert [interval.low for interval in intervals] == pytest.approx(reference.low, abs=1e-12)
    assert [interval.high for interval in intervals] == pytest.approx(reference.high, abs=1e-12)


@pytest.mark.slow
def test_the_p_value_is_that_of_scipys_paired_permutation_test() -> None:
    differences = np.random.default_rng(1).normal(0.4, 1.0, 12)
    exact = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=1 << 20
    )
    difference = paired_difference(
        scores(differences.tolist()), scores([0.0] * 12), seed=0, draws=20_000
    )
    assert difference.p_value == pytest.approx(exact.pvalue, abs=0.01)


def test_equal_runs_differ_by_nothing() -> None:
    scored = paired_difference(scores([0.2, 0.8, 1.0]), scores([0.2, 0.8, 1.0]), seed=0, draws=200)
    assert (scored.mean, scored.low, scored.high, scored.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_runs_over_different_questions_are_not_compared() -> None:
    with pytest.raises(CheckFailedError):
        paired_difference(scores([1.0]), scores([1.0], prefix="other"), seed=0, draws=100)


@pytest.mark.parametrize("samples", range(1, 7))
def test_pass_at_k_is_the_share_of_all_sets_of_k_answers_with_one_that_matches(
    samples: int,
) -> None:
    for k in range(1, samples + 1):
        passed_Q = []
        for matches in range(samples + 1):
            drawn = list(combinations([True] * matches + [False] * (samples - matches), k))
            passed_Q.append(sum(map(any, drawn)) / len(drawn))
            assert pass_at_k(np.array([matches / samples]), samples, k) == pytest.approx(
                passed_Q[-1]
            )
        em_Q = np.arange(samples + 1) / samples
        assert pass_at_k(em_Q, samples, k) == pytest.approx(np.mean(passed_Q))


@pytest.mark.parametrize(("samples", "k"), [(3, 0), (3, 4)])
def test_pass_at_k_is_refused_for_more_answers_than_there_are(samples: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} .* {samples} answers"):
        pass_at_k(np.array([1.0]), samples, k)


@pytest.mark.parametrize(
    ("samples", "passes"), [(1, [1]), (2, [1, 2]), (3, [1, 2]), (8, [1, 8]), (12, [1, 8])]
)
def test_a_row_has_pass_at_1_and_at_the_largest_power_of_two_among_its_samples(
    samples: int, passes: list[int]
) -> None:
    # Of question 0 the first answer alone, of question 1 all
    answers = {(0, 0), *product([1], range(samples))}
    rollouts = [
        make_rollout(
            question, sample, "Port Vale" if (question, sample) in answers else "the port of Vale"
        )
        for question, sample in product((0, 1, 2), range(samples))
    ]
    row = build_row(
        row_key("sft", "musique", "outworld", samples), rollouts, generated=True, draws=200
    )
    assert list(row.pass_at) == passes
    assert row.pass_at[1] == row.em
    assert row.pass_at[passes[-1]] == pytest.approx((passes[-1] / samples + 1 + 0) / 3, abs=1e-6)


def test_a_row_counts_failures_by_kind_and_scores_every_type() -> None:
    rollouts = [
        make_rollout(0, 0, "Port Vale", kind="1_hop", searches=2),
        make_rollout(0, 1, stop=StopReason.SEARCH_BUDGET, kind="1_hop", searches=4),
        make_rollout(1, 0, stop=StopReason.DEADLINE, kind="null"),
        make_rollout(1, 1, stop=StopReason.SEARCH_BUDGET, kind="null"),
    ]
    row = build_row(KEY, rollouts, generated=True, draws=200)
    assert (row.n, row.f1, row.em) == (2, 0.25, 0.25)
    assert row.failures == {"deadline": 1, "search_budget": 2}
    assert {kind: (score.n, score.f1) for kind, score in row.types.items()} == {
        "1_hop": (1, 0.5),
        "null": (1, 0.0),
    }
    assert row.constant.f1 == 1.0
    assert (row.mean_rounds, row.mean_tool_calls) == (2.0, 2.0)
    assert {kind: score.mean_tool_calls for kind, score in row.types.items()} == {
        "1_hop": 3.0,
        "null": 1.0,
    }


def test_figures_of_a_row_have_six_decimals() -> None:
    rollouts = [make_rollout(number, answer="x", gold=gold) for number, gold in enumerate("xyz")]
    row = build_row(
        row_key("sft", "musique", "outworld", samples=1), rollouts, generated=True, draws=200
    )
    assert {row.f1, row.em, row.acc, row.precision, row.recall} == {0.333333}
    assert (row.constant.f1, row.constant.em) == (0.333333, 0.333333)


def test_a_row_is_made_from_rollouts_that_pass_by_once() -> None:
    rollouts = [
        make_rollout(question, sample, "Port Vale") for question in (0, 1) for sample in (0, 1)
    ]
    row = build_row(KEY, iter(rollouts), generated=True, draws=200)
    assert row == build_row(KEY, rollouts, generated=True, draws=200)
    assert (row.n, row.f1) == (2, 1.0)
    assert build_control(iter(rollouts), iter(rollouts), 2, KEY, 200).searched_f1 == 1.0


def test_a_control_stands_beside_the_search_score_of_its_own_questions() -> None:
    searched = [
        make_rollout(question, sample, "Port Vale") for question in (0, 1) for sample in (0, 1)
    ]
    searched += [make_rollout(2, sample, "Stoke") for sample in (0, 1)]
    control = build_control(
        [make_rollout(1, answer="Stoke"), make_rollout(2, answer="Stoke")], searched, 1, KEY, 200
    )
    assert (control.n, control.f1, control.searched_f1) == (2, 0.0, 0.5)
