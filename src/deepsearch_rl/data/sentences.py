"""Sentences and words of a text as character offsets.

A sentence ends at a newline and after a terminator of its script (Unicode's property
Sentence_Terminal, and Tibetan's shad). Full stops, question and exclamation marks of ASCII, and the
Greek question mark, end one only before white space and a capital, a digit or a letter without
case, unless the stop belongs to an initial or an abbreviation. Closing quotes and brackets may
follow the terminator, opening ones may precede the letter. No word or piece begins with a combining
mark that has a letter before it.
"""

import re
import unicodedata
from collections.abc import Iterator

Span = tuple[int, int]

# Longer sentences are cut at white space, so that no tokenizer gets megabytes at once
MAX_SENTENCE_CHARS = 20_000


def is_mark(character: str) -> bool:
    """Return whether a character is a combining mark: an accent, a vowel sign, a selector of a shape."""
    return unicodedata.category(character).startswith("M")


def _mark_ranges() -> str:
    ranges: list[tuple[int, int]] = []

    # Marks end below U+20000; beyond, there are ideographs, and selectors from U+E0100 on.
    for code in range(0x300, 0x20000):
        if not is_mark(chr(code)):
            continue
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], code
        else:
            ranges.append((code, code))

    return "".join(f"{chr(first)}-{chr(last)}" for first, last in (*ranges, (0xE0100, 0xE01EF)))


# Every combining mark, as a regular expression's class
MARKS = _mark_ranges()

_ABBREVIATIONS = (
    *("Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "Sen", "Gov", "Gen", "Lt", "Col"),
    *("Inc", "Ltd", "No", "vs"),
    *("Jan", "Feb", "Mar", "Apr", "Aug", "Sept", "Sep", "Oct", "Nov", "Dec"),
)
# One letter is an initial, but for ASCII's small ones; a mark before it belongs to its word
_INITIAL = rf"(?<![{MARKS}])[^\W\d_a-z]"
_NO_ABBREVIATION = "".join(rf"(?<!\b{word}\.)" for word in (_INITIAL, *_ABBREVIATIONS))
# Without ASCII's and the variants of its full stop; those of rare scripts stand above U+FFFF
_TERMINATORS = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u0f0d\u0f0e"
    "\u104a\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab"
    "\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\u203c\u203d\u2047-\u2049"
    "\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf"
    "\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\ufe56\ufe57\uff01\uff1f\uff61"
)
_RARE_TERMINATORS = (
    "\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048"
    "\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df"
    "\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c"
    "\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e\U00011944"
    "\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8"
    "\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e"
    "\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
_WIDE_STOP = "\uff0e"
# A semicolon asks a question in Greek
_ASCII = ".!?;\u037e"
_NO_SEMICOLON = "(?<![^\u0370-\u03ff\u1f00-\u1fff];)"
# French sets a space before its closing quote
_CLOSING = (
    r"(?:[\"')\]}\u00ab\u00bb\u2018-\u201f\u2039\u203a\u3009\u300b\u300d\u300f\u3011\u3015\uff09\uff3d]"
    r"|\s\u00bb(?!\w))*"
)
# Neither terminators, nor what continues a sentence
_OPENING = rf"[^\w\s,:\-\u2013\u2014{_ASCII}]{{0,4}}"
# The set in front makes the search fast, if it has few ranges above U+FFFF
_SENTENCE_END = re.compile(
    rf"[\n{_ASCII}{_WIDE_STOP}{_TERMINATORS}\U00010a00-\U0001daff]"
    rf"(?:(?<=[{_ASCII}])(?={_CLOSING}\s+{_OPENING}\s?{_OPENING}(\w))"
    rf"{_NO_ABBREVIATION}{_NO_SEMICOLON}{_CLOSING}|(?<=\n)"
    rf"|(?:(?<=[{_TERMINATORS}{_RARE_TERMINATORS}])|(?<={_WIDE_STOP})(?!\d))"
    rf"[{_ASCII}{_TERMINATORS}{_RARE_TERMINATORS}{MARKS}]*{_CLOSING})"
)
_WORD = re.compile(rf"\w+(?:[{MARKS}]+\w*)*|[^\w\s][{MARKS}]*")


def sentence_spans(text: str, start: int = 0) -> Iterator[Span]:
    """Yield the sentences of a text from an offset on, without blank ones and surrounding white space."""
    for match in _SENTENCE_END.finditer(text, start):
        if match[1] and _is_small(match[1]):
            continue
        yield from _pieces(text, start, match.end())
        start = match.end()

    yield from _pieces(text, start, len(text))


def _is_small(letter: str) -> bool:
    # Georgian writes its sentences in small letters alone
    return letter.islower() and not "\u10d0" <= letter <= "\u10ff"


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
        letters = (place for place in range(cut, start, -1) if not is_mark(text[place]))
        cut = next(letters, cut)
        yield start, start + len(text[start:cut].rstrip())
        start = cut


def word_spans(text: str) -> Iterator[Span]:
    """Yield the words of a text: runs of word characters, and every other visible character alone."""
    return (match.span() for match in _WORD.finditer(text))


def count_words(text: str, start: int, end: int) -> int:
    """Return the number of words of ``text[start:end]``."""
    return len(_WORD.findall(text, start, end))
