"""Sentences and words of a text as character offsets.

A sentence ends at a newline; behind a CJK full stop; and at a full stop, question or exclamation mark (a closing quote
or bracket may follow) before white space and a capital or digit (behind an opening one, perhaps), unless the stop
belongs to an initial or an abbreviation. Words are runs of word characters, and every other visible character alone.

A text becomes an array of bytes, the classes of its characters, in which NumPy finds words and candidates of sentence
ends about ten times faster than a regular expression, which checks only what looks like an abbreviation.
"""

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]

BLOCK_CHARS = 1 << 18  # characters of a block; its arrays take about 30 bytes a character
MAX_SENTENCE_CHARS = 20_000  # longer sentences are cut at white space, so that no tokenizer gets megabytes at once

_WORD_CHARACTER, _SIGN, _STOP, _CJK_STOP, _CLOSING, _OPENING, _BEGINNING, _ABBREVIATING = (1 << bit for bit in range(8))
_VISIBLE = _WORD_CHARACTER | _SIGN
_CHARACTERS = {
    "\n.!?\u3002\uff01\uff1f": _STOP,
    "\u3002\uff01\uff1f": _CJK_STOP,
    "\"')]\u2019\u201d": _CLOSING,
    "\"'([\u2018\u201c": _OPENING,
    string.ascii_uppercase + string.digits: _BEGINNING,
    string.ascii_uppercase + "v": _ABBREVIATING,  # what an initial or an abbreviation begins with
}
_MARGIN = 8  # zeros around a block's classes, so that a look at nearby characters needs no bounds

_ABBREVIATIONS = (
    *("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "Sen", "Gov", "Gen", "Lt", "Col", "Inc", "Ltd", "No", "vs"),
    *("Jan", "Feb", "Mar", "Apr", "Aug", "Sept", "Sep", "Oct", "Nov", "Dec"),
)
_LONGEST_ABBREVIATION = max(map(len, _ABBREVIATIONS))
_FULL_STOP = re.compile(r"\.(?<!\b[A-Z]\.)" + "".join(rf"(?<!\b{abbreviation}\.)" for abbreviation in _ABBREVIATIONS))
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Sentences:
    """N neighbouring sentences of a text, none empty, without the white space around them."""

    starts_N: NDArray[np.int64]
    ends_N: NDArray[np.int64]
    words_N: NDArray[np.int64]
    """Words of each."""


def sentence_spans(text: str) -> Iterator[Span]:
    """Yield the sentences of a text, without surrounding white space and without empty ones."""
    for block in sentence_blocks(text):
        yield from zip(block.starts_N.tolist(), block.ends_N.tolist(), strict=True)


def word_spans(text: str) -> Iterator[Span]:
    """Yield the words of a text."""
    return (match.span() for match in _WORD.finditer(text))


def sentence_blocks(text: str, start: int = 0) -> Iterator[Sentences]:
    """Yield the sentences of a text from an offset on, block by block, in memory that does not grow with the text."""
    chars = BLOCK_CHARS
    while start < len(text):
        end = min(start + chars, len(text))
        sentences = _find_sentences(text, start, end)
        if end == len(text):
            yield sentences
            return
        # The last sentence may go on after the block: the next block begins with it.
        complete = Sentences(sentences.starts_N[:-1], sentences.ends_N[:-1], sentences.words_N[:-1])
        if len(complete.starts_N):
            yield complete
            start, chars = int(sentences.starts_N[-1]), BLOCK_CHARS
        else:
            chars *= 2


def _find_sentences(text: str, start: int, end: int) -> Sentences:
    """Return the sentences of ``text[start:end]``, as if the text ended there."""
    classes = _classes(text[start:end])
    # Bits: a sign always begins and ends a word, a word character does unless the one beside it is one as well.
    before, here, behind = classes[_MARGIN - 1 : -_MARGIN - 1], classes[_MARGIN:-_MARGIN], classes[_MARGIN + 1 :]
    words_T = np.flatnonzero((((before & _WORD_CHARACTER) ^ _VISIBLE) & here) != 0)
    ends_T = 1 + np.flatnonzero((((behind[: len(here)] & _WORD_CHARACTER) ^ _VISIBLE) & here) != 0)
    first_words_M = _first_words(text, start, classes, words_T)
    starts_N, ends_N, words_N = _between(first_words_M, words_T, ends_T)
    if len(starts_N) and int((ends_N - starts_N).max()) > MAX_SENTENCE_CHARS:
        more_M = np.fromiter(_cuts_of_long(text[start:end], starts_N, ends_N), np.int64)
        first_M = words_T[first_words_M]
        # A word that is cut counts on both sides.
        cuts_M = more_M[(here[more_M] & _VISIBLE) != 0]
        words_T = np.union1d(words_T, cuts_M)
        ends_T = np.union1d(ends_T, cuts_M[(before[cuts_M] & _VISIBLE) != 0])
        first_words_M = np.searchsorted(words_T, np.union1d(first_M, more_M))
        starts_N, ends_N, words_N = _between(first_words_M, words_T, ends_T)
    return Sentences(start + starts_N, start + ends_N, words_N)


def _classes(block: str) -> NDArray[np.uint8]:
    """Return a byte of class bits for each character, with a margin of zeros on both sides; white space is 0 too."""
    table, ascii_table = _tables()
    classes = np.zeros(len(block) + 2 * _MARGIN, np.uint8)
    classes[_MARGIN:-_MARGIN] = np.frombuffer(block.encode("ascii", "replace").translate(ascii_table), np.uint8)
    if not block.isascii():
        codes = np.frombuffer(block.encode("utf-32-le", "surrogatepass"), np.uint32)
        others = np.flatnonzero(codes > 127)
        classes[_MARGIN + others] = table[codes[others]]
    return classes


@cache
def _tables() -> tuple[NDArray[np.uint8], bytes]:
    """Return the class of every code point, and those of ASCII for ``bytes.translate``."""
    every = "".join(map(chr, range(0x110000)))
    table = np.full(len(every), _SIGN, np.uint8)
    for pattern, bits in ((r"\w+", _WORD_CHARACTER), (r"\s+", 0)):
        for run in re.finditer(pattern, every):
            table[run.start() : run.end()] = bits
    for characters, bits in _CHARACTERS.items():
        table[list(map(ord, characters))] |= bits
    return table, bytes(table[:128]).ljust(256, b"\0")


def _first_words(text: str, start: int, classes: NDArray[np.uint8], words_T: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions in ``words_T`` of the words that begin a sentence after another, some more than once."""
    stops_M = np.flatnonzero((classes[_MARGIN:-_MARGIN] & _STOP) != 0)
    kinds_M = classes[_MARGIN + stops_M]
    newline_M = (kinds_M & _VISIBLE) == 0
    certain_M = newline_M | ((kinds_M & _CJK_STOP) != 0)
    closed_M = (classes[_MARGIN + 1 + stops_M] & _CLOSING) != 0
    cuts_M = stops_M + ~newline_M + (closed_M & ~certain_M)
    kept_M = certain_M | ((classes[_MARGIN + cuts_M] & _VISIBLE) == 0)
    stops_M, certain_M = stops_M[kept_M], certain_M[kept_M]
    firsts_M = np.searchsorted(words_T, cuts_M[kept_M])
    there_M = firsts_M < len(words_T)
    stops_M, certain_M, firsts_M = stops_M[there_M], certain_M[there_M], firsts_M[there_M]
    next_M = _MARGIN + words_T[firsts_M]
    next_M += (classes[next_M] & (_OPENING | _BEGINNING)) == _OPENING
    ends_M = certain_M | ((classes[next_M] & _BEGINNING) != 0)
    # The word before the stop is perhaps an abbreviation: as short as one, and begins like one.
    perhaps_M = np.zeros(len(stops_M), dtype=np.bool_)
    for length in range(1, _LONGEST_ABBREVIATION + 1):
        begin_M = stops_M + (_MARGIN - length)
        is_first_M = (classes[begin_M - 1] & _WORD_CHARACTER) == 0
        perhaps_M |= is_first_M & ((classes[begin_M] & _ABBREVIATING) != 0)
    for position in np.flatnonzero(ends_M & ~certain_M & perhaps_M).tolist():
        stop = start + int(stops_M[position])
        ends_M[position] = text[stop] != "." or _FULL_STOP.match(text, stop) is not None
    return firsts_M[ends_M]


def _between(
    first_words_M: NDArray[np.int64], words_T: NDArray[np.int64], ends_T: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return starts, ends and numbers of words of the sentences; the first word and ``first_words_M`` begin them."""
    bounds = np.concatenate([[0], first_words_M, [len(words_T)]])
    words_N = np.diff(bounds)
    filled_N = words_N > 0
    return words_T[bounds[:-1][filled_N]], ends_T[bounds[1:][filled_N] - 1], words_N[filled_N]


def _cuts_of_long(block: str, starts_N: NDArray[np.int64], ends_N: NDArray[np.int64]) -> Iterator[int]:
    """Yield where sentences longer than MAX_SENTENCE_CHARS are cut: at the last blank within it, or at its end."""
    for number in np.flatnonzero(ends_N - starts_N > MAX_SENTENCE_CHARS).tolist():
        start, end = int(starts_N[number]), int(ends_N[number])
        while end - start > MAX_SENTENCE_CHARS:
            space = block.rfind(" ", start + 1, start + MAX_SENTENCE_CHARS)
            start = space + 1 if space > 0 else start + MAX_SENTENCE_CHARS
            yield start
