"""From text to the terms that lexical indexes count: documents and queries go through the same three steps."""

import re
from functools import cache

import Stemmer
from bm25s.stopwords import STOPWORDS_EN

_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset(STOPWORDS_EN)
"""Lucene's English stop words, which the published BM25 baselines drop."""


@cache
def _stemmer() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("english")


def analyse(text: str) -> list[str]:
    """Lower-case, split at everything but word characters, drop English stop words, stem (Snowball English)."""
    words = [word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]
    return _stemmer().stemWords(words)
