"""Answers and their scores, as FlashRAG and Search-R1 define them: SQuAD normalisation and token overlap.

Normalisation follows SQuAD v1.1's official script in FlashRAG's order: lower-case, drop ASCII
punctuation, drop the articles ``a|an|the``, collapse white space. Every score lies in [0, 1] and is
the maximum over the golden answers.
"""

import re
import string
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import NamedTuple

from deepsearch_rl.core.records import Trajectory

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = string.punctuation.encode()

# Normalised answers that match exactly or not at all (HotpotQA's rule)
CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})

# A trajectory is a success from this F1 on (the original's filter)
SUCCESS_F1 = 0.8

# The golden answer of unanswerable questions
INSUFFICIENT = "Insufficient information."


def extract_answer(text: str) -> str:
    """Return the stripped text between the last ``<answer>`` and the last ``</answer>``; empty without such a pair."""
    start = text.rfind("<answer>")
    end = text.rfind("</answer>")
    return text[start + len("<answer>") : end].strip() if 0 <= start < end else ""


def has_answer_tags(text: str) -> bool:
    """Return whether the last closing answer tag stands after the last opening one (see :func:`extract_answer`)."""
    return 0 <= text.rfind("<answer>") < text.rfind("</answer>")


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation and articles, white space collapsed."""
    # Deleting ASCII from UTF-8 bytes is several times faster than from text
    encoded = text.lower().encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", encoded.decode("utf-8", "surrogatepass")).split())


def word_similarity(one: Set[str], other: Set[str]) -> float:
    """Return the Jaccard similarity of two questions' normalised words, 0 where both have none."""
    return len(one & other) / max(1, len(one | other))


def is_refusal(answer: str) -> bool:
    """Return whether a normalised answer is "Insufficient information"."""
    return normalise(answer) == normalise(INSUFFICIENT)


class AnswerScores(NamedTuple):
    """Every metric of one answer, each in [0, 1] and each the best over the golden answers on its own."""

    # 1 if the normalised texts are equal; two empty texts are
    em: float
    # Token F1 (SQuAD v1.1); a closed answer (yes, no, noanswer) on either side must match exactly
    f1: float
    # 1 if the normalised golden answer is a non-empty substring of the normalised prediction
    acc: float
    # Share of the prediction's tokens in the golden answer; FlashRAG maximises it independently of F1
    precision: float
    # Share of the golden answer's tokens in the prediction, maximised independently as well
    recall: float


METRICS = AnswerScores._fields
# Also the score of every failed rollout
ZERO = AnswerScores(0.0, 0.0, 0.0, 0.0, 0.0)
_EQUAL = AnswerScores(1.0, 1.0, 1.0, 1.0, 1.0)
_BOTH_EMPTY = AnswerScores(1.0, 0.0, 0.0, 0.0, 0.0)


class _Tokens(NamedTuple):
    """A normalised text and its tokens."""

    text: str
    tokens: list[str]
    distinct: frozenset[str]


def _tokenise(text: str) -> _Tokens:
    normalised = normalise(text)
    return _Tokens(normalised, tokens := normalised.split(), frozenset(tokens))


# Golden answers repeat across samples and questions; predictions hardly do
_tokenise_gold = lru_cache(maxsize=1 << 16)(_tokenise)


def score(prediction: str, golds: Sequence[str]) -> AnswerScores:
    """Score one answer against every golden answer; all zero if there is none."""
    answer = _tokenise(prediction)
    scores = [_score_one(answer, _tokenise_gold(gold)) for gold in golds]

    # The common case, without comparisons
    if len(scores) == 1:
        return scores[0]
    return AnswerScores(*map(max, zip(*scores, strict=True))) if scores else ZERO


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Return the F1 of :func:`score`."""
    return score(prediction, golds).f1


def score_rollout(trajectory: Trajectory) -> AnswerScores:
    """Score the answer of a rollout against its golden answers; all zero if it failed."""
    return trajectory.score(lambda rollout: score(rollout.answer, rollout.golden_answers), ZERO)


def _score_one(answer: _Tokens, gold: _Tokens) -> AnswerScores:
    if answer.text == gold.text:
        return _EQUAL if gold.text else _BOTH_EMPTY
    acc = float(bool(gold.text) and gold.text in answer.text)
    closed = answer.text in CLOSED_ANSWERS or gold.text in CLOSED_ANSWERS
    shared = frozenset[str]() if closed else answer.distinct & gold.distinct
    if not shared:
        return AnswerScores(0.0, 0.0, acc, 0.0, 0.0)

    # Tokens in common with multiplicity, which only repeated tokens in both texts can raise
    common = len(shared)
    if len(answer.distinct) < len(answer.tokens) and len(gold.distinct) < len(gold.tokens):
        common = sum(min(answer.tokens.count(token), gold.tokens.count(token)) for token in shared)

    precision = common / len(answer.tokens)
    recall = common / len(gold.tokens)
    return AnswerScores(0.0, 2 * precision * recall / (precision + recall), acc, precision, recall)
