"""Sentences and words of a text as character offsets.

A sentence ends at a newline; behind a CJK full stop; and at a full stop, question or exclamation
mark (a closing quote or bracket may follow) before white space and a capital or digit (behind an
opening one, perhaps), unless the stop belongs to an initial or an abbreviation. Words are runs of
word characters, and every other visible character alone.

A text becomes an array of bytes, the classes of its characters, in which NumPy finds words and
candidates of sentence ends about ten times faster than a regular expression, which checks only what
looks like an abbreviation.
"""

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]

# Characters of a block; its arrays take about 30 bytes a character.
BLOCK_CHARS = 1 << 18

# Longer sentences are cut at white space, so that no tokenizer gets megabytes at once.
MAX_SENTENCE_CHARS = 20_000

# The classes of a character, one bit each.
_WORD_CHARACTER = 1 << 0
_SIGN = 1 << 1
_STOP = 1 << 2
_CJK_STOP = 1 << 3
_CLOSING = 1 << 4
_OPENING = 1 << 5
_BEGINNING = 1 << 6
_ABBREVIATING = 1 << 7
_VISIBLE = _WORD_CHARACTER | _SIGN
_CHARACTERS = {
    "\n.!?\u3002\uff01\uff1f": _STOP,
    "\u3002\uff01\uff1f": _CJK_STOP,
    "\"')]\u2019\u201d": _CLOSING,
    "\"'([\u2018\u201c": _OPENING,
    string.ascii_uppercase + string.digits: _BEGINNING,
    # What an initial or an abbreviation begins with
    string.ascii_uppercase + "v": _ABBREVIATING,
}

# Zeros around a block's classes, so that a look at nearby characters needs no bounds.
_MARGIN = 8

_ABBREVIATIONS = (
    *("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "Sen", "Gov", "Gen", "Lt", "Col"),
    *("Inc", "Ltd", "No", "vs"),
    *("Jan", "Feb", "Mar", "Apr", "Aug", "Sept", "Sep", "Oct", "Nov", "Dec"),
)
_LONGEST_ABBREVIATION = max(map(len, _ABBREVIATIONS))
_BEHIND_NO_INITIAL = r"(?<!\b[A-Z]\.)"
_BEHIND_NO_ABBREVIATION = "".join(rf"(?<!\b{abbreviation}\.)" for abbreviation in _ABBREVIATIONS)
_FULL_STOP = re.compile(r"\." + _BEHIND_NO_INITIAL + _BEHIND_NO_ABBREVIATION)
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Sentences:
    """N neighbouring sentences of a text, none empty, without the white space around them."""

    starts_N: NDArray[np.int64]
    ends_N: NDArray[np.int64]
    # Words of each
    words_N: NDArray[np.int64]


def sentence_spans(text: str) -> Iterator[Span]:
    """Yield the sentences of a text, without surrounding white space and without empty ones."""
    for block in sentence_blocks(text):
        yield from zip(block.starts_N.tolist(), block.ends_N.tolist(), strict=True)


def word_spans(text: str) -> Iterator[Span]:
    """Yield the words of a text."""
    return (match.span() for match in _WORD.finditer(text))


def sentence_blocks(text: str, start: int = 0) -> Iterator[Sentences]:
    """Yield the sentences of a text from an offset on, block by block.

    Memory does not grow with the text.
    """
    chars = BLOCK_CHARS
    while start < len(text):
        end = min(start + chars, len(text))
        sentences = _find_sentences(text, start, end)
        if end == len(text):
            yield sentences
            return

        # The last sentence may go on after the block: the next block begins with it.
        complete = Sentences(
            sentences.starts_N[:-1],
            sentences.ends_N[:-1],
            sentences.words_N[:-1],
        )
        if len(complete.starts_N):
            yield complete
            start = int(sentences.starts_N[-1])
            chars = BLOCK_CHARS
        else:
            chars *= 2


def _find_sentences(text: str, start: int, end: int) -> Sentences:
    """Return the sentences of ``text[start:end]``, as if the text ended there."""
    classes = _classes(text[start:end])
    before = classes[_MARGIN - 1 : -_MARGIN - 1]
    here = classes[_MARGIN:-_MARGIN]
    behind = classes[_MARGIN + 1 : 1 - _MARGIN]
    words_T = np.flatnonzero(_at_edge_of_word(here, before))
    ends_T = 1 + np.flatnonzero(_at_edge_of_word(here, behind))

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


def _at_edge_of_word(here: NDArray[np.uint8], beside: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which characters begin (or end) a word, by the classes of their neighbours on that side.

    A sign always does. A word character does unless its neighbour is one as well.
    """
    # Flipping the neighbour's bits leaves those of the classes that make an edge here.
    edge_classes = (beside & _WORD_CHARACTER) ^ _VISIBLE
    return (edge_classes & here) != 0


def _classes(block: str) -> NDArray[np.uint8]:
    """Return a byte of class bits for each character, with a margin of zeros on both sides.

    White space is 0 too.
    """
    table, ascii_table = _tables()
    classes = np.zeros(len(block) + 2 * _MARGIN, np.uint8)
    ascii_classes = block.encode("ascii", "replace").translate(ascii_table)
    classes[_MARGIN:-_MARGIN] = np.frombuffer(ascii_classes, np.uint8)

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


def _first_words(
    text: str,
    start: int,
    classes: NDArray[np.uint8],
    words_T: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the positions in ``words_T`` of the words that begin a sentence after another.

    Some stand there more than once.
    """
    # A newline or a CJK stop ends a sentence for certain. Behind another stop may stand a closing
    # quote or bracket, and then has to follow white space.
    stops_M = np.flatnonzero((classes[_MARGIN:-_MARGIN] & _STOP) != 0)
    kinds_M = classes[_MARGIN + stops_M]
    newline_M = (kinds_M & _VISIBLE) == 0
    certain_M = newline_M | ((kinds_M & _CJK_STOP) != 0)
    closed_M = (classes[_MARGIN + 1 + stops_M] & _CLOSING) != 0
    cuts_M = stops_M + ~newline_M + (closed_M & ~certain_M)
    possible_M = certain_M | ((classes[_MARGIN + cuts_M] & _VISIBLE) == 0)
    stops_M = stops_M[possible_M]
    certain_M = certain_M[possible_M]

    # Behind the last word no sentence begins.
    firsts_M = np.searchsorted(words_T, cuts_M[possible_M])
    followed_M = firsts_M < len(words_T)
    stops_M = stops_M[followed_M]
    certain_M = certain_M[followed_M]
    firsts_M = firsts_M[followed_M]

    # The next word has to begin as a sentence does, perhaps behind an opening quote or bracket.
    next_M = _MARGIN + words_T[firsts_M]
    next_M += (classes[next_M] & (_OPENING | _BEGINNING)) == _OPENING
    ends_M = certain_M | ((classes[next_M] & _BEGINNING) != 0)

    suspects_M = ends_M & ~certain_M & _behind_short_word(classes, stops_M)
    for position in np.flatnonzero(suspects_M).tolist():
        stop = start + int(stops_M[position])
        ends_M[position] = text[stop] != "." or _FULL_STOP.match(text, stop) is not None

    return firsts_M[ends_M]


def _behind_short_word(
    classes: NDArray[np.uint8],
    stops_M: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which stops are behind a word as short as an abbreviation that begins like one."""
    result_M = np.zeros(len(stops_M), dtype=np.bool_)
    for length in range(1, _LONGEST_ABBREVIATION + 1):
        begin_M = stops_M + (_MARGIN - length)
        is_first_M = (classes[begin_M - 1] & _WORD_CHARACTER) == 0
        result_M |= is_first_M & ((classes[begin_M] & _ABBREVIATING) != 0)

    return result_M


def _between(
    first_words_M: NDArray[np.int64],
    words_T: NDArray[np.int64],
    ends_T: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return starts, ends and numbers of words of the sentences.

    The first word and ``first_words_M`` begin them.
    """
    bounds = np.concatenate([[0], first_words_M, [len(words_T)]])
    words_N = np.diff(bounds)
    filled_N = words_N > 0

    starts_N = words_T[bounds[:-1][filled_N]]
    ends_N = ends_T[bounds[1:][filled_N] - 1]
    return starts_N, ends_N, words_N[filled_N]


def _cuts_of_long(
    block: str,
    starts_N: NDArray[np.int64],
    ends_N: NDArray[np.int64],
) -> Iterator[int]:
    """Yield where sentences longer than MAX_SENTENCE_CHARS are cut: at the last blank, or there."""
    for number in np.flatnonzero(ends_N - starts_N > MAX_SENTENCE_CHARS).tolist():
        start = int(starts_N[number])
        end = int(ends_N[number])

        while end - start > MAX_SENTENCE_CHARS:
            space = block.rfind(" ", start + 1, start + MAX_SENTENCE_CHARS)
            start = space + 1 if space > 0 else start + MAX_SENTENCE_CHARS
            yield start
