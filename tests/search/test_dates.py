from datetime import date

import pytest
from pydantic import JsonValue

from deepsearch_rl.search.dates import EPOCH, UNKNOWN_DAY, find_dates, parse_day, written_date


def days(text: str) -> list[tuple[date, date]]:
    return [
        (date.fromordinal(first + EPOCH.toordinal()), date.fromordinal(last + EPOCH.toordinal()))
        for _, (first, last) in find_dates(text)
    ]


THE_30TH = date(2023, 10, 30)


@pytest.mark.parametrize(
    "written",
    ["October 30, 2023", "on October 30 2023", "Oct. 30th, 2023", "30 October 2023", "the 30th of October 2023",
     "2023-10-30", "OCTOBER 30, 2023"],
)  # fmt: skip
def test_a_day_is_read_in_every_usual_spelling(written: str) -> None:
    assert days(f"What did the report of {written} say?") == [(THE_30TH, THE_30TH)]


def test_a_month_without_a_day_is_all_of_it() -> None:
    assert days("in November 2023 and December 2023") == [
        (date(2023, 11, 1), date(2023, 11, 30)),
        (date(2023, 12, 1), date(2023, 12, 31)),
    ]


def test_letters_that_count_as_others_in_any_case_are_read_as_those() -> None:
    assert days("\u017fep 2023") == days("Sep 2023") == [(date(2023, 9, 1), date(2023, 9, 30))]


def test_several_dates_are_given_in_the_order_of_the_text() -> None:
    assert days("between 2024-02-29 and October 30, 2023") == [
        (date(2024, 2, 29),) * 2,
        (THE_30TH,) * 2,
    ]


@pytest.mark.parametrize(
    "text", ["February 30, 2023", "2023-13-01", "in 2023", "May I ask?", "12,345 people", ""]
)
def test_what_is_no_date_is_left_alone(text: str) -> None:
    assert days(text) == []


@pytest.mark.parametrize(
    ("published_at", "day"),
    [
        ("1970-01-01", 0),
        ("1970-01-02T23:59:59-11:00", 1),
        ("1969-12-31", -1),
        ("2023/10/30", 19660),
        ("2023.10.30 09:15", 19660),
        ("Oct 30, 2023", 19660),
        ("30 October 2023, 10:15 am", 19660),
        ("Mon, 30 Oct 2023 23:30:00 -0500", 19660),
        ("2023-10-30 12:00:00 UTC", 19660),
        (1698661800, 19660),
        ("1698661800", 19660),
        (1698661800000, 19660),
        (1698661800.25, 19660),
        ("2023-10", 19631),
        ("October 2023", 19631),
        (2023, 19358),
    ],
)
def test_the_day_of_publication_is_read_in_every_usual_form(
    published_at: JsonValue, day: int
) -> None:
    assert parse_day(published_at) == day


@pytest.mark.parametrize(
    "published_at",
    ["", None, True, "2023-02-30", "10/30/2023", "spring 2023", "20231030120000", "202310301200", 2023103012, "12",
     float("nan"), "May 1, 2023, updated May 3, 2023", ["2023-10-30"]],
)  # fmt: skip
def test_what_does_not_say_one_day_is_no_date(published_at: JsonValue) -> None:
    assert parse_day(published_at) == UNKNOWN_DAY


@pytest.mark.parametrize(
    ("published_at", "text"),
    [
        ("2023-12-05", "December 5 2023"),
        (1701734400, "December 5 2023"),
        ("spring 2023", "spring 2023"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_date_is_written_as_questions_write_it(published_at: JsonValue, text: str) -> None:
    assert written_date(published_at) == text
