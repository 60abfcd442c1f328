"""The report's page on a wide screen and on a phone, in a real browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver

from deepsearch_rl.evaluate.report.write_report import ReportConfig, write_report
from tests.browsing import chromium
from tests.evaluate.conftest import sources_in

__all__ = ["chromium"]
pytestmark = pytest.mark.slow

F1_TABLES = """
const section = document.getElementById("f1").parentElement;
return [...section.querySelectorAll(".tables .scroll")].map(scroll => {
  const box = scroll.getBoundingClientRect();
  return {top: box.top, left: box.left, hidden: scroll.scrollWidth - scroll.clientWidth};
});
"""
SCROLLED = """
const cut = [...document.querySelectorAll(".scroll")].filter(scroll => scroll.scrollWidth > scroll.clientWidth + 1);
return cut.map(scroll => {
  scroll.scrollLeft = scroll.scrollWidth;
  const box = scroll.getBoundingClientRect();
  return [...scroll.querySelectorAll("tr")].map(row => {
    const first = row.firstElementChild.getBoundingClientRect(), last = row.lastElementChild.getBoundingClientRect();
    return {first: Math.round(first.left - box.left), last: Math.round(last.right - box.right)};
  });
});
"""
"""Where the first and the last cell of every row stand in tables that do not fit, scrolled to their end."""

BARS = """
const table = document.querySelector(".bar").closest("table");
table.querySelector("thead th:last-child").textContent = "a_model_with_a_long_name";
const widths = selector => [...table.querySelectorAll(selector)].map(each => each.getBoundingClientRect().width);
return {columns: widths("thead th"), bars: widths(".bar")};
"""
"""The widths of columns and of full bars in a table of distributions whose last column has a long title."""

BAR_ENDS = """
const figures = [...document.querySelectorAll("figure.bars svg")];
return figures.map(figure => figure.getBoundingClientRect().right);
"""


@pytest.fixture(scope="module")
def page(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("widths")
    write_report(
        "tiny",
        sources_in(finished),
        ReportConfig(comparisons=(), draws=100, rollouts=1, search_index=False),
        0,
        folder,
    )
    return (folder / "index.html").as_uri()


@contextmanager
def screen(browser: webdriver.Chrome, width: int) -> Iterator[None]:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [1400, 1920])
def test_a_wide_screen_is_used_and_shows_tables_in_two_columns_that_align(
    chromium: webdriver.Chrome, page: str, width: int
) -> None:
    with screen(chromium, width):
        chromium.get(page)
        assert (
            chromium.execute_script("return document.querySelector('main').clientWidth")
            > 0.9 * width
        )
        first, second, third, fourth = chromium.execute_script(F1_TABLES)
        assert first["top"] == second["top"] < third["top"] == fourth["top"]
        assert first["left"] == third["left"] < second["left"] == fourth["left"]
        assert not any(table["hidden"] for table in (first, second, third, fourth))


def test_a_phone_shows_whole_bars_of_lost_points(chromium: webdriver.Chrome, page: str) -> None:
    with screen(chromium, 390):
        chromium.get(page)
        ends = chromium.execute_script(BAR_ENDS)
        assert ends
        assert max(ends) <= 390


@pytest.mark.parametrize("width", [1400, 390])
def test_a_bar_of_a_share_has_one_length_in_narrow_and_wide_columns(
    chromium: webdriver.Chrome, page: str, width: int
) -> None:
    with screen(chromium, width):
        chromium.get(page)
        found = chromium.execute_script(BARS)
        *_, narrow, wide = found["columns"]
        assert narrow < wide
        assert len(set(found["bars"])) == 1


def test_a_phone_shows_every_column_of_the_f1_table_and_scrolls_wider_ones_beside_their_first(
    chromium: webdriver.Chrome, page: str
) -> None:
    with screen(chromium, 390):
        chromium.get(page)
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= 390
        assert [table["hidden"] for table in chromium.execute_script(F1_TABLES)] == [0] * 4
        chromium.execute_script(
            "for (const details of document.querySelectorAll('details')) details.open = true"
        )
        rows = [row for table in chromium.execute_script(SCROLLED) for row in table]
        assert rows, "some table is wider than a phone"
        assert {row["first"] for row in rows} == {0}
        assert max(row["last"] for row in rows) <= 0
