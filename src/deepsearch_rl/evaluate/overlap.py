"""Many answers scored at once as :mod:`deepsearch_rl.core.answers` defines it, and the constant answer.

Each distinct text is normalised once and kept as the set of its *features*, so that the tokens
which two answers share, counted with multiplicity, are the size of an intersection: a token's first
occurrence is the token itself, its second ``(token, 1)`` and so on. A closed answer (yes, no,
noanswer) has one feature of its own, which only its equals have.

Axes: Q questions, G golden answers of all questions, N rows, P pairs (of a row with one of its
golden answers, or of a candidate with a golden answer), T distinct texts, M metrics in the order of
:data:`deepsearch_rl.core.answers.METRICS`, F features, C candidates of the constant answer.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from deepsearch_rl.core.answers import CLOSED_ANSWERS, METRICS, normalise
from deepsearch_rl.evaluate.f1_row import ConstantScore

Feature = str | tuple[str, int]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
# Sums in another order may differ beyond them, and must not decide between equals
DIGITS = 12
# A bound this much below the best cannot win, however its sum was rounded
SLACK = 1e-9
# Bounds memory: their overlaps with every golden answer are held together
CANDIDATES_AT_ONCE = 256


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
            # Two spellings of one answer are one text for every score
            number = self._number_of_normal.setdefault(normal, len(self.normals))
            self._number_of[text] = number

            if number == len(self.normals):
                self.normals.append(normal)
                self.features.append(_features(normal))

        return np.fromiter(
            map(self._number_of.__getitem__, texts), dtype=np.int64, count=len(texts)
        )


def _features(normal: str) -> frozenset[Feature]:
    if normal in CLOSED_ANSWERS:
        # No token of another text holds a "="
        return frozenset([f"={normal}"])

    tokens = normal.split()
    distinct = frozenset(tokens)
    if len(distinct) == len(tokens):
        return distinct

    features: set[Feature] = set(distinct)
    for token, count in Counter(tokens).items():
        for nth in range(1, count):
            features.add((token, nth))

    return frozenset(features)


class GoldenAnswers(NamedTuple):
    """The golden answers of Q questions as numbers into ``texts``.

    ``numbers_G`` and ``question_G`` go question by question; ``first_Q`` is where a question's
    begin in them. Each has at least one, and none twice.
    """

    spelled: tuple[tuple[str, ...], ...]
    texts: AnswerTexts
    numbers_G: Ints
    question_G: Ints
    first_Q: Ints


def number_golds(spelled: Sequence[tuple[str, ...]]) -> GoldenAnswers:
    """Number the golden answers of at least one question, each with at least one golden answer."""
    texts = AnswerTexts()
    spelled_G = texts.number(list(itertools.chain.from_iterable(spelled)))
    asked_G = np.repeat(np.arange(len(spelled)), list(map(len, spelled)))

    # One number for question and text, so that a text which a question spells twice stands once.
    pairs_G = np.unique(asked_G * len(texts.normals) + spelled_G)
    question_G, numbers_G = np.divmod(pairs_G, len(texts.normals))
    first_Q = np.searchsorted(question_G, np.arange(len(spelled)))

    return GoldenAnswers(tuple(spelled), texts, numbers_G, question_G, first_Q)


def score_rows(golds: GoldenAnswers, question_N: Ints, preds: Sequence[str]) -> Floats:
    """Return every metric of each row, shape (N, M).

    :func:`deepsearch_rl.core.answers.score` gives the same for one row. ``question_N`` says which
    question a row answers, ``preds`` is the answer.
    """
    counts_N = np.diff(golds.first_Q, append=len(golds.question_G))[question_N]
    first_N = np.cumsum(counts_N) - counts_N

    # Row by row, a pair for each golden answer of the row's question.
    row_P = np.repeat(np.arange(len(preds)), counts_N)
    place_P = np.arange(len(row_P)) + np.repeat(golds.first_Q[question_N] - first_N, counts_N)
    gold_P = golds.numbers_G[place_P]
    pred_P = golds.texts.number(preds)[row_P]

    normals = golds.texts.normals
    features = golds.texts.features
    pairs = list(zip(pred_P.tolist(), gold_P.tolist(), strict=True))
    common_P = np.array(
        [len(features[pred] & features[gold]) for pred, gold in pairs],
        dtype=np.float64,
    )
    contained_P = np.array(
        [normals[gold] in normals[pred] and normals[gold] != "" for pred, gold in pairs],
    )

    lengths_T = np.fromiter(map(len, features), dtype=np.float64, count=len(features))
    precision_P = common_P / np.maximum(lengths_T[pred_P], 1)
    recall_P = common_P / np.maximum(lengths_T[gold_P], 1)
    product_P = 2 * precision_P * recall_P
    f1_P = np.divide(
        product_P, precision_P + recall_P, out=np.zeros(len(pairs)), where=common_P > 0
    )

    columns = {
        "em": pred_P == gold_P,
        "f1": f1_P,
        "acc": contained_P,
        "precision": precision_P,
        "recall": recall_P,
    }
    metrics_PM = np.stack([columns[name] for name in METRICS], axis=1)
    return np.maximum.reduceat(metrics_PM, first_N)


class ConstantAnswers:
    """Finds the golden answer that scores best when it is given to all, or some, of the questions.

    It stands for a model that reads nothing, and is chosen on the questions that it is scored on. A
    text that is no golden answer may score higher: one of several frequent tokens shares some of
    them with more questions. The F1 of two answers is ``2 * common / (length + length)``,
    so every feature that a candidate of length l shares with a question adds ``2 / (l + length)``
    to it, with the shortest of the question's golden answers that has the feature at most. The sum
    of these is a bound, and exact where questions have one golden answer; candidates are scored in
    its order until no further one can win.
    """

    def __init__(self, golds: GoldenAnswers) -> None:
        self._golds = golds
        sets = golds.texts.features[: int(golds.numbers_G.max()) + 1]

        # A sparse matrix with a line per text: the columns of its features, one text after the
        # other.
        column_of: dict[Feature, int] = {}
        columns: list[int] = []
        for features in sets:
            columns += [column_of.setdefault(feature, len(column_of)) for feature in features]

        self._lengths_T = np.fromiter(map(len, sets), dtype=np.int64, count=len(sets))
        ends = np.concatenate([[0], np.cumsum(self._lengths_T)])
        self._features = max(1, len(column_of))
        self._features_TF = csr_matrix(
            (np.ones(len(columns)), np.array(columns, dtype=np.int64), ends),
            shape=(len(sets), self._features),
        )

    def best(self, chosen_Q: NDArray[np.bool_] | None = None) -> ConstantScore:
        """Return the golden answer with the highest mean F1, then EM, then the first in the alphabet.

        ``chosen_Q`` marks the questions that count, at least one; None: all.
        """
        golds = self._golds
        chosen_G = slice(None) if chosen_Q is None else chosen_Q[golds.question_G]
        numbers_G = golds.numbers_G[chosen_G]
        original_question_G = golds.question_G[chosen_G]
        _, question_G = np.unique(original_question_G, return_inverse=True)

        em_T = np.bincount(numbers_G, minlength=len(self._lengths_T)) / (question_G[-1] + 1)
        f1_T = self._best_f1(numbers_G, question_G)
        tied_T = f1_T == f1_T.max()
        tied_T &= em_T == em_T[tied_T].max()
        winner = int(np.argmax(tied_T))

        # The alphabet decides between spellings, of which several may have the same normalised
        # text.
        spellings: list[str] = []
        for question in np.unique(original_question_G[tied_T[numbers_G]]).tolist():
            spellings.extend(golds.spelled[question])
        is_tied = tied_T[golds.texts.number(spellings)]
        answer = min(np.array(spellings, dtype=object)[is_tied])

        return ConstantScore(answer=answer, f1=float(f1_T[winner]), em=float(em_T[winner]))

    def _best_f1(self, numbers_G: Ints, question_G: Ints) -> Floats:
        """Return the mean F1 of every candidate that can be the best, rounded; -1 for all others."""
        bound_T = self._bound(numbers_G, question_G)
        candidates_C = np.unique(numbers_G)
        questions = int(question_G[-1]) + 1
        f1_T = np.full(len(bound_T), -1.0)

        # One golden answer each, so the bound is exact
        if len(question_G) == questions:
            f1_T[candidates_C] = bound_T[candidates_C].round(DIGITS)
            return f1_T

        features_GF = self._features_TF[numbers_G]
        lengths_G = self._lengths_T[numbers_G]
        order_C = candidates_C[np.argsort(-bound_T[candidates_C], kind="stable")]

        # The bound is often so sharp that a small first block decides.
        start = 0
        size = 8

        while start < len(order_C) and bound_T[order_C[start]] >= f1_T.max() - SLACK:
            block_C = order_C[start : start + size]
            f1_T[block_C] = self._mean_f1(block_C, features_GF, lengths_G, question_G).round(DIGITS)

            start += size
            size = min(2 * size, CANDIDATES_AT_ONCE)

        return f1_T

    def _mean_f1(
        self,
        block_C: Ints,
        features_GF: csr_matrix,
        lengths_G: Ints,
        question_G: Ints,
    ) -> Floats:
        """Return the mean F1 of each candidate of a block, given to every question."""
        common = (self._features_TF[block_C] @ features_GF.T).tocoo()
        f1_P = 2 * common.data / (self._lengths_T[block_C][common.row] + lengths_G[common.col])

        # One number for candidate and question. Of its pairs, the best golden answer comes last.
        questions = int(question_G[-1]) + 1
        cell_P = common.row.astype(np.int64) * questions + question_G[common.col]
        order_P = np.lexsort((f1_P, cell_P))
        best_P = order_P[np.diff(cell_P[order_P], append=-1) != 0]

        sums_C = np.bincount(cell_P[best_P] // questions, f1_P[best_P], minlength=len(block_C))
        return sums_C / questions

    def _bound(self, numbers_G: Ints, question_G: Ints) -> Floats:
        """Return an upper bound of each text's mean F1.

        Of each question, a feature counts with the shortest golden answer that has it. A question's
        pair of feature and length is one number, so that sorting puts the shortest first.
        """
        features_GF = self._features_TF[numbers_G]
        lengths_G = self._lengths_T[numbers_G]
        beyond = int(lengths_G.max()) + 1

        # Every feature of every golden answer, packed by question, feature and length.
        question_features = np.repeat(question_G, lengths_G) * self._features + features_GF.indices
        packed = np.sort(question_features * beyond + np.repeat(lengths_G, lengths_G))
        question_features, lengths = np.divmod(packed, beyond)

        # Of each question and feature the shortest, then counted by feature and length.
        is_shortest = np.diff(question_features, prepend=-1) != 0
        features = question_features[is_shortest] % self._features
        packed, counts = np.unique(features * beyond + lengths[is_shortest], return_counts=True)
        features, lengths = np.divmod(packed, beyond)

        bound_T = np.zeros(len(self._lengths_T))
        starts_T = self._features_TF.indptr

        for length in np.unique(self._lengths_T[numbers_G]):
            share_F = np.bincount(
                features, 2 * counts / (length + lengths), minlength=self._features
            )

            # Candidates of one length have equally many features: a matrix of C x length.
            same_C = np.flatnonzero(self._lengths_T == length)
            places = starts_T[same_C][:, None] + np.arange(length)
            bound_T[same_C] = share_F[self._features_TF.indices[places]].sum(axis=1)

        return bound_T / (question_G[-1] + 1)


def best_constant(golden_answers: Sequence[tuple[str, ...]]) -> ConstantScore:
    """Return the constant answer to at least one question, each with at least one golden answer."""
    return ConstantAnswers(number_golds(golden_answers)).best()
