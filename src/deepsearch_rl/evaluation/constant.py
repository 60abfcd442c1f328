"""The best constant answer: what a model that reads nothing can reach by knowing the answers' frequencies.

It is chosen on the very questions that it is scored on, so no constant can do better. A model that does not beat it has
learnt nothing else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from deepsearch_rl.answers import CLOSED_ANSWERS, tokenise_gold

DIGITS = 12
"""Sums in another order may differ beyond them, and must not decide between equals."""
CANDIDATES_AT_ONCE = 256
"""Bounds memory: their overlaps with every golden answer are held together."""


@dataclass(frozen=True, slots=True)
class ConstantAnswer:
    """The one answer that scores best when given to every question; scores in [0, 1]."""

    answer: str
    f1: float
    em: float


def best_constant(golden_answers: Sequence[Sequence[str]]) -> ConstantAnswer:
    """The golden answer with the highest mean F1 (then EM, then the alphabet) over at least one question.

    The F1 of two answers is ``2 * common / (length + length)``, common tokens counted with multiplicity. Numbering
    a token's occurrences makes that the size of a set intersection, so that one sparse product scores every candidate
    against every golden answer (axes C and G); a question counts with its best golden answer.
    """
    texts = _spellings(golden_answers)
    normals = sorted(texts)
    place = {normal: index for index, normal in enumerate(normals)}
    golds_of = [sorted({place[tokenise_gold(gold).text] for gold in golds}) for golds in golden_answers]
    golds_G = np.concatenate([np.array(golds) for golds in golds_of])
    question_G = np.repeat(np.arange(len(golds_of)), [len(golds) for golds in golds_of])
    features_NF, lengths_N = _features(normals)
    em_N = np.bincount(golds_G, minlength=len(normals)) / len(golds_of)
    best = (-1.0, 0.0, "")
    # Every shared token adds 2 / (length + length) to an F1, at most 2 / (length + 1): a bound without scoring.
    frequency_F = np.asarray(features_NF[golds_G].sum(axis=0)).ravel()
    bound_N = 2 / (lengths_N + 1) * (features_NF @ frequency_F) / len(golds_of)
    for block_C in _blocks(np.argsort(-bound_N, kind="stable")):
        if bound_N[block_C[0]] < best[0]:
            break
        f1_C = _mean_f1(features_NF[block_C], lengths_N[block_C], features_NF[golds_G], lengths_N[golds_G], question_G)
        scored = zip(f1_C.round(DIGITS).tolist(), em_N[block_C].tolist(), block_C.tolist(), strict=True)
        entries = [(f1, em, texts[normals[candidate]]) for f1, em, candidate in scored]
        best = min([best, *entries], key=lambda entry: (-entry[0], -entry[1], entry[2]))
    return ConstantAnswer(best[2], best[0], best[1])


def _blocks(order_N: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (order_N[start : start + CANDIDATES_AT_ONCE] for start in range(0, len(order_N), CANDIDATES_AT_ONCE))


def _spellings(golden_answers: Iterable[Sequence[str]]) -> dict[str, str]:
    """For every normalised golden answer the first of its spellings in the alphabet."""
    spellings: dict[str, str] = {}
    for text in sorted({gold for golds in golden_answers for gold in golds}, reverse=True):
        spellings[tokenise_gold(text).text] = text
    return spellings


def _features(normals: Sequence[str]) -> tuple[csr_matrix, NDArray[np.float64]]:
    """Binary features_NF, one per token occurrence, and the answers' lengths in tokens."""
    columns: dict[tuple[str, int] | str, int] = {}
    indices, ends = list[int](), [0]
    for normal in normals:
        # A closed answer must match exactly: it shares a feature with its equals alone.
        seen: Counter[str] = Counter()
        for token in [f"={normal}"] if normal in CLOSED_ANSWERS else normal.split():
            indices.append(columns.setdefault((token, seen[token]), len(columns)))
            seen[token] += 1
        ends.append(len(indices))
    shape = (len(normals), max(1, len(columns)))
    features_NF = csr_matrix((np.ones(len(indices)), np.array(indices, dtype=np.int64), np.array(ends)), shape=shape)
    return features_NF, np.diff(ends).astype(np.float64)


def _mean_f1(
    candidates_CF: csr_matrix,
    lengths_C: NDArray[np.float64],
    golds_GF: csr_matrix,
    lengths_G: NDArray[np.float64],
    question_G: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Mean over questions of each candidate's best F1, shape (C,)."""
    common = (candidates_CF @ golds_GF.T).tocoo()
    f1_M = 2 * common.data / (lengths_C[common.row] + lengths_G[common.col])
    questions = int(question_G[-1]) + 1
    pair_M = common.row.astype(np.int64) * questions + question_G[common.col]
    order_M = np.lexsort((f1_M, pair_M))
    last_M = np.diff(pair_M[order_M], append=-1) != 0  # the best golden answer of each pair stands last
    best_M = order_M[last_M]
    return np.bincount(pair_M[best_M] // questions, f1_M[best_M], minlength=len(lengths_C)) / questions
