"""Exact search straight from the vectors file.

A matrix product per block of rows finds every row that can be among the best. These few are then scored one by one
(:meth:`VectorFile.inner_products`), so that equal vectors have equal scores and the lower row comes first. BLAS and
FAISS do not promise that: there a row's last bit depends on its place in a block and on the queries beside it.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.retrieval.ranking import Ranking, rank
from deepsearch_rl.retrieval.vectors.vector_file import BLOCK_ROWS, VectorFile

ROUNDING = 1e-5
"""More than the scores of a matrix product of unit vectors in float32 can be off by."""
QUERIES = 256
"""Queries compared with a block of rows at once: their scores take 16 MiB, however many queries a call has."""
CONVERTED_ROWS = 256
"""Rows of float16 per query that are converted at once: few enough to be in the cache still when they are compared."""


@dataclass(slots=True)
class _Pool:
    """The rows of one query that can still be among its best."""

    rows_C: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    scores_C: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    floor: float = float(np.finfo(np.float32).min)
    """Lower scores, and the minus infinity of a denied row, are out."""

    def add(self, start: int, scores_B: NDArray[np.float32], top_k: int) -> None:
        """Take in the scores of a block that begins with row ``start``."""
        rows_B = np.flatnonzero(scores_B >= self.floor)
        if not len(rows_B):
            return
        self.rows_C = np.concatenate([self.rows_C, rows_B + start])
        self.scores_C = np.concatenate([self.scores_C, scores_B[rows_B]])
        if len(self.rows_C) > top_k:
            self.floor = float(np.partition(self.scores_C, -top_k)[-top_k]) - ROUNDING
            able_C = self.scores_C >= self.floor
            self.rows_C, self.scores_C = self.rows_C[able_C], self.scores_C[able_C]


@dataclass(frozen=True, slots=True)
class FlatIndex:
    """Compares a query with every vector of a file."""

    file: VectorFile

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.file.dimension

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """See :meth:`VectorIndex.search`; exact."""
        slices = (queries_QD[start : start + QUERIES] for start in range(0, len(queries_QD), QUERIES))
        return [ranking for part_QD in slices for ranking in self._rank(part_QD, top_k, allowed_N)]

    def _rank(self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None) -> list[Ranking]:
        """Rank for a few queries, for which the file is read once."""
        pools = [_Pool() for _ in queries_QD]
        searching = [(query, pools[query]) for query in np.flatnonzero(queries_QD.any(axis=1)).tolist()]
        converted = self.file.vectors_ND.dtype == np.float16
        size = min(CONVERTED_ROWS * len(queries_QD), BLOCK_ROWS) if converted else BLOCK_ROWS
        for start, block_BD in self.file.blocks(size):
            scores_QB = queries_QD @ block_BD.T
            if allowed_N is not None:
                scores_QB[:, ~allowed_N[start : start + len(block_BD)]] = -np.inf
            for query, pool in searching:
                pool.add(start, scores_QB[query], top_k)
        return [
            rank(pool.rows_C, self.file.inner_products(pool.rows_C, query_D), top_k)
            for pool, query_D in zip(pools, queries_QD, strict=True)
        ]
