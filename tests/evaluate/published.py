"""The definitions of SQuAD v1.1 and FlashRAG, written out plainly: what every score is held against."""

import string
from collections import Counter
from collections.abc import Sequence

CLOSED = {"yes", "no", "noanswer"}


def normal(text: str) -> str:
    """Lower-case, drop ASCII punctuation, drop articles at word boundaries, collapse white space."""
    letters = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return " ".join(_without_articles(letters).split())


def _without_articles(text: str) -> str:
    """A word is a longest run of letters, digits and underscores; one that is an article becomes a blank."""
    words, word = [""], False
    for letter in text:
        if (letter.isalnum() or letter == "_") != word:
            word = not word
            words.append("")
        words[-1] += letter
    return "".join(" " if word in ("a", "an", "the") else word for word in words)


def published(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """Every metric of one answer; an empty gold is no match for acc."""
    overlaps = [_overlap(normal(prediction), normal(gold)) for gold in golds]
    return {
        "em": float(any(normal(prediction) == normal(gold) for gold in golds)),
        "f1": max(f1 for f1, _, _ in overlaps),
        "acc": float(any(normal(gold) and normal(gold) in normal(prediction) for gold in golds)),
        "precision": max(precision for _, precision, _ in overlaps),
        "recall": max(recall for _, _, recall in overlaps),
    }


def _overlap(ours: str, theirs: str) -> tuple[float, float, float]:
    if (ours in CLOSED or theirs in CLOSED) and ours != theirs:
        return 0.0, 0.0, 0.0
    same = sum((Counter(ours.split()) & Counter(theirs.split())).values())
    if not same:
        return 0.0, 0.0, 0.0
    precision, recall = same / len(ours.split()), same / len(theirs.split())
    return 2 * precision * recall / (precision + recall), precision, recall
