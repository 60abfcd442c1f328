"""What every retriever returns for a query: rows of the chunk file, best first; and how two rankings become one.

The order is total, so that equal inputs give equal results on every machine: higher score first,
then lower row.

Three verbs name a search by what it returns:

    nearest(vectors)        a ranking of rows for each vector: a :class:`VectorIndex`
    search(texts)           a ranking of rows for each text: a :class:`Retriever`, the user's own ones too
    find_hits(texts)        chunks with scores for each text: whatever can be served (``SearchesChunks``)

An index that was built with training questions has learnt a hybrid's weights (:mod:`.hybrid`). For
one that was not, params say which half its hybrid is, or that both are fused by weighted reciprocal
ranks (Cormack, Clarke and Buettcher 2009): a row's score is the sum over the rankings of ``weight /
(rrf_k + rank)``, rank from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.search.encoders.encoder import Vectors

# Which of N rows may be found
Mask = NDArray[np.bool_]
RankingName = Literal["learned", "bm25", "dense"]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The K best rows of one query, K <= top_k.

    ``rows_K`` holds line numbers of the chunk file from 0 (int64), ``scores_K`` their scores
    (float32), descending.
    """

    rows_K: NDArray[np.int64]
    scores_K: NDArray[np.float32]


class Retriever(Protocol):
    """Ranks the rows of an index."""

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Return one ranking per query with at most ``top_k`` rows; fewer where fewer match, never padded.

        ``allowed_N`` tells which of the index's N rows may be found; None allows all.
        """
        ...


class VectorIndex(Protocol):
    """Finds the rows of greatest inner product."""

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        ...

    def nearest(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Return one ranking per query of at most ``top_k`` rows, best first, equal scores by row.

        Rows that ``allowed_N`` denies are not found. A zero query, which points nowhere, finds
        nothing.
        """
        ...


def rank(rows_N: NDArray[np.int64], scores_N: NDArray[np.float32], top_k: int) -> Ranking:
    """Return the ``top_k`` best of N candidates by score, then by row."""
    if len(rows_N) > top_k:
        # Sorting all candidates would take several times as long as finding the lowest score
        # that counts.
        threshold = np.partition(scores_N, -top_k)[-top_k]

        # More than top_k where scores tie; the row decides below.
        high_N = scores_N >= threshold
        rows_N = rows_N[high_N]
        scores_N = scores_N[high_N]

    order_K = np.lexsort((rows_N, -scores_N))[:top_k]
    return Ranking(rows_N[order_K], scores_N[order_K])


class LearningConfig(Record):
    """How the hybrid's weights are learnt."""

    split: NonEmpty = Field(
        description="questions of this split are learnt from, of every dataset of the corpus"
    )
    questions: int = Field(ge=1, description="at most so many of them, drawn by seed")
    ridge: float = Field(gt=0, description="strength of the penalty on squared weights")
    folds: int = Field(
        ge=2, description="parts that the questions are dealt into to compare with both halves"
    )


class FusionConfig(Record):
    """How two rankings become one."""

    depth: int = Field(
        ge=1, description="rows taken from each retriever; at least top_k are always taken"
    )
    source_depth: int = Field(
        ge=1, description="rows taken from BM25 within each source that a question names"
    )
    rrf_k: float = Field(gt=0, description="how little the first ranks stand out; 60 in the paper")
    bm25_weight: float = Field(ge=0)
    dense_weight: float = Field(ge=0)
    learning: LearningConfig | None = Field(description="null: nothing is learnt")
    unlearned: Literal["bm25", "dense", "reciprocal_ranks"] = Field(
        description="what the hybrid is where nothing was learnt: one half, or reciprocal_ranks of both"
    )


class FusionWeights(Record):
    """Which ranking an index's hybrid gives, and why, as the index manifest keeps it."""

    # ``learned``, or the better half where learning does not beat it on questions held out
    ranking: RankingName
    # By feature (:mod:`.hybrid.retriever`); learnt from all the questions
    weights: dict[str, float]
    # Learnt from, and scored on while held out
    questions: int
    # MRR@10 and MAP@10 of ``learned``, ``bm25`` and ``dense``; the first from weights of the other
    # folds
    held_out: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class ReciprocalRankFusion:
    """Searches with two retrievers and fuses their rankings by rank."""

    bm25: Retriever
    dense: Retriever
    config: FusionConfig

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Rank the rows of both retrievers' rankings; equal scores are ordered by row."""
        depth = max(self.config.depth, top_k)
        lexical = self.bm25.search(queries, depth, allowed_N)
        semantic = self.dense.search(queries, depth, allowed_N)
        rankings: list[Ranking] = []

        for bm25, dense in zip(lexical, semantic, strict=True):
            scores: dict[int, float] = {}
            for ranking, weight in (
                (bm25, self.config.bm25_weight),
                (dense, self.config.dense_weight),
            ):
                for position, row in enumerate(ranking.rows_K.tolist(), 1):
                    scores[row] = scores.get(row, 0.0) + weight / (self.config.rrf_k + position)

            rows_N = np.array(list(scores), dtype=np.int64)
            scores_N = np.array(list(scores.values()), dtype=np.float32)
            rankings.append(rank(rows_N, scores_N, top_k))

        return rankings
