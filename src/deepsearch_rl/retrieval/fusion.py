"""How a hybrid is made of BM25 and dense retrieval, and what it does before it has learnt anything.

An index that was built with training questions has learnt weights (:mod:`.hybrid`). For one that was not, params say
which half its hybrid is, or that both are fused by weighted reciprocal ranks (Cormack, Clarke and Buettcher 2009): a
row's score is the sum over the rankings of ``weight / (rrf_k + rank)``, rank from 1. Ranks need no common scale, so
that one retriever's scores cannot drown the other's; but a weak half drags a strong one down (docs/retrieval.md), so
that fusing pays where both are about as good, as BM25 and a neural encoder are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.hybrid.weights import LearningConfig
from deepsearch_rl.retrieval.ranking import Ranking, Retriever, rank

Unlearned = Literal["bm25", "dense", "reciprocal_ranks"]


class FusionConfig(Record):
    """How two rankings become one."""

    depth: int = Field(ge=1, description="rows taken from each retriever; at least top_k are always taken")
    source_depth: int = Field(ge=1, description="rows taken from BM25 within each source that a question names")
    rrf_k: float = Field(gt=0, description="how little the first ranks stand out; 60 in the paper")
    bm25_weight: float = Field(ge=0)
    dense_weight: float = Field(ge=0)
    learning: LearningConfig | None = Field(description="null: nothing is learnt")
    unlearned: Unlearned = Field(
        description="what the hybrid is where nothing was learnt: one half, or reciprocal_ranks of both"
    )


@dataclass(frozen=True, slots=True)
class ReciprocalRankFusion:
    """Asks two retrievers and fuses what they find by rank."""

    bm25: Retriever
    dense: Retriever
    config: FusionConfig

    def search(self, queries: Sequence[str], top_k: int, allowed_N: NDArray[np.bool_] | None = None) -> list[Ranking]:
        """Rank the rows that either retriever found; equal scores are ordered by row."""
        depth = max(self.config.depth, top_k)
        found = zip(
            self.bm25.search(queries, depth, allowed_N), self.dense.search(queries, depth, allowed_N), strict=True
        )
        return [self._fuse(lexical, semantic, top_k) for lexical, semantic in found]

    def _fuse(self, lexical: Ranking, semantic: Ranking, top_k: int) -> Ranking:
        scores: dict[int, float] = {}
        for ranking, weight in ((lexical, self.config.bm25_weight), (semantic, self.config.dense_weight)):
            for position, row in enumerate(ranking.rows_K.tolist(), 1):
                scores[row] = scores.get(row, 0.0) + weight / (self.config.rrf_k + position)
        rows_N = np.fromiter(scores.keys(), dtype=np.int64, count=len(scores))
        return rank(rows_N, np.fromiter(scores.values(), dtype=np.float32, count=len(scores)), top_k)
