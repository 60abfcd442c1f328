"""From text to the terms that lexical indexes count: documents and queries go through the same three steps.

Text is lower-cased and split at everything but word characters; English stop words are dropped; what is left is
stemmed (Snowball English). Stemming costs ten times what a look-up does, and a corpus repeats its words, so that the
stems of the last words seen are kept.
"""

import re
from functools import cache, lru_cache

import Stemmer

STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not",
    "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will",
    "with"
})  # fmt: skip
"""Lucene's English stop words, which the published BM25 baselines drop."""
STEMS_KEPT = 1 << 17

_WORD = re.compile(r"\w+")


@cache
def _stemmer() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("english", 0)  # without the stemmer's own, slower cache


def split_words(text: str) -> list[str]:
    """The lower-cased words of a text in order, stop words among them."""
    return _WORD.findall(text.lower())


@lru_cache(STEMS_KEPT)
def stem(word: str) -> str:
    """The term that a lower-cased word counts as; empty for a stop word."""
    return "" if word in STOP_WORDS else _stemmer().stemWord(word)


def analyse(text: str) -> list[str]:
    """The terms of a text in order, repeated ones as often as they occur."""
    return [term for term in map(stem, split_words(text)) if term]
