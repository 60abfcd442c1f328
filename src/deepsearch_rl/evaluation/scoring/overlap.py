"""Many answers scored at once, by the definitions of :mod:`deepsearch_rl.answers`.

Each distinct text is normalised once and kept as the set of its *features*, so that the tokens which two answers share,
counted with multiplicity, are the size of an intersection: a token's first occurrence is the token itself, its second
``(token, 1)`` and so on. A closed answer (yes, no, noanswer) has one feature of its own, which only its equals have.

Axes: Q questions, G golden answers of all questions, N rows, P pairs of a row with one of its golden answers,
T distinct texts, M metrics in the order of :data:`deepsearch_rl.answers.METRICS`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.answers import CLOSED_ANSWERS, METRICS, normalise

Feature = str | tuple[str, int]
Ints = NDArray[np.int64]


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


@dataclass(frozen=True, slots=True)
class GoldenAnswers:
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


def score_rows(golds: GoldenAnswers, question_N: Ints, preds: Sequence[str]) -> NDArray[np.float64]:
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
