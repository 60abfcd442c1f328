"""Scores of an evaluation run: a number per question first, everything else from those numbers.

A question that was answered several times counts once, with the mean of its answers' scores, because answers to one
question are not independent. Intervals and tests then resample *questions*: the 95 % interval is the percentile
bootstrap (Efron & Tibshirani 1993, ch. 13), the difference of two models is taken per question and tested by flipping
signs at random (Fisher's paired permutation test). A rollout that failed scores zero and stays in the denominator.

Axes: Q questions in the order of their ids, D bootstrap or permutation draws.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl import answers
from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.records import Trajectory

Scores = NDArray[np.float64]
CONFIDENCE_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean difference of two runs over the same questions, its 95 % interval and two-sided permutation p-value."""

    n: int
    mean: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, slots=True)
class ConstantAnswer:
    """The one answer that scores best when given to every question."""

    answer: str
    f1: float
    em: float


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """Scores per question, averaged over its samples.

    ``metrics`` maps a metric's name to an array of shape (Q,) in the order of ``question_ids``, which is sorted.
    """

    question_ids: tuple[str, ...]
    question_types: tuple[str, ...]
    metrics: Mapping[str, Scores]

    def of_type(self, question_type: str) -> "QuestionScores":
        """The same scores for the questions of one type."""
        chosen = np.array([kind == question_type for kind in self.question_types], dtype=bool)
        ids = tuple(name for name, keep in zip(self.question_ids, chosen, strict=True) if keep)
        metrics = {name: values[chosen] for name, values in self.metrics.items()}
        return QuestionScores(ids, (question_type,) * len(ids), metrics)


def score_rollout(trajectory: Trajectory) -> dict[str, float]:
    """Every metric of one rollout, each in [0, 1]; all zero where the rollout failed."""
    if trajectory.failed:
        return dict.fromkeys(answers.METRICS, 0.0)
    golds = trajectory.golden_answers
    return {name: metric(trajectory.answer, golds) for name, metric in answers.METRICS.items()}


def score_questions(trajectories: Iterable[Trajectory], samples: int) -> QuestionScores:
    """Average each question's rollouts.

    Raises:
        CheckFailedError: there is no rollout, or a question has not exactly the samples 0 to ``samples - 1``.
    """
    by_question: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_question[trajectory.question_id].append(trajectory)
    if not by_question:
        raise CheckFailedError("there is no rollout to score.")
    ids = tuple(sorted(by_question))
    for question_id in ids:
        _check_samples(question_id, by_question[question_id], samples)
    metrics = {name: np.zeros(len(ids)) for name in answers.METRICS}
    for row, question_id in enumerate(ids):
        for trajectory in by_question[question_id]:
            for name, value in score_rollout(trajectory).items():
                metrics[name][row] += value / samples
    return QuestionScores(ids, tuple(by_question[name][0].question_type for name in ids), metrics)


def _check_samples(question_id: str, rollouts: Sequence[Trajectory], samples: int) -> None:
    found = sorted(rollout.sample for rollout in rollouts)
    if found != list(range(samples)):
        raise CheckFailedError(
            f"question {question_id!r} has the samples {found}, not 0 to {samples - 1}: "
            "a rollout is missing or counted twice, so no mean can be taken."
        )


def bootstrap_interval(values_Q: Scores, seed: int, draws: int) -> Interval:
    """Mean of ``values_Q`` (shape (Q,)) and its percentile bootstrap interval from ``draws`` resamples."""
    n = len(values_Q)
    picks_DQ = np.random.default_rng(seed).integers(0, n, size=(draws, n))
    low, high = np.percentile(values_Q[picks_DQ].mean(axis=1), CONFIDENCE_PERCENTILES)
    return Interval(float(values_Q.mean()), float(low), float(high))


def paired_difference(
    run: QuestionScores, other: QuestionScores, seed: int, draws: int, metric: str = "f1"
) -> PairedDifference:
    """``run`` minus ``other``, question by question.

    Under the null hypothesis each question's difference may as well have the other sign; the p-value is the share of
    random sign patterns (the observed one included) whose mean is at least as far from zero.

    Raises:
        CheckFailedError: the two runs answered different questions.
    """
    if run.question_ids != other.question_ids:
        raise CheckFailedError("two runs over different questions cannot be compared question by question.")
    difference_Q = run.metrics[metric] - other.metrics[metric]
    interval = bootstrap_interval(difference_Q, seed, draws)
    signs_DQ = np.random.default_rng(seed).integers(0, 2, size=(draws, len(difference_Q)), dtype=np.int8) * 2 - 1
    permuted_D = signs_DQ @ difference_Q / len(difference_Q)
    extreme = int(np.count_nonzero(np.abs(permuted_D) >= abs(interval.mean) - 1e-12))
    p_value = (1 + extreme) / (1 + draws)
    return PairedDifference(len(difference_Q), interval.mean, interval.low, interval.high, p_value)


def best_constant(golden_answers: Sequence[Sequence[str]]) -> ConstantAnswer:
    """The golden answer that has the highest mean F1 (then EM, then the alphabet) when given to every question.

    It is chosen on the very questions that it is scored on, so no constant can do better: a model that does not beat
    it has learnt nothing but the answers' frequencies.
    """
    counted = Counter(tuple(golds) for golds in golden_answers)
    candidates = sorted({gold for golds in counted for gold in golds})
    scored = ((_mean_score("f1", answer, counted), _mean_score("em", answer, counted), answer) for answer in candidates)
    f1, em, answer = min(scored, key=lambda entry: (-entry[0], -entry[1], entry[2]))
    return ConstantAnswer(answer, f1, em)


def _mean_score(metric: str, answer: str, counted: Counter[tuple[str, ...]]) -> float:
    score = answers.METRICS[metric]
    return sum(count * score(answer, golds) for golds, count in counted.items()) / counted.total()
