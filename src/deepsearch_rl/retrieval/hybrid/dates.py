"""The dates that a question names, in the usual English and ISO spellings, as ranges of days."""

import itertools
import re
from datetime import date, timedelta

from deepsearch_rl.retrieval.row_table import EPOCH

MOST_DATES = 32
DayRange = tuple[int, int]
"""First and last day since 1970-01-01; both belong to the range."""

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


def find_dates(text: str) -> list[tuple[re.Match[str], DayRange]]:
    """Where a text names a day or a month of a year, in order; impossible dates are left alone.

    At most MOST_DATES are found, so that a text of dates alone takes no longer than another.
    """
    found: list[tuple[re.Match[str], DayRange]] = []
    for match in itertools.chain.from_iterable(spelling.finditer(text) for spelling in _SPELLINGS):
        taken = any(match.start() < other.end() and other.start() < match.end() for other, _ in found)
        days = None if taken else _days(match)
        if days:
            found.append((match, days))
        if len(found) == MOST_DATES:
            break
    return sorted(found, key=lambda pair: pair[0].start())


def _days(match: re.Match[str]) -> DayRange | None:
    named = match.groupdict()
    year, day = int(named["year"]), named.get("day")
    # IGNORECASE takes a long s for an s, and so does casefold, unlike lower.
    month = int(named["number"]) if named.get("number") else 1 + _MONTHS.index(named["month"][:3].casefold())
    try:
        first = date(year, month, int(day) if day else 1)
    except ValueError:  # February 30
        return None
    last = first if day else date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
    return (first - EPOCH).days, (last - EPOCH).days
