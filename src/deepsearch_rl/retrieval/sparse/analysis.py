"""From a chunk to the terms that lexical indexes count, and to their keys.

The texts of a chunk that can be searched and weighted separately (a chunk without the metadata has an empty field):

    contents   title and body, as the chunk file holds them
    title      the first line of the contents
    body       everything below it
    source     ``metadata.source``, e.g. the newspaper
    date       the day of ``metadata.published_at`` as questions write it: "October 30 2023"

Documents and queries are lower-cased and split at everything but word characters; English stop words are dropped; the
rest is stemmed (Snowball English).
"""

import re
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import Stemmer

from deepsearch_rl.records import Chunk

FieldName = Literal["contents", "title", "source", "date", "body"]
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not",
    "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will",
    "with"
})  # fmt: skip
"""Lucene's English stop words, which the published BM25 baselines drop."""
CACHED_STEMS = 1 << 17  # stemming costs ten times what a look-up does, and a corpus repeats its words
CACHED_KEYS = 1 << 16

_WORD = re.compile(r"\w+")
_STEMMER = Stemmer.Stemmer("english", 0)  # without its own, slower cache


def field_text(chunk: Chunk, name: FieldName) -> str:
    """Return the text of a chunk's field; empty where the chunk does not have it."""
    if name == "contents":
        return chunk.contents
    if name in ("title", "body"):
        return chunk.title if name == "title" else chunk.text
    value = (chunk.metadata.model_extra or {}).get("source" if name == "source" else "published_at")
    text = value if isinstance(value, str) else ""
    return written_date(text) if name == "date" else text


def written_date(published_at: str) -> str:
    """Return the day of an ISO 8601 date or time in words ("October 30 2023"); any other text as it stands."""
    try:
        day = datetime.fromisoformat(published_at)
    except ValueError:
        return published_at
    return f"{MONTHS[day.month - 1]} {day.day} {day.year}"


def split_words(text: str) -> list[str]:
    """Return the lower-cased words of a text in order, stop words among them."""
    return _WORD.findall(text.lower())


@lru_cache(CACHED_STEMS)
def stem(word: str) -> str:
    """Return the term that a lower-cased word counts as; empty for a stop word."""
    return "" if word in STOP_WORDS else _STEMMER.stemWord(word)


def analyse(text: str) -> list[str]:
    """Return the terms of a text in order, repeated ones as often as they occur."""
    return [term for term in map(stem, split_words(text)) if term]


@lru_cache(CACHED_KEYS)
def term_key(term: str) -> int:
    """Return the key of a term, from 0 to 2**64 - 1: its BLAKE2b digest, so that a vocabulary is one sorted array.

    The probability that any two of ten million terms share a key is 3e-6; they would then count as one term.
    """
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
