"""Lost points by cause: they add up to 1 - F1 exactly.

An answer loses 1 - F1 to one cause. A question that was answered several times counts once, with
the mean of its answers, so that each of its n answers loses its points divided by n. Sums are taken
in fractions: a float is one, and nothing is rounded before the check.

Axes: Q questions in the order of their ids, C causes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.score import Interval, bootstrap_intervals

ValueT = TypeVar("ValueT")
NO_LOSS = Fraction(0)


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """What the lost points are counted from: one answer to a question."""

    question_id: str
    f1: float
    cause: Cause | None
    without_evidence: bool = False


@dataclass(frozen=True, slots=True)
class LostPoints:
    """Lost points of questions by cause, with their F1; every value is a mean over a question's answers."""

    question_ids: tuple[str, ...]
    f1_Q: tuple[Fraction, ...]
    lost_QC: tuple[tuple[Fraction, ...], ...]
    without_evidence_Q: tuple[Fraction, ...]

    @property
    def f1(self) -> Fraction:
        """Mean F1 over the questions."""
        return sum(self.f1_Q, NO_LOSS) / len(self.f1_Q)

    def lost(self, cause: Cause) -> Fraction:
        """Return the points that a cause costs, a share of all points of the questions."""
        column = CAUSES.index(cause)
        return sum((row_C[column] for row_C in self.lost_QC), NO_LOSS) / len(self.lost_QC)

    def of(self, question_ids: Iterable[str]) -> "LostPoints":
        """Return the same for some of the questions, at least one."""
        chosen = set(question_ids)
        places = [place for place, name in enumerate(self.question_ids) if name in chosen]
        return LostPoints(
            _at(places, self.question_ids),
            _at(places, self.f1_Q),
            _at(places, self.lost_QC),
            _at(places, self.without_evidence_Q),
        )

    def values(self) -> NDArray[np.float64]:
        """Return F1, the share that is right without evidence, and every cause, shape (Q, 2 + C)."""
        rows: list[list[float]] = []
        for f1, lucky, row_C in zip(self.f1_Q, self.without_evidence_Q, self.lost_QC, strict=True):
            rows.append([float(f1), float(lucky), *map(float, row_C)])

        return np.array(rows)


CAUSES = tuple(Cause)


def _at(places: Sequence[int], values: Sequence[ValueT]) -> tuple[ValueT, ...]:
    return tuple(values[place] for place in places)


def count_lost_points(answers: Sequence[ScoredAnswer]) -> LostPoints:
    """Return the lost points of at least one answer.

    Raise CheckFailedError where they do not add up to 1 - F1, because an answer that lost points
    has no cause.
    """
    by_question: dict[str, list[ScoredAnswer]] = {}
    for answer in answers:
        by_question.setdefault(answer.question_id, []).append(answer)

    ids = tuple(sorted(by_question))
    f1_Q: list[Fraction] = []
    lost_QC: list[tuple[Fraction, ...]] = []
    without_evidence_Q: list[Fraction] = []

    for name in ids:
        of_question = by_question[name]
        samples = len(of_question)
        lost_C = dict.fromkeys(CAUSES, NO_LOSS)
        f1 = NO_LOSS
        lucky = 0

        for answer in of_question:
            f1 += Fraction(answer.f1)
            lucky += answer.without_evidence
            if answer.cause is not None:
                lost_C[answer.cause] += (1 - Fraction(answer.f1)) / samples

        f1_Q.append(f1 / samples)
        lost_QC.append(tuple(lost_C.values()))
        without_evidence_Q.append(Fraction(lucky, samples))

    points = LostPoints(ids, tuple(f1_Q), tuple(lost_QC), tuple(without_evidence_Q))
    total = sum(map(points.lost, CAUSES), NO_LOSS)
    if total != 1 - points.f1:
        raise CheckFailedError(
            f"the lost points of all causes are {float(total):.6f} and 1 - F1 is "
            f"{float(1 - points.f1):.6f}: an answer that lost points has no cause."
        )
    return points


@dataclass(frozen=True, slots=True)
class Estimates:
    """F1, the share that is right without evidence, and every cause, each with its 95 % interval."""

    f1: Interval
    without_evidence: Interval
    lost: dict[Cause, Interval]


def estimate(points: LostPoints, seed: int, draws: int) -> Estimates:
    """Return means and percentile bootstrap intervals over the questions, all from the same resamples."""
    return _estimates(bootstrap_intervals(points.values(), seed, draws))


def estimate_movement(points: LostPoints, other: LostPoints, seed: int, draws: int) -> Estimates:
    """Return ``points`` minus ``other``, taken question by question before it is resampled.

    Raise CheckFailedError where the two are of different questions.
    """
    if points.question_ids != other.question_ids:
        raise CheckFailedError(
            "two runs over different questions cannot be compared question by question."
        )
    return _estimates(bootstrap_intervals(points.values() - other.values(), seed, draws))


def _estimates(intervals: Sequence[Interval]) -> Estimates:
    f1, without_evidence, *lost = intervals
    return Estimates(f1, without_evidence, dict(zip(CAUSES, lost, strict=True)))
