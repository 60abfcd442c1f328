"""The best constant answer: what a model reaches that reads nothing.

It is chosen on the questions that it is scored on, so no constant can do better. A model that does not beat it has
learnt nothing but the frequencies of answers.

The F1 of two answers is ``2 * common / (length + length)``, so every feature that a candidate of length l shares with a
question adds ``2 / (l + length)`` to it, with the shortest of the question's golden answers that has the feature at
most. The sum of these is a bound, and exact where questions have one golden answer; candidates are scored in its order
until no further one can win.

Axes: as in :mod:`deepsearch_rl.evaluation.scoring.overlap`; F features, C candidates, U distinct pairs of feature and
length, E features of golden answers, one entry per occurrence, H pairs that share a feature.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from deepsearch_rl.evaluation.scoring.f1_row import ConstantScore
from deepsearch_rl.evaluation.scoring.overlap import Feature, GoldenAnswers, Ints, number_golds

DIGITS = 12
"""Sums in another order may differ beyond them, and must not decide between equals."""
SLACK = 1e-9
"""A bound this much below the best cannot win, however its sum was rounded."""
CANDIDATES_AT_ONCE = 256
"""Bounds memory: their overlaps with every golden answer are held together."""

Floats = NDArray[np.float64]


class ConstantAnswers:
    """Finds the best constant answer of all, or some, of the questions."""

    def __init__(self, golds: GoldenAnswers) -> None:
        self._golds = golds
        columns: dict[Feature, int] = {}
        sets = golds.texts.features[: int(golds.numbers_G.max()) + 1]
        features_E = np.array(
            [columns.setdefault(feature, len(columns)) for features in sets for feature in features], dtype=np.int64
        )
        self._lengths_T = np.fromiter(map(len, sets), dtype=np.int64, count=len(sets))
        ends = np.concatenate([[0], np.cumsum(self._lengths_T)])
        self._features = max(1, len(columns))
        self._features_TF = csr_matrix((np.ones(len(features_E)), features_E, ends), shape=(len(sets), self._features))

    def best(self, chosen_Q: NDArray[np.bool_] | None = None) -> ConstantScore:
        """Return the golden answer with the highest mean F1, then EM, then the first in the alphabet.

        ``chosen_Q`` marks the questions that count, at least one; None: all.
        """
        golds = self._golds
        chosen_G = slice(None) if chosen_Q is None else chosen_Q[golds.question_G]
        numbers_G = golds.numbers_G[chosen_G]
        _, question_G = np.unique(golds.question_G[chosen_G], return_inverse=True)
        em_T = np.bincount(numbers_G, minlength=len(self._lengths_T)) / (question_G[-1] + 1)
        f1_T = self._best_f1(numbers_G, question_G)
        tied_T = f1_T == f1_T.max()
        tied_T &= em_T == em_T[tied_T].max()
        winner = int(np.argmax(tied_T))
        winners_Q = np.unique(golds.question_G[chosen_G][tied_T[numbers_G]])
        spellings = [gold for question in winners_Q.tolist() for gold in golds.spelled[question]]
        answer = min(np.array(spellings, dtype=object)[tied_T[golds.texts.number(spellings)]])
        return ConstantScore(answer=answer, f1=float(f1_T[winner]), em=float(em_T[winner]))

    def _best_f1(self, numbers_G: Ints, question_G: Ints) -> Floats:
        """Return the mean F1 of every candidate that can be the best, rounded; -1 for all others."""
        bound_T = self._bound(numbers_G, question_G)
        candidates_C = np.unique(numbers_G)
        f1_T = np.full(len(bound_T), -1.0)
        if len(question_G) == question_G[-1] + 1:  # one golden answer each, so the bound is exact
            f1_T[candidates_C] = bound_T[candidates_C].round(DIGITS)
            return f1_T
        features_GF, lengths_G = self._features_TF[numbers_G], self._lengths_T[numbers_G]
        questions = int(question_G[-1]) + 1
        order_C = candidates_C[np.argsort(-bound_T[candidates_C], kind="stable")]
        start, size = 0, 8  # the bound is often so sharp that a small first block decides
        while start < len(order_C) and bound_T[order_C[start]] >= f1_T.max() - SLACK:
            block_C = order_C[start : start + size]
            common = (self._features_TF[block_C] @ features_GF.T).tocoo()
            f1_H = 2 * common.data / (self._lengths_T[block_C][common.row] + lengths_G[common.col])
            pair_H = common.row.astype(np.int64) * questions + question_G[common.col]
            order_H = np.lexsort((f1_H, pair_H))
            best_H = order_H[np.diff(pair_H[order_H], append=-1) != 0]  # of each candidate and question
            sums_C = np.bincount(pair_H[best_H] // questions, f1_H[best_H], minlength=len(block_C))
            f1_T[block_C] = (sums_C / questions).round(DIGITS)
            start, size = start + size, min(2 * size, CANDIDATES_AT_ONCE)
        return f1_T

    def _bound(self, numbers_G: Ints, question_G: Ints) -> Floats:
        """Return an upper bound of each text's mean F1.

        Of each question, a feature counts with the shortest golden answer that has it. A question's pair of feature and
        length is one number, so that sorting puts the shortest first.
        """
        features_GF, lengths_G = self._features_TF[numbers_G], self._lengths_T[numbers_G]
        beyond = int(lengths_G.max()) + 1
        pairs = np.repeat(question_G, lengths_G) * self._features + features_GF.indices
        pairs, lengths = np.divmod(np.sort(pairs * beyond + np.repeat(lengths_G, lengths_G)), beyond)
        shortest = np.diff(pairs, prepend=-1) != 0
        pair_U, count_U = np.unique(pairs[shortest] % self._features * beyond + lengths[shortest], return_counts=True)
        feature_U, length_U = np.divmod(pair_U, beyond)
        bound_T = np.zeros(len(self._lengths_T))
        starts_T = self._features_TF.indptr
        for length in np.unique(self._lengths_T[numbers_G]):
            share_F = np.bincount(feature_U, 2 * count_U / (length + length_U), minlength=self._features)
            same_C = np.flatnonzero(self._lengths_T == length)
            features = self._features_TF.indices[starts_T[same_C][:, None] + np.arange(length)]  # C x length
            bound_T[same_C] = share_F[features].sum(axis=1)
        return bound_T / (question_G[-1] + 1)


def best_constant(golden_answers: Sequence[tuple[str, ...]]) -> ConstantScore:
    """Return the best constant answer to at least one question, each with at least one golden answer."""
    return ConstantAnswers(number_golds(golden_answers)).best()
