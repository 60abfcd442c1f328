"""Dates: the days that a text names, and the day on which a passage was published.

A day counts from 1970-01-01; time zones are ignored, so that it is the day as it is written.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta

import numpy as np
from pydantic import JsonValue

EPOCH = date(1970, 1, 1)
UNKNOWN_DAY = int(np.iinfo(np.int32).min)
# First and last day since 1970-01-01; both belong to the range
DayRange = tuple[int, int]
# A text that is pasted in place of a question may have thousands, and every one takes time.
MAX_DATES = 32
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

# Seconds of Unix time, from 1973 to 2100; greater numbers are milli-, micro- or nanoseconds
EPOCH_S = (1e8, 4.1e9)
_MONTH_OR_YEAR = re.compile(r"\d{4}(?:-\d{2})?")
# A day with hours or minutes in digits alone would be a wrong day of Unix time
_NUMBER = re.compile(
    r"(?!(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])(?:[0-5]\d)?$)"
    r"\d{9,19}(?:\.\d+)?"
)
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[12]\d{3})"

# Tried in this order: a month with a day is no month alone.
_SPELLINGS = (
    re.compile(rf"\b{_YEAR}([-/.])(?P<number>\d{{1,2}})\2(?P<day>\d{{1,2}})(?!\d)", re.IGNORECASE),
    re.compile(rf"\b{_MONTH}\s+{_DAY},?\s+{_YEAR}\b", re.IGNORECASE),
    re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH},?\s+{_YEAR}\b", re.IGNORECASE),
    re.compile(rf"\b{_MONTH},?\s+{_YEAR}\b", re.IGNORECASE),
)


def parse_day(published_at: JsonValue) -> int:
    """Return the day of a date or time; UNKNOWN_DAY for what is none.

    Read are ISO 8601, the spellings of :func:`find_dates` if a text has one such day (RFC 2822 is
    among them), Unix time as a number or its digits, and a year or month, which is its first day.
    """
    match published_at:
        case str():
            text = published_at.strip()
        case bool():
            return UNKNOWN_DAY
        case int() | float():
            text = f"{published_at:.0f}"
        case _:
            return UNKNOWN_DAY

    if _NUMBER.fullmatch(text):
        return _day_of_seconds(float(text))
    if _MONTH_OR_YEAR.fullmatch(text):
        text = f"{text}-01" if "-" in text else f"{text}-01-01"
    with suppress(ValueError):
        return (datetime.fromisoformat(text).date() - EPOCH).days

    days = {first for _, (first, _) in find_dates(text)}
    return days.pop() if len(days) == 1 else UNKNOWN_DAY


def _day_of_seconds(number: float) -> int:
    earliest, latest = EPOCH_S
    while number > latest:
        number /= 1000
    return int(number // 86_400) if number >= earliest else UNKNOWN_DAY


def written_date(published_at: JsonValue) -> str:
    """Return a day as questions write it ("October 30 2023"); a text that is no date as it stands."""
    day = parse_day(published_at)
    if day == UNKNOWN_DAY:
        return published_at if isinstance(published_at, str) else ""

    published = EPOCH + timedelta(days=day)
    return f"{MONTHS[published.month - 1]} {published.day} {published.year}"


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
    return 1 + [month[:3].lower() for month in MONTHS].index(name[:3].casefold())
