"""How far two models, or a model and its server, are apart: the one figure that phases call parity."""

from collections.abc import Sequence
from statistics import fmean


def mean_difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Return the mean absolute difference in nats of log-probabilities of the same tokens.

    Both hold one sequence per answer; answers of unequal length raise ValueError.
    """
    differences: list[float] = []
    for own_T, other_T in zip(ours, theirs, strict=True):
        for own, other in zip(own_T, other_T, strict=True):
            differences.append(abs(own - other))

    # Over tokens, so that a long answer counts as much as its tokens
    return fmean(differences)
