"""Sentences and words of a text as character offsets.

A sentence ends at a newline, after a CJK full stop, and at a full stop, question or exclamation
mark before white space and a capital or digit, unless the stop belongs to an initial or an
abbreviation. A closing quote or bracket may follow the stop, an opening one may precede the capital.
"""

import re
from collections.abc import Iterator

Span = tuple[int, int]

# Longer sentences are cut at white space, so that no tokenizer gets megabytes at once
MAX_SENTENCE_CHARS = 20_000

_ABBREVIATIONS = (
    *("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "Sen", "Gov", "Gen", "Lt", "Col"),
    *("Inc", "Ltd", "No", "vs"),
    *("Jan", "Feb", "Mar", "Apr", "Aug", "Sept", "Sep", "Oct", "Nov", "Dec"),
)
_NO_ABBREVIATION = "".join(rf"(?<!\b{word}\.)" for word in ("[A-Z]", *_ABBREVIATIONS))
_CJK_STOPS = "\u3002\uff01\uff1f"
_CLOSING = r"[\"')\]\u2019\u201d]?"
_OPENING = r"[\"'(\[\u2018\u201c]?"
# The set in front makes the search fast
_SENTENCE_END = re.compile(
    rf"[\n.!?{_CJK_STOPS}]"
    rf"(?:(?<=[\n{_CJK_STOPS}])|(?={_CLOSING}\s+{_OPENING}[A-Z0-9]){_NO_ABBREVIATION}{_CLOSING})"
)
_WORD = re.compile(r"\w+|[^\w\s]")


def sentence_spans(text: str, start: int = 0) -> Iterator[Span]:
    """Yield the sentences of a text from an offset on, without blank ones and surrounding white space."""
    for match in _SENTENCE_END.finditer(text, start):
        yield from _pieces(text, start, match.end())
        start = match.end()

    yield from _pieces(text, start, len(text))


def _pieces(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield a sentence, in pieces of at most MAX_SENTENCE_CHARS."""
    while piece := text[start:end].strip():
        start = text.index(piece[0], start)
        end = start + len(piece)
        if len(piece) <= MAX_SENTENCE_CHARS:
            yield start, end
            return

        space = text.rfind(" ", start + 1, start + MAX_SENTENCE_CHARS)
        cut = space if space > 0 else start + MAX_SENTENCE_CHARS
        yield start, start + len(text[start:cut].rstrip())
        start = cut


def word_spans(text: str) -> Iterator[Span]:
    """Yield the words of a text: runs of word characters, and every other visible character alone."""
    return (match.span() for match in _WORD.finditer(text))


def count_words(text: str, start: int, end: int) -> int:
    """Return the number of words of ``text[start:end]``."""
    return len(_WORD.findall(text, start, end))
