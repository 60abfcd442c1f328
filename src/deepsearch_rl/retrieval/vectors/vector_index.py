"""What every vector index promises, whichever kind it is."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.retrieval.ranking import Ranking

NO_ROW = -1
"""Stands where an index found fewer rows than were asked for; its score is minus infinity."""


class VectorIndex(Protocol):
    """Finds the rows of greatest inner product."""

    @property
    def dimension(self) -> int:
        """Components of a vector."""
        ...

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The scores_QK and rows_QK of the best rows, K = min(top_k, N), best first, equal scores by row.

        Rows that ``allowed_N`` denies are not found. A zero query, which points nowhere, finds nothing.
        """
        ...


def stack(rankings: Sequence[Ranking], top_k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rankings of different lengths as scores_QK and rows_QK, filled up with :data:`NO_ROW`."""
    scores_QK = np.full((len(rankings), top_k), -np.inf, dtype=np.float32)
    rows_QK = np.full((len(rankings), top_k), NO_ROW, dtype=np.int64)
    for query, ranking in enumerate(rankings):
        found = len(ranking.rows_K)
        scores_QK[query, :found], rows_QK[query, :found] = ranking.scores_K, ranking.rows_K
    return scores_QK, rows_QK
