"""Split a question into sources, days and parts, which each ask for one passage.

A multi-hop question names its passages one after the other ("Does the TechCrunch article on A ...,
while The Verge reports B on October 4, 2023?"), and a passage that fits one part well is worth more
than one that fits all a little. Sources come from the index's row table; parts are the pieces
between punctuation, conjunctions, sources and dates.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Self

from deepsearch_rl.search.analysis import UNSPACED, has_unspaced
from deepsearch_rl.search.rows import EPOCH

# A question has a handful of each. A page that is pasted in place of one may have thousands, and
# every one takes time.
MAX_PARTS = 32
MAX_SOURCES = 16
MAX_DATES = 32

Span = tuple[int, int]
# First and last day since 1970-01-01; both belong to the range
DayRange = tuple[int, int]

_BREAK = re.compile(
    r"\n|[,;:?!()]\s|[\"\u201c\u201d]|[\u3001\u3002\u300a-\u300f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]"
    r"|\b(?:and|or|but|while|whereas|than|which|who|that|with|after|before|between)\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[12]\d{3})"

# Tried in this order: a month with a day is no month alone.
_SPELLINGS = (
    re.compile(rf"\b{_YEAR}-(?P<number>\d{{2}})-(?P<day>\d{{2}})\b", re.IGNORECASE),
    re.compile(rf"\b{_MONTH}\s+{_DAY},?\s+{_YEAR}\b", re.IGNORECASE),
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH},?\s+{_YEAR}\b", re.IGNORECASE),
    re.compile(rf"\b{_MONTH},?\s+{_YEAR}\b", re.IGNORECASE),
)


@dataclass(frozen=True, slots=True)
class QuestionParts:
    """A question, split."""

    # Codes of the first MAX_SOURCES sources that it names, ascending
    sources: tuple[int, ...]
    days: tuple[DayRange, ...]
    # The question without sources and dates
    whole: str
    # The first MAX_PARTS pieces of ``whole`` that have two words, or letters of a script without
    # blanks; else all
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceNames:
    """Finds the sources of a corpus in a text: as whole words, in any case, the longest name first."""

    # By a name's tokens; sources may differ in case or spacing alone
    codes: dict[tuple[str, ...], tuple[int, ...]]
    # Tokens of the longest name
    longest: int

    @classmethod
    def of(cls, sources: Sequence[str]) -> Self:
        """Return the names of a row table's ``sources``, whose positions are the codes."""
        codes: dict[tuple[str, ...], tuple[int, ...]] = {}
        for code, source in enumerate(sources):
            name = tuple(_TOKEN.findall(source.lower()))
            if name:
                codes[name] = (*codes.get(name, ()), code)

        return cls(codes, max(map(len, codes), default=0))

    def find(self, text: str) -> list[tuple[Span, tuple[int, ...]]]:
        """Return where sources are named, in order, each with the codes of the sources of that name."""
        tokens = [(match[0].lower(), match.span()) for match in _TOKEN.finditer(text)]
        mentions: list[tuple[Span, tuple[int, ...]]] = []
        start = 0

        while start < len(tokens):
            words = tuple(token for token, _ in tokens[start : start + self.longest])
            name = self._name_at_begin(words)
            if name:
                _, (begin, _) = tokens[start]
                _, (_, end) = tokens[start + len(name) - 1]
                mentions.append(((begin, end), self.codes[name]))

            # The longest name counts, and its words begin no other
            start += len(name) or 1

        return mentions

    def _name_at_begin(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the longest name that the words begin with; the empty one where there is none."""
        while words and words not in self.codes:
            words = words[:-1]

        return words


def split_question(question: str, names: SourceNames) -> QuestionParts:
    """Find the sources and days of a question and split the rest into parts."""
    mentions = names.find(question)
    dates = find_dates(question)
    spans = [span for span, _ in mentions]
    spans += [match.span() for match, _ in dates]
    pieces: list[str] = []
    end = 0

    for start, stop in sorted(spans):
        # A source and a date may overlap.
        if start >= end:
            pieces.append(question[end:start])
        end = max(end, stop)
    pieces.append(question[end:])

    # What stands before a source and what stands behind it are parts of their own: _BREAK splits
    # at the line break.
    whole = "\n".join(pieces)

    # A question of nothing but sources and dates is searched for as it is.
    if not re.search(r"\w", whole):
        whole = question

    # A dict keeps the order in which the question names the sources.
    sources: dict[int, None] = {}
    for _, codes in mentions:
        sources.update(dict.fromkeys(codes))

    return QuestionParts(
        tuple(sorted([*sources][:MAX_SOURCES])),
        tuple(days for _, days in dates),
        whole,
        _parts(whole) or (whole,),
    )


def _parts(whole: str) -> tuple[str, ...]:
    """Return the first pieces of a question that can name a passage: one word alone says too little."""
    parts: list[str] = []
    for piece in _BREAK.split(whole):
        if len(piece.split()) > 1 or has_unspaced(piece):
            parts.append(piece)

    return tuple(parts[:MAX_PARTS])


def find_dates(text: str) -> list[tuple[re.Match[str], DayRange]]:
    """Return where a text names the first MAX_DATES days or months, in English or ISO spelling, in order."""
    dates: list[tuple[re.Match[str], DayRange]] = []
    for match in _date_matches(text):
        days = None if _overlaps(match, dates) else _days(match)
        if days:
            dates.append((match, days))
        if len(dates) == MAX_DATES:
            break

    return sorted(dates, key=lambda pair: pair[0].start())


def _overlaps(match: re.Match[str], dates: Sequence[tuple[re.Match[str], DayRange]]) -> bool:
    """Return whether a match shares a letter with one of those before it."""
    return any(match.start() < other.end() and other.start() < match.end() for other, _ in dates)


def _date_matches(text: str) -> Iterator[re.Match[str]]:
    for spelling in _SPELLINGS:
        yield from spelling.finditer(text)


def _days(match: re.Match[str]) -> DayRange | None:
    groups = match.groupdict()
    year = int(groups["year"])
    day = groups.get("day")

    month = int(groups["number"]) if "number" in groups else _month(groups["month"])

    # What looks like a date need not be one: February 30.
    try:
        first = date(year, month, int(day) if day else 1)
    except ValueError:
        return None

    last = first
    if not day:
        next_month = date(year + month // 12, month % 12 + 1, 1)
        last = next_month - timedelta(days=1)
    return (first - EPOCH).days, (last - EPOCH).days


def _month(name: str) -> int:
    """Return the number of a month, from 1."""
    # IGNORECASE takes a long s for an s, and so does casefold, unlike lower.
    return 1 + _MONTHS.index(name[:3].casefold())
