"""Split a question into sources, days and parts, which each ask for one passage.

A multi-hop question names its passages one after the other ("Does the TechCrunch article on A ...,
while The Verge reports B on October 4, 2023?"), and a passage that fits one part well is worth more
than one that fits all a little. Sources come from the index's row table; parts are the pieces
between punctuation, conjunctions, sources and dates.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Self

from deepsearch_rl.retrieval.search.analysis import UNSPACED, has_unspaced
from deepsearch_rl.retrieval.search.rows import EPOCH

MAX_PARTS = 32
MAX_SOURCES = 16
MAX_DATES = 32
"""A question has a handful; a page pasted in place of one may have thousands, and each takes time."""
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
_SPELLINGS = tuple(
    re.compile(rf"\b{spelling}\b", re.IGNORECASE)
    for spelling in (
        rf"{_YEAR}-(?P<number>\d{{2}})-(?P<day>\d{{2}})",
        rf"{_MONTH}\s+{_DAY},?\s+{_YEAR}",
        rf"{_DAY}\s+(?:of\s+)?{_MONTH},?\s+{_YEAR}",
        rf"{_MONTH},?\s+{_YEAR}",
    )
)
"""Tried in this order: a month with a day is no month alone."""


@dataclass(frozen=True, slots=True)
class QuestionParts:
    """A question, split."""

    # Codes of the first MAX_SOURCES sources that it names, ascending
    sources: tuple[int, ...]
    days: tuple[DayRange, ...]
    whole: str  # the question without sources and dates
    parts: tuple[str, ...]
    """The first MAX_PARTS pieces of ``whole`` that have two words, or letters of a script without blanks; else all."""


@dataclass(frozen=True, slots=True)
class SourceNames:
    """Finds the sources of a corpus in a text: as whole words, in any case, the longest name first."""

    # By a name's tokens; sources may differ in case or spacing alone
    codes: dict[tuple[str, ...], tuple[int, ...]]
    longest: int  # tokens of the longest name

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
            length = next(
                (length for length in range(len(words), 0, -1) if words[:length] in self.codes), 0
            )
            if length:
                span = tokens[start][1][0], tokens[start + length - 1][1][1]
                mentions.append((span, self.codes[words[:length]]))

            start += length or 1

        return mentions


def split_question(question: str, names: SourceNames) -> QuestionParts:
    """Find the sources and days of a question and split the rest into parts."""
    mentions = names.find(question)
    dates = find_dates(question)
    pieces = []
    end = 0

    for start, stop in sorted(
        [*(span for span, _ in mentions), *(match.span() for match, _ in dates)]
    ):
        if start >= end:  # a source and a date may overlap
            pieces.append(question[end:start])
        end = max(end, stop)

    whole = "\n".join([*pieces, question[end:]])  # a part ends at the line break
    whole = whole if re.search(r"\w", whole) else question
    parts = tuple(
        part for part in _BREAK.split(whole) if len(part.split()) > 1 or has_unspaced(part)
    )[:MAX_PARTS]
    sources = dict.fromkeys(code for _, codes in mentions for code in codes)
    return QuestionParts(
        tuple(sorted([*sources][:MAX_SOURCES])),
        tuple(days for _, days in dates),
        whole,
        parts or (whole,),
    )


def find_dates(text: str) -> list[tuple[re.Match[str], DayRange]]:
    """Return where a text names the first MAX_DATES days or months, in English or ISO spelling, in order."""
    dates: list[tuple[re.Match[str], DayRange]] = []
    for match in itertools.chain.from_iterable(spelling.finditer(text) for spelling in _SPELLINGS):
        overlaps = any(
            match.start() < other.end() and other.start() < match.end() for other, _ in dates
        )
        days = None if overlaps else _days(match)
        if days:
            dates.append((match, days))
        if len(dates) == MAX_DATES:
            break

    return sorted(dates, key=lambda pair: pair[0].start())


def _days(match: re.Match[str]) -> DayRange | None:
    groups = match.groupdict()
    year = int(groups["year"])
    day = groups.get("day")
    # IGNORECASE takes a long s for an s, and so does casefold, unlike lower.
    month = (
        int(groups["number"])
        if groups.get("number")
        else 1 + _MONTHS.index(groups["month"][:3].casefold())
    )
    try:
        first = date(year, month, int(day) if day else 1)
    except ValueError:  # February 30
        return None

    last = first if day else date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
    return (first - EPOCH).days, (last - EPOCH).days
