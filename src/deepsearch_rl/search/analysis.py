"""From a chunk to the terms that lexical indexes count, and to their keys.

The texts of a chunk that can be searched and weighted separately (a chunk without the metadata has
an empty field):

    contents   title and body, as the chunk file holds them
    title      the first line of the contents
    body       everything below it
    source     ``metadata.source``, e.g. the newspaper
    date       the day of ``metadata.published_at`` as questions write it: "October 30 2023"

Documents and queries are lower-cased and split at everything but word characters; English stop
words are dropped; the rest is stemmed (Snowball English).

Scripts that put no blank between words (Chinese, Japanese, Thai, ...) have no words that a rule
could find. There a term is a pair of neighbouring letters, as in Lucene's CJKAnalyzer: n letters
have n - 1 pairs, and a letter that stands alone is a term itself. BM25 indexes the letters of the
pairs as well, so that a query of one letter finds them; they do not make a passage longer.

A combining mark (a vowel sign of Hindi, a tone of Thai, a detached accent) belongs to the letter
before it. Texts with such marks or scripts are brought to Unicode's form NFC first. HTML entities,
ligatures, subscripts and letters of full or half width become the letters that they stand for, and
invisible characters (soft hyphens, blanks without width, directions of writing) are dropped, a soft
hyphen with the end of its line.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Literal

import Stemmer

from deepsearch_rl.core.records import Chunk
from deepsearch_rl.data.sentences import MARKS
from deepsearch_rl.search.dates import written_date

FieldName = Literal["contents", "title", "source", "date", "body"]

# Lucene's English stop words, which the published BM25 baselines drop.
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not",
    "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will",
    "with"
})  # fmt: skip

# Stemming costs ten times what a look-up does, and a corpus repeats its words.
CACHED_STEMS = 1 << 17
CACHED_KEYS = 1 << 16

_WORD = re.compile(r"\w+")

# The scripts without blanks between words, as ranges of a regular expression's class.
#
# They are those of the line-breaking classes SA, ID and CJ (Unicode Standard Annex 14) whose
# characters are letters.
UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    # Tai Le, Tai Lue, Tai Tham, Tai Viet, Ahom
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf\U00011700-\U0001174f"
    "\u1b00-\u1b7f\ua980-\ua9df"  # Balinese, Javanese
    # Hangul, whose particles follow without a blank
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
    "\u3005-\u3007\u3021-\u3029\u3031-\u303c\u3040-\u30ff\u31f0-\u31ff\U0001aff0-\U0001b16f"  # Japanese
    "\u3100-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\ua4cf\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese, Yi
)
_WIDTHS = "\uff01-\uffdc"  # full-width ASCII, half-width katakana and Hangul
# Letters that are several, or another one in a certain shape: ligatures, digraphs, subscripts, widths
_COMPOUND = f"\u0132\u0133\u0149\u017f\u01c4-\u01cc\u01f1-\u01f3\u2080-\u209c\ufb00-\ufdff\ufe70-\ufefc{_WIDTHS}"
_JOINERS = "\u200c\u200d"
# What nobody sees: hyphens for the end of a line, blanks without width, directions of writing,
# selectors of shapes, and other characters that Unicode lets programs ignore; enclosing marks
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u0488\u0489\u1abe\u20dd-\u20e4\ua670-\ua672"
)
_STEMMER = Stemmer.Stemmer("english", 0)  # without its own, slower cache


def field_text(chunk: Chunk, name: FieldName) -> str:
    """Return the text of a chunk's field; empty where the chunk does not have it."""
    if name == "contents":
        return chunk.contents
    if name in ("title", "body"):
        return chunk.title if name == "title" else chunk.text
    metadata = chunk.metadata.model_extra or {}
    if name == "date":
        return written_date(metadata.get("published_at"))
    source = metadata.get("source")
    return source if isinstance(source, str) else ""


# What the plain pattern cannot split: marks, Indic letters that NFC turns into such, scripts
# without blanks, what is normalised
_SPECIAL = re.compile(
    f"[{MARKS}{UNSPACED}{_COMPOUND}{_INVISIBLE}{_JOINERS}\u0958-\u095f\u09dc-\u09df\u0a33-\u0a5e]"
)
_COMPOUNDS = re.compile(f"[{_COMPOUND}]+")
# Between Arabic letters a joiner parts words
_DROPPED = re.compile(
    f"\u00ad\\s*\n\\s*|[{_INVISIBLE}]+|(?<![\u0620-\u064a\u066e-\u06d3])[{_JOINERS}]"
)
_ENTITY = re.compile(r"&(?:\w+|#\w+);")
_UNSPACED = re.compile(f"[{UNSPACED}{_WIDTHS}]")
_LETTER = re.compile(f"[{UNSPACED}][{MARKS}]*")
# A run of letters without blanks, group 1, or a word
_PIECE = re.compile(
    f"((?:(?=\\w)[{UNSPACED}][{MARKS}]*)+)|[^\\W{UNSPACED}](?:[^\\W{UNSPACED}]+|[{MARKS}]+)*"
)


def has_unspaced(text: str) -> bool:
    """Return whether a text holds letters of a script without blanks between words."""
    return not text.isascii() and _UNSPACED.search(text) is not None


def split_words(text: str) -> list[str]:
    """Return the lower-cased words of a text in order, stop words among them; pairs of letters where it has none."""
    text = _lower(text)

    # The plain pattern is the faster one, and nearly all English text goes this way.
    if text.isascii() or not _SPECIAL.search(text):
        return _WORD.findall(text)

    words: list[str] = []

    for piece in _pieces(text):
        if isinstance(piece, str):
            words.append(piece)
        else:
            words += [first + second for first, second in pairwise(piece)] or piece

    return words


def _lower(text: str) -> str:
    """Return a text in lower case, HTML entities as what they stand for; some are escaped twice."""
    if "&" in text:
        for _ in range(2):
            text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)

    return text.lower()


def inner_letters(text: str) -> list[str]:
    """Return the letters that :func:`split_words` shows in pairs alone, so that a query of one letter can find them."""
    text = _lower(text)
    if not has_unspaced(text):
        return []

    letters: list[str] = []
    for piece in _pieces(text):
        if not isinstance(piece, str) and len(piece) > 1:
            letters += piece

    return letters


def _pieces(text: str) -> Iterator[str | list[str]]:
    """Yield every word of a lower-cased text, and every run of letters without blanks as the list of its letters."""
    text = _DROPPED.sub("", text)
    text = _COMPOUNDS.sub(lambda match: unicodedata.normalize("NFKC", match[0]).lower(), text)
    text = unicodedata.normalize("NFC", text)
    for match in _PIECE.finditer(text):
        yield _LETTER.findall(match[0]) if match[1] else match[0]


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

    The probability that any two of ten million terms share a key is 3e-6; they would then count as
    one term.
    """
    digest = blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
