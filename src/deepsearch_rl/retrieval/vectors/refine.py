"""Product codes find candidates, vectors on disk decide between them.

Codes of 96 bytes cannot order near neighbours: their error is larger than the gaps between them. But the true
neighbours stand among the first few dozen candidates, and reading these few vectors from disk costs little beside the
scan of the codes. All candidates of a batch are asked from the disk at once, so that a cold page cache costs one
round of parallel reads and not one wait per row.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.retrieval.ranking import Ranking, rank
from deepsearch_rl.retrieval.vectors.approximate import ApproximateIndex
from deepsearch_rl.retrieval.vectors.vector_file import VectorFile
from deepsearch_rl.retrieval.vectors.vector_index import NO_ROW, stack


@dataclass(frozen=True, slots=True)
class RefinedIndex:
    """A first stage, and the vectors file that its candidates are scored with."""

    first: ApproximateIndex
    file: VectorFile
    refine_factor: float

    @property
    def dimension(self) -> int:
        """Components of a vector."""
        return self.file.dimension

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`VectorIndex.search`; scores are exact, and so is the order of the candidates."""
        top_k = min(top_k, self.file.rows)
        rows_QC = self._candidates(queries_QD, math.ceil(top_k * self.refine_factor), allowed_N)
        self.file.prefetch(rows_QC[rows_QC != NO_ROW])
        rankings = [self._refined(rows_C, query_D, top_k) for rows_C, query_D in zip(rows_QC, queries_QD, strict=True)]
        return stack(rankings, top_k)

    def _candidates(
        self, queries_QD: NDArray[np.float32], count: int, allowed_N: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        if allowed_N is not None and np.count_nonzero(allowed_N) <= count:  # few enough to compare with all of them
            allowed_C = np.flatnonzero(allowed_N)
            return np.where(queries_QD.any(axis=1, keepdims=True), allowed_C, NO_ROW)
        return self.first.search(queries_QD, count, allowed_N)[1]

    def _refined(self, rows_C: NDArray[np.int64], query_D: NDArray[np.float32], top_k: int) -> Ranking:
        candidates_C = np.sort(rows_C[rows_C != NO_ROW])
        return rank(candidates_C, self.file.inner_products(candidates_C, query_D), top_k)
