"""Many answers scored at once by the definitions of :mod:`deepsearch_rl.answers`, and the best constant answer.

Each distinct text is normalised once and kept as the set of its *features*, so that the tokens which two answers share,
counted with multiplicity, are the size of an intersection: a token's first occurrence is the token itself, its second
``(token, 1)`` and so on. A closed answer (yes, no, noanswer) has one feature of its own, which only its equals have.

Axes: Q questions, G golden answers of all questions, N rows, P pairs of a row with one of its golden answers,
T distinct texts, M metrics in the order of :data:`deepsearch_rl.answers.METRICS`; for the constant answer F features,
C candidates, U distinct pairs of feature and length, E features of golden answers, one entry per occurrence, H pairs
that share a feature.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from deepsearch_rl.answers import CLOSED_ANSWERS, METRICS, normalise
from deepsearch_rl.evaluation.scoring.f1_row import ConstantScore

Feature = str | tuple[str, int]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
DIGITS = 12  # sums in another order may differ beyond them, and must not decide between equals
SLACK = 1e-9  # A bound this much below the best cannot win, however its sum was rounded
CANDIDATES_AT_ONCE = 256  # bounds memory: their overlaps with every golden answer are held together


class AnswerTexts:
    """Distinct normalised texts, numbered from 0 in the order in which they came."""

    def __init__(self) -> None:
        self._number_of: dict[str, int] = {}
        self._number_of_normal: dict[str, int] = {}
        self.normals: list[str] = []
        self.features: list[frozenset[Feature]] = []

    def number(self, texts: Sequence[str]) -> Ints:
        """Return the numbers of the texts' normalised forms, in their order."""
        for text in dict.fromkeys(texts):
            if text in self._number_of:
                continue
            normal = normalise(text)
            number = self._number_of[text] = self._number_of_normal.setdefault(normal, len(self.normals))
            if number == len(self.normals):
                self.normals.append(normal)
                self.features.append(_features(normal))
        return np.fromiter(map(self._number_of.__getitem__, texts), dtype=np.int64, count=len(texts))


def _features(normal: str) -> frozenset[Feature]:
    if normal in CLOSED_ANSWERS:
        return frozenset([f"={normal}"])  # no token of another text holds a "="
    tokens = normal.split()
    distinct = frozenset(tokens)
    if len(distinct) == len(tokens):
        return distinct
    return frozenset((token, nth) if nth else token for token, count in Counter(tokens).items() for nth in range(count))


class GoldenAnswers(NamedTuple):
    """The golden answers of Q questions as numbers into ``texts``.

    ``numbers_G`` and ``question_G`` go question by question; ``first_Q`` is where a question's begin in them. Each has
    at least one, and none twice.
    """

    spelled: tuple[tuple[str, ...], ...]
    texts: AnswerTexts
    numbers_G: Ints
    question_G: Ints
    first_Q: Ints


def number_golds(spelled: Sequence[tuple[str, ...]]) -> GoldenAnswers:
    """Number the golden answers of at least one question, each with at least one golden answer."""
    texts = AnswerTexts()
    spelled_G = texts.number([gold for golds in spelled for gold in golds])
    asked_G = np.repeat(np.arange(len(spelled)), [len(golds) for golds in spelled])
    question_G, numbers_G = np.divmod(np.unique(asked_G * len(texts.normals) + spelled_G), len(texts.normals))
    return GoldenAnswers(
        tuple(spelled), texts, numbers_G, question_G, np.searchsorted(question_G, np.arange(len(spelled)))
    )


def score_rows(golds: GoldenAnswers, question_N: Ints, preds: Sequence[str]) -> Floats:
    """Return every metric of each row, shape (N, M); :func:`deepsearch_rl.answers.score` gives the same for one row.

    ``question_N`` says which question a row answers, ``preds`` is the answer.
    """
    counts_N = np.diff(golds.first_Q, append=len(golds.question_G))[question_N]
    first_N = np.cumsum(counts_N) - counts_N
    row_P = np.repeat(np.arange(len(preds)), counts_N)
    gold_P = golds.numbers_G[np.arange(len(row_P)) + np.repeat(golds.first_Q[question_N] - first_N, counts_N)]
    pred_P = golds.texts.number(preds)[row_P]
    normals, features = golds.texts.normals, golds.texts.features
    pairs = list(zip(pred_P.tolist(), gold_P.tolist(), strict=True))
    common_P = np.array([len(features[pred] & features[gold]) for pred, gold in pairs], dtype=np.float64)
    contained_P = np.array([normals[gold] in normals[pred] and normals[gold] != "" for pred, gold in pairs])
    lengths_T = np.fromiter(map(len, features), dtype=np.float64, count=len(features))
    precision_P = common_P / np.maximum(lengths_T[pred_P], 1)
    recall_P = common_P / np.maximum(lengths_T[gold_P], 1)
    f1_P = np.divide(2 * precision_P * recall_P, precision_P + recall_P, out=np.zeros(len(pairs)), where=common_P > 0)
    columns = {"em": pred_P == gold_P, "f1": f1_P, "acc": contained_P, "precision": precision_P, "recall": recall_P}
    return np.maximum.reduceat(np.stack([columns[name] for name in METRICS], axis=1), first_N)


class ConstantAnswers:
    """Finds the best constant answer of all, or some, of the questions: what a model reaches that reads nothing.

    It is chosen on the questions that it is scored on, so no constant can do better. The F1 of two answers is
    ``2 * common / (length + length)``, so every feature that a candidate of length l shares with a question adds
    ``2 / (l + length)`` to it, with the shortest of the question's golden answers that has the feature at most. The sum
    of these is a bound, and exact where questions have one golden answer; candidates are scored in its order until no
    further one can win.
    """

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
