"""The hybrid retriever: both halves' candidates and the best of every source that is named, in the order learnt."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.retrieval.hybrid.features import FEATURES, Floats, features
from deepsearch_rl.retrieval.hybrid.question_parts import QuestionParts, SourceNames, take_apart
from deepsearch_rl.retrieval.hybrid.sentence_terms import SentenceTerms
from deepsearch_rl.retrieval.ranking import Ranking, Retriever, rank
from deepsearch_rl.retrieval.row_table import RowTable

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The C rows that may answer a query, ascending, with their features."""

    rows_C: NDArray[np.int64]
    features_CF: Floats


@dataclass(frozen=True, slots=True)
class CandidateFinder:
    """Asks both halves and looks into what they find."""

    bm25: Retriever
    dense: Retriever
    terms: SentenceTerms
    table: RowTable
    names: SourceNames
    depth: int
    """Rows taken from each half."""
    source_depth: int
    """Rows taken from BM25 within each source that a question names."""

    def find(self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None) -> list[Candidates]:
        """At least the best ``top_k`` rows of either half for every query, of the allowed ones."""
        depth = max(self.depth, top_k)
        listed = zip(
            self.bm25.search(queries, depth, allowed_N), self.dense.search(queries, depth, allowed_N), strict=True
        )
        return [self._candidates(query, pair, depth, allowed_N) for query, pair in zip(queries, listed, strict=True)]

    def _candidates(
        self, query: str, listed: tuple[Ranking, Ranking], depth: int, allowed_N: Mask | None
    ) -> Candidates:
        asked = take_apart(query, self.names)
        within = [self._within(query, source, allowed_N).rows_K for source in asked.sources]
        rows_C = np.unique(np.concatenate([*(ranking.rows_K for ranking in listed), *within]))
        return Candidates(rows_C, self._features(rows_C, listed, depth, asked))

    def _within(self, query: str, source: int, allowed_N: Mask | None) -> Ranking:
        of_source_N = self.table.source_N == source
        mask_N = of_source_N if allowed_N is None else of_source_N & allowed_N
        [ranking] = self.bm25.search([query], self.source_depth, mask_N)
        return ranking

    def _features(
        self, rows_C: NDArray[np.int64], listed: tuple[Ranking, Ranking], depth: int, asked: QuestionParts
    ) -> Floats:
        if not len(rows_C):
            return np.zeros((0, len(FEATURES)))
        return features(rows_C, listed, depth, asked, self.terms, self.table)


@dataclass(frozen=True, slots=True)
class HybridRetriever:
    """Ranks candidates by a weighted sum of their features."""

    finder: CandidateFinder
    weights_F: Floats

    def search(self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None) -> list[Ranking]:
        """Rank what either half found among the allowed rows; equal scores are ordered by row.

        Scores compare rows of one query only, and may be negative.
        """
        return [order(found, self.weights_F, top_k) for found in self.finder.find(queries, top_k, allowed_N)]


def order(found: Candidates, weights_F: Floats, top_k: int) -> Ranking:
    """The best candidates by weighted sum, then by row."""
    scores_C = (found.features_CF * weights_F).sum(axis=1)  # no matrix product, so that equal candidates tie
    return rank(found.rows_C, scores_C.astype(np.float32), top_k)
