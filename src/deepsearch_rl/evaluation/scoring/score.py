"""Scores of an evaluation run: a number per question first, everything else from those numbers.

A question that was answered several times counts once, with the mean of its answers' scores, because answers to one
question are not independent. Intervals and tests then resample *questions*: the 95 % interval is the percentile
bootstrap (Efron & Tibshirani 1993, ch. 13), the difference of two models is taken per question and tested by flipping
signs at random (Fisher's paired permutation test). A rollout that failed scores zero and stays in the denominator.
scipy's bootstrap draws the same resamples and its permutation test the same distribution, but both take many times as
long (docs/evaluation.md, "Scores").

Axes: Q questions in the order of their ids, D bootstrap or permutation draws.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl import answers
from deepsearch_rl.answers import AnswerScores, score_rollout
from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.records import Record, Trajectory

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class PairedDifference(Record):
    """Mean of one run minus the other's, over the same questions."""

    mean: float
    low: float = Field(description="lower end of the paired 95 % bootstrap interval")
    high: float
    p_value: float = Field(description="two-sided paired permutation test")


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """Scores per question, averaged over its samples.

    ``metrics`` maps a metric's name to an array of shape (Q,) in the order of ``question_ids``, which is sorted.
    """

    question_ids: tuple[str, ...]
    question_types: tuple[str, ...]
    metrics: Mapping[str, Scores]

    @property
    def type_names(self) -> list[str]:
        """The known question types, sorted."""
        return sorted(set(self.question_types) - {""})

    def of_type(self, question_type: str) -> "QuestionScores":
        """Return the same scores for the questions of one type."""
        of_type_Q = np.array([kind == question_type for kind in self.question_types], dtype=bool)
        ids = tuple(itertools.compress(self.question_ids, of_type_Q))
        metrics = {name: values[of_type_Q] for name, values in self.metrics.items()}
        return QuestionScores(ids, (question_type,) * len(ids), metrics)


def score_questions(trajectories: Iterable[Trajectory], samples: int) -> QuestionScores:
    """Average each question's rollouts, which are read once; only their scores stay in memory.

    Raises:
        CheckFailedError: there is no rollout, or a question has not exactly the samples 0 to ``samples - 1``.
    """
    scored: dict[str, list[tuple[int, AnswerScores]]] = defaultdict(list)
    types: dict[str, str] = {}
    for trajectory in trajectories:
        scored[trajectory.question_id].append((trajectory.sample, score_rollout(trajectory)))
        types.setdefault(trajectory.question_id, trajectory.question_type)
    if not scored:
        raise CheckFailedError("there is no rollout to score.")
    ids = tuple(sorted(scored))
    metrics = {name: np.zeros(len(ids)) for name in answers.METRICS}
    for row, question_id in enumerate(ids):
        numbers = sorted(sample for sample, _ in scored[question_id])
        if numbers != list(range(samples)):
            raise CheckFailedError(
                f"question {question_id!r} has the samples {numbers}, not 0 to {samples - 1}: "
                "a rollout is missing or counted twice, so no mean can be taken."
            )
        for _, scores in scored[question_id]:
            for name, value in zip(answers.METRICS, scores, strict=True):
                metrics[name][row] += value / samples
    return QuestionScores(ids, tuple(types[name] for name in ids), metrics)


def bootstrap_intervals(values_QM: Scores, seed: int, draws: int) -> list[Interval]:
    """Return mean and percentile bootstrap interval of each of M metrics, from the same resamples of Q questions."""
    n = len(values_QM)
    generator = np.random.default_rng(seed)
    means_DM = np.empty((draws, values_QM.shape[1]))
    for draw in range(draws):  # one by one: D x Q indices of a large set would take gigabytes
        means_DM[draw] = np.bincount(generator.integers(0, n, n, dtype=np.int32), minlength=n) @ values_QM / n
    low_M, high_M = np.percentile(means_DM, (2.5, 97.5), axis=0)
    return [Interval(*map(float, ends)) for ends in zip(values_QM.mean(axis=0), low_M, high_M, strict=True)]


def paired_differences(
    run: QuestionScores, other: QuestionScores, seed: int, draws: int, metrics: Sequence[str]
) -> dict[str, PairedDifference]:
    """Return ``run`` minus ``other``, question by question, for each metric.

    Under the null hypothesis each question's difference may as well have the other sign; the p-value is the share of
    random sign patterns (the observed one included) whose mean is at least as far from zero.

    Raises:
        CheckFailedError: the two runs answered different questions.
    """
    if run.question_ids != other.question_ids:
        raise CheckFailedError("two runs over different questions cannot be compared question by question.")
    difference_QM = np.stack([run.metrics[name] - other.metrics[name] for name in metrics], axis=1)
    intervals = bootstrap_intervals(difference_QM, seed, draws)
    generator = np.random.default_rng(seed)
    questions = len(difference_QM)
    total_M = difference_QM.sum(axis=0)
    extreme_M = np.ones(len(total_M))
    for _ in range(draws):
        positive_Q = np.unpackbits(np.frombuffer(generator.bytes(questions // 8 + 1), np.uint8), count=questions)
        flipped_M = 2 * (positive_Q.astype(np.float64) @ difference_QM) - total_M
        extreme_M += np.abs(flipped_M) >= np.abs(total_M) - 1e-9
    p_values = (extreme_M / (1 + draws)).tolist()
    return {
        name: PairedDifference(mean=interval.mean, low=interval.low, high=interval.high, p_value=p_value)
        for name, interval, p_value in zip(metrics, intervals, p_values, strict=True)
    }
