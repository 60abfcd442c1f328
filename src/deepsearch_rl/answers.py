r"""Answers and their scores: SQuAD-style normalisation and token overlap, as FlashRAG and Search-R1 define them.

Normalisation follows SQuAD v1.1's official script in FlashRAG's order: lower-case, drop ASCII punctuation, drop the
articles ``a|an|the``, collapse white space. Every score lies in [0, 1] and is the maximum over the golden answers.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
SUCCESS_F1 = 0.8
"""A trajectory is a success from this F1 on (the original's filter)."""
INSUFFICIENT = "Insufficient information."
"""The golden answer of a question that the corpus cannot answer."""


def extract_answer(text: str) -> str:
    """The stripped text between the last ``<answer>`` and the last ``</answer>``; empty where there is no such pair.

    An answer that was opened again and not closed (``<answer>x</answer> <answer>y``) is cut off, so it is empty.
    """
    start, end = text.rfind("<answer>"), text.rfind("</answer>")
    return text[start + len("<answer>") : end].strip() if 0 <= start < end else ""


def normalise(text: str) -> str:
    """Lower-case, drop punctuation and articles, collapse white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


class Overlap(NamedTuple):
    """Token overlap of one prediction with one golden answer."""

    f1: float
    precision: float
    recall: float


_NO_OVERLAP = Overlap(0.0, 0.0, 0.0)


def _overlap(prediction: str, golden: str) -> Overlap:
    if (prediction in _CLOSED_ANSWERS or golden in _CLOSED_ANSWERS) and prediction != golden:
        return _NO_OVERLAP
    prediction_tokens, golden_tokens = prediction.split(), golden.split()
    common = sum((Counter(prediction_tokens) & Counter(golden_tokens)).values())
    if common == 0:
        return _NO_OVERLAP
    precision, recall = common / len(prediction_tokens), common / len(golden_tokens)
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def _best(prediction: str, golds: Sequence[str], score: Callable[[str, str], float]) -> float:
    normalised = normalise(prediction)
    return max((score(normalised, normalise(gold)) for gold in golds), default=0.0)


def em(prediction: str, golds: Sequence[str]) -> float:
    """1 if the normalised prediction equals a normalised golden answer, else 0; ``em("", [""])`` is 1."""
    return _best(prediction, golds, lambda answer, gold: float(answer == gold))


def acc(prediction: str, golds: Sequence[str]) -> float:
    """1 if a golden answer is a substring of the prediction (both normalised), else 0; an empty gold never matches."""
    return _best(prediction, golds, lambda answer, gold: float(bool(gold) and gold in answer))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Token F1 (SQuAD v1.1); a closed answer (yes, no, noanswer) on either side must match exactly."""
    return _best(prediction, golds, lambda answer, gold: _overlap(answer, gold).f1)


def precision(prediction: str, golds: Sequence[str]) -> float:
    """Token precision, maximised over the golden answers on its own, as FlashRAG does."""
    return _best(prediction, golds, lambda answer, gold: _overlap(answer, gold).precision)


def recall(prediction: str, golds: Sequence[str]) -> float:
    """Token recall, maximised over the golden answers on its own, as FlashRAG does."""
    return _best(prediction, golds, lambda answer, gold: _overlap(answer, gold).recall)


METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "em": em,
    "f1": f1,
    "acc": acc,
    "precision": precision,
    "recall": recall,
}
"""Metric name -> function of (prediction, golden answers)."""
