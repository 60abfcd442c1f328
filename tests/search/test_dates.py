from datetime import date

import pytest

from deepsearch_rl.search.question_parts import find_dates
from deepsearch_rl.search.rows import EPOCH


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
