"""Holm-Bonferroni: p-values of several tests, corrected so that all of them together keep the level of one.

Of twenty tests without any effect, one is expected below .05. Corrected p-values can be compared
with .05 as if there were one test: the chance of a single false finding among all of them is at
most .05, however the tests depend on each other.
"""

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the corrected p-value of every test, in [0, 1] and in the order of ``p_values``.

    The smallest of m p-values is multiplied by m, the next one by m - 1, and so on; none is smaller
    than the one before it (Holm 1979, A simple sequentially rejective multiple test procedure,
    Scandinavian Journal of Statistics 6, 65-70; ``p.adjust(p, "holm")`` of R).
    """
    ascending = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [1.0] * len(p_values)
    largest = 0.0

    for rank, position in enumerate(ascending):
        remaining_tests = len(p_values) - rank
        largest = max(largest, remaining_tests * p_values[position])
        corrected[position] = min(1.0, largest)

    return corrected
