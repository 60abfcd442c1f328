"""The hybrid retriever: candidates of BM25, dense and every named source, ranked by eight features with learnt weights.

Features are in [0, 1] but the last:

    bm25              BM25's score over the best candidate's. A candidate that BM25 did not list has 0 if the list is
                      shorter than asked for, since it then holds all that match, else the last score of the list
    dense             the encoder's inner product over the best candidate's, likewise; an approximate index whose
                      list is too short has visited no other row, so these count 0 too
    passage           the greatest fit to any part of the question, as a share of the fit of that part's best candidate
    sentence          the fit of the candidate's best sentence to any part, as a share of the best candidate's
    source_passage    if the question names the candidate's source: its fit to the whole question, as a share of the
                      best candidate of that source; else 0
    source_sentence   likewise for its best sentence
    date              1 if it was published on a day that the question names, else 0
    document_length   ln of the number of chunks of its document: long documents match much by chance

Fit is BM25 over the terms of :mod:`.sentence_terms`, where a term counts as often as sentences have
it. Shares make numbers comparable between questions, and between a question's parts and sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.search.question_parts import QuestionParts, SourceNames, split_question
from deepsearch_rl.search.ranking import FusionConfig, Mask, Ranking, Retriever, rank
from deepsearch_rl.search.rows import RowTable
from deepsearch_rl.search.sentence_terms import SentenceTerms, term_ids

Floats = NDArray[np.float64]
FEATURES = (
    "bm25", "dense", "passage", "sentence", "source_passage", "source_sentence", "date", "document_length"
)  # fmt: skip

# BM25's parameters, as in the published baselines; here for passages and for sentences.
K1 = 0.9
B = 0.4


@dataclass(frozen=True, slots=True)
class Candidates:
    """The C rows that may answer a query, ascending, with their features."""

    rows_C: NDArray[np.int64]
    features_CF: Floats

    def scores(self, weights_F: Floats) -> NDArray[np.float32]:
        """Return scores_C, the weighted sum of every candidate's features."""
        # No matrix product, so that equal candidates tie
        return (self.features_CF * weights_F).sum(axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class CandidateFinder:
    """Finds candidates with both halves and computes their features."""

    bm25: Retriever
    dense: Retriever
    terms: SentenceTerms
    table: RowTable
    names: SourceNames
    config: FusionConfig

    def find(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Candidates]:
        """Return at least the best ``top_k`` allowed rows of either half for every query."""
        depth = max(self.config.depth, top_k)
        lexical = self.bm25.search(queries, depth, allowed_N)
        semantic = self.dense.search(queries, depth, allowed_N)
        candidates: list[Candidates] = []

        for query, bm25, dense in zip(queries, lexical, semantic, strict=True):
            question = split_question(query, self.names)
            rows = [bm25.rows_K, dense.rows_K]

            # A passage of a named source may be below the depth, behind those of other sources.
            for source in question.sources:
                of_source_N = self.table.source_N == source
                mask_N = of_source_N if allowed_N is None else of_source_N & allowed_N
                [ranking] = self.bm25.search([query], self.config.source_depth, mask_N)
                rows.append(ranking.rows_K)

            rows_C = np.unique(np.concatenate(rows))
            features_CF = self._features(rows_C, (bm25, dense), depth, question)
            candidates.append(Candidates(rows_C, features_CF))

        return candidates

    def _features(
        self,
        rows_C: NDArray[np.int64],
        halves: Sequence[Ranking],
        depth: int,
        question: QuestionParts,
    ) -> Floats:
        """Return features_CF. ``halves`` are the rankings of BM25 and dense, of at most ``depth`` rows."""
        if not len(rows_C):
            return np.zeros((0, len(FEATURES)))

        passage_CQ, sentence_CQ = _fits(rows_C, question, self.terms)
        best_sentence_C = sentence_CQ.max(axis=1)
        source_C = self.table.source_N[rows_C]

        day_C = self.table.day_N[rows_C]
        on_a_day_C = np.zeros(len(rows_C), dtype=np.bool_)
        for first, last in question.days:
            on_a_day_C |= (first <= day_C) & (day_C <= last)

        # In the order of FEATURES. Column 0 of the fits is the whole question.
        bm25, dense = halves
        columns = (
            _listed_share(bm25, rows_C, depth),
            _listed_share(dense, rows_C, depth),
            _share(passage_CQ[:, 1:]).max(axis=1),
            _share(best_sentence_C),
            _share_within(passage_CQ[:, 0], source_C, question.sources),
            _share_within(best_sentence_C, source_C, question.sources),
            on_a_day_C.astype(np.float64),
            np.log(self.terms.doc_chunks_N[rows_C]),
        )
        return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True)
class HybridRetriever:
    """Ranks candidates by a weighted sum of their features."""

    finder: CandidateFinder
    weights_F: Floats

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Rank the allowed rows that either half lists; scores compare rows of one query, and may be negative."""
        rankings: list[Ranking] = []
        for candidates in self.finder.find(queries, top_k, allowed_N):
            scores_C = candidates.scores(self.weights_F)
            rankings.append(rank(candidates.rows_C, scores_C, top_k))

        return rankings


def _fits(
    rows_C: NDArray[np.int64], question: QuestionParts, terms: SentenceTerms
) -> tuple[Floats, Floats]:
    """Return the fits to the whole question (column 0) and its parts: of each candidate, and of its best sentence.

    Both are of shape [C, Q].
    """
    parts = [term_ids(text) for text in (question.whole, *question.parts)]
    terms_U = np.unique(np.concatenate(parts))
    if not len(terms_U):
        nothing_CQ = np.zeros((len(rows_C), len(parts)))
        return nothing_CQ, nothing_CQ

    # What a term counts for a part: its idf if the part has it, else 0.
    idf_U = terms.idf(terms_U)
    weights_QU = np.stack([np.isin(terms_U, part) for part in parts]) * idf_U
    matches = terms.match(rows_C, terms_U)

    # BM25 of a passage, in which a term counts once for every sentence that has it.
    mean_row = max(len(terms.terms) / len(terms), 1.0)
    damping_C1 = K1 * (1 - B + B * matches.length_C[:, None] / mean_row)
    saturated_CU = matches.counts_CU / (matches.counts_CU + damping_C1)

    # BM25 of a sentence, in which every term counts once: 1 / (1 + damping).
    sentences = len(matches.length_S)
    mean_sentence = max(len(terms.terms) / (len(terms.sentence_starts) - 1), 1.0)
    damping_S = 1 + K1 * (1 - B + B * matches.length_S / mean_sentence)

    passage_fits: list[Floats] = []
    sentence_fits: list[Floats] = []
    for weights_U in weights_QU:
        # No matrix product: its rounding may depend on the row, and equal candidates must tie.
        passage_fits.append((saturated_CU * weights_U).sum(axis=1))

        weights_M = weights_U[matches.term_M]
        fits_S = np.bincount(matches.sentence_M, weights_M, minlength=sentences)
        sentence_fits.append(fits_S / damping_S)

    best_QC = np.maximum.reduceat(np.stack(sentence_fits), matches.starts_C, axis=1)
    return np.stack(passage_fits, axis=1), best_QC.T


def _share(fits_C: Floats) -> Floats:
    """Return fits as a share of the best candidate's, column by column; 0 where nothing fits."""
    best = fits_C.max(axis=0)
    return fits_C / np.where(best > 0, best, 1)


def _share_within(fits_C: Floats, source_C: NDArray[np.int32], sources: Sequence[int]) -> Floats:
    """Return the share of its source's best fit for every candidate of a named source, else 0."""
    shares_C = np.zeros(len(fits_C))
    for source in sources:
        of_source_C = source_C == source
        if of_source_C.any():
            shares_C[of_source_C] = _share(fits_C[of_source_C])

    return shares_C


def _listed_share(ranking: Ranking, rows_C: NDArray[np.int64], depth: int) -> Floats:
    """Return a half's scores over its best; a candidate off a full list has the last score, else 0."""
    if not len(ranking.rows_K):
        return np.zeros(len(rows_C))

    # The rank at which each candidate would stand, and whether it does.
    order_K = np.argsort(ranking.rows_K)
    places_C = np.searchsorted(ranking.rows_K, rows_C, sorter=order_K)
    rank_C = order_K[np.minimum(places_C, len(order_K) - 1)]
    listed_C = ranking.rows_K[rank_C] == rows_C

    unlisted_score = ranking.scores_K[-1] if len(ranking.rows_K) >= depth else 0.0
    scores_C = np.where(listed_C, ranking.scores_K[rank_C], unlisted_score).astype(np.float64)

    # A cosine may be negative, and so may the best one.
    return np.maximum(scores_C, 0) / max(float(ranking.scores_K[0]), 1e-9)
