"""Scores of an evaluation run: a number per question first, everything else from those numbers, up to the F1 table.

A question that was answered several times counts once, with the mean of its answers' scores,
because answers to one question are not independent. Intervals and tests then resample *questions*:
the 95 % interval is the percentile bootstrap (Efron & Tibshirani 1993, ch. 13), the difference of
two models is taken per question and tested by flipping signs at random (Fisher's paired permutation
test). A rollout that failed scores zero and stays in the denominator. scipy's bootstrap draws the
same resamples and its permutation test the same distribution, but both take many times as long
(docs/evaluation.md, "Scores").

Axes: Q questions in the order of their ids, D bootstrap or permutation draws.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core import answers
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.records import Record, Trajectory
from deepsearch_rl.evaluate.f1_row import (
    ConstantScore,
    ControlScore,
    F1TableRow,
    RowKey,
    TypeScore,
)
from deepsearch_rl.evaluate.overlap import best_constant

Scores = NDArray[np.float64]
TOOL_CALLS = "tool_calls"


class Interval(Record):
    """A mean over questions and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class PairedDifference(Interval):
    """Mean of one run minus the other's, over the same questions."""

    p_value: float = Field(description="two-sided paired permutation test")


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """Scores and ``tool_calls`` per question, averaged over its samples.

    ``metrics`` maps a metric's name to an array of shape (Q,) in the order of ``question_ids``,
    which is sorted.
    """

    question_ids: tuple[str, ...]
    question_types: tuple[str, ...]
    metrics: Mapping[str, Scores]

    @property
    def type_names(self) -> list[str]:
        """The known question types, sorted."""
        return sorted(set(self.question_types) - {""})

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the questions."""
        return float(self.metrics[metric].mean())

    def of_type(self, question_type: str) -> "QuestionScores":
        """Return the same scores for the questions of one type."""
        of_type_Q = np.array([kind == question_type for kind in self.question_types], dtype=bool)
        ids = tuple(itertools.compress(self.question_ids, of_type_Q))
        metrics = {name: values[of_type_Q] for name, values in self.metrics.items()}
        return QuestionScores(ids, (question_type,) * len(ids), metrics)


def score_questions(trajectories: Iterable[Trajectory], samples: int) -> QuestionScores:
    """Average each question's rollouts, which are read once; only their scores stay in memory.

    Raise CheckFailedError where there is no rollout, or a question has not exactly the samples 0 to
    ``samples - 1``.
    """
    scored: dict[str, list[tuple[int, tuple[float, ...]]]] = defaultdict(list)
    types: dict[str, str] = {}

    for trajectory in trajectories:
        values = (*score_rollout(trajectory), trajectory.tool_calls)
        scored[trajectory.question_id].append((trajectory.sample, values))
        types.setdefault(trajectory.question_id, trajectory.question_type)

    if not scored:
        raise CheckFailedError("there is no rollout to score.")
    ids = tuple(sorted(scored))
    metrics = {name: np.zeros(len(ids)) for name in (*answers.METRICS, TOOL_CALLS)}

    for row, question_id in enumerate(ids):
        numbers = sorted(sample for sample, _ in scored[question_id])
        # A mean over fewer answers would pass for one of all
        if numbers != list(range(samples)):
            raise CheckFailedError(
                f"question {question_id!r} has the samples {numbers}, not 0 to {samples - 1}: "
                "a rollout is missing or counted twice, so no mean can be taken."
            )

        for _, values in scored[question_id]:
            for name, value in zip(metrics, values, strict=True):
                metrics[name][row] += value / samples

    return QuestionScores(ids, tuple(types[name] for name in ids), metrics)


def pass_at_k(em_Q: Scores, samples: int, k: int) -> float:
    """Return pass@k, the chance that one of k answers to a question matches exactly, as a mean over Q questions.

    ``em_Q`` is the share of a question's ``samples`` answers that match. Where c of n do, ``1 - C(n
    - c, k) / C(n, k)`` is the share of all sets of k answers with one that matches: the unbiased
    estimator of Chen et al. 2021 (arXiv:2107.03374, equation 1). Raise ValueError unless ``1 <= k
    <= samples``.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} cannot be estimated from {samples} answers per question")

    chances = np.empty(samples + 1)
    for matches in range(samples + 1):
        chances[matches] = 1 - comb(samples - matches, k) / comb(samples, k)

    # Rounded: a mean of thirds times three is no whole number
    matches_Q = np.rint(em_Q * samples).astype(int)
    return float(chances[matches_Q].mean())


def bootstrap_intervals(values_QM: Scores, seed: int, draws: int) -> list[Interval]:
    """Return mean and percentile bootstrap interval of each of M metrics, from the same resamples of Q questions."""
    n = len(values_QM)
    generator = np.random.default_rng(seed)
    means_DM = np.empty((draws, values_QM.shape[1]))

    # One by one: D x Q indices of a large set would take gigabytes
    for draw in range(draws):
        drawn_Q = generator.integers(0, n, n, dtype=np.int32)
        # How often each question was drawn: all metrics are resampled by one product of matrices
        weights_Q = np.bincount(drawn_Q, minlength=n)
        means_DM[draw] = weights_Q @ values_QM / n

    figures_3M = np.stack([values_QM.mean(axis=0), *np.percentile(means_DM, (2.5, 97.5), axis=0)])
    return [Interval(mean=mean, low=low, high=high) for mean, low, high in figures_3M.T.tolist()]


def paired_differences(
    run: QuestionScores, other: QuestionScores, seed: int, draws: int, metrics: Sequence[str]
) -> dict[str, PairedDifference]:
    """Return ``run`` minus ``other``, question by question, for each metric.

    Under the null hypothesis each question's difference may as well have the other sign; the
    p-value is the share of random sign patterns (the observed one included) whose mean is at least
    as far from zero. Raise CheckFailedError where the two runs answered different questions.
    """
    # The test is paired: each difference is of one question
    if run.question_ids != other.question_ids:
        raise CheckFailedError(
            "two runs over different questions cannot be compared question by question."
        )

    difference_QM = np.stack([run.metrics[name] - other.metrics[name] for name in metrics], axis=1)
    intervals = bootstrap_intervals(difference_QM, seed, draws)
    generator = np.random.default_rng(seed)
    questions = len(difference_QM)
    total_M = difference_QM.sum(axis=0)
    extreme_M = np.ones(len(total_M))

    for _ in range(draws):
        # A bit per question: a random byte gives eight signs
        sign_bytes = np.frombuffer(generator.bytes(questions // 8 + 1), np.uint8)
        positive_Q = np.unpackbits(sign_bytes, count=questions)
        # The sum with signs is twice that of the positive ones, less the sum of all
        flipped_M = 2 * (positive_Q.astype(np.float64) @ difference_QM) - total_M
        # Equal sums may differ in their last bits, which depend on the order of addition
        extreme_M += np.abs(flipped_M) >= np.abs(total_M) - 1e-9

    p_values = (extreme_M / (1 + draws)).tolist()
    result: dict[str, PairedDifference] = {}
    for name, interval, p_value in zip(metrics, intervals, p_values, strict=True):
        result[name] = PairedDifference(**dict(interval), p_value=p_value)

    return result


@dataclass(slots=True)
class _RunCounts:
    """Counts of the rollouts that pass through, and the golden answers of their questions."""

    rounds: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    golds_of: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def count(self, rollouts: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Yield the rollouts again, counting them."""
        for rollout in rollouts:
            self.rounds += rollout.rounds
            if rollout.failed:
                self.failures[str(rollout.stop_reason)] += 1
            self.golds_of[rollout.question_id] = rollout.golden_answers
            yield rollout

    def constant(self, scores: QuestionScores) -> ConstantScore:
        """Return the constant answer to the questions of ``scores``."""
        best = best_constant([self.golds_of[question_id] for question_id in scores.question_ids])
        return best.model_copy(update={"f1": round(best.f1, 6), "em": round(best.em, 6)})


def build_row(
    key: RowKey, rollouts: Iterable[Trajectory], generated: bool, draws: int
) -> F1TableRow:
    """Return the row of a run with search, whose rollouts are read once; raises as :func:`score_questions`.

    ``draws`` bootstrap resamples make each interval.
    """
    counts = _RunCounts()
    scores = score_questions(counts.count(rollouts), key.samples)
    # The largest power of two among the samples
    most = 2 ** (key.samples.bit_length() - 1)
    types: dict[str, TypeScore] = {}
    for kind in scores.type_names:
        of_type = scores.of_type(kind)
        types[kind] = TypeScore(
            **_f1_score(of_type, key.seed, draws),
            mean_tool_calls=of_type.mean(TOOL_CALLS),
            constant=counts.constant(of_type),
        )

    pass_at: dict[int, float] = {}
    for k in sorted({1, most}):
        pass_at[k] = pass_at_k(scores.metrics["em"], key.samples, k)

    return F1TableRow(
        **key.model_dump(),
        **_f1_score(scores, key.seed, draws),
        acc=scores.mean("acc"),
        precision=scores.mean("precision"),
        recall=scores.mean("recall"),
        pass_at=pass_at,
        mean_rounds=counts.rounds / (len(scores.question_ids) * key.samples),
        mean_tool_calls=scores.mean(TOOL_CALLS),
        failures=dict(sorted(counts.failures.items())),
        generated=generated,
        constant=counts.constant(scores),
        types=types,
    )


def _answers_to(
    question_ids: Iterable[str], rollouts: Iterable[Trajectory]
) -> Iterator[Trajectory]:
    """Yield the rollouts of some questions."""
    chosen = set(question_ids)
    for rollout in rollouts:
        if rollout.question_id in chosen:
            yield rollout


def build_control(
    rollouts: Iterable[Trajectory],
    searched: Iterable[Trajectory],
    samples: int,
    key: RowKey,
    draws: int,
) -> ControlScore:
    """Return the score of a control run beside that of the run with search (``searched``) on the same questions."""
    counts = _RunCounts()
    scores = score_questions(counts.count(rollouts), samples)
    with_search = score_questions(_answers_to(scores.question_ids, searched), key.samples)
    return ControlScore(
        **_f1_score(scores, key.seed, draws),
        temperature=key.temperature,
        samples=samples,
        searched_f1=with_search.mean("f1"),
        failures=dict(sorted(counts.failures.items())),
    )


def _f1_score(scores: QuestionScores, seed: int, draws: int) -> dict[str, Any]:
    """Return the fields of an :class:`F1Score`."""
    [interval] = bootstrap_intervals(scores.metrics["f1"][:, None], seed, draws)
    ends = {"f1": interval.mean, "f1_low": interval.low, "f1_high": interval.high}
    return {"n": len(scores.question_ids), "em": scores.mean("em"), **ends}
