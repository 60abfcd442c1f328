"""Benchmarks that judge: what they call flat, stable or reached, and where they write it."""

from pathlib import Path

import pytest

from benchmarks import retrieval_server, soak
from benchmarks.measure import fill_section, markdown_table, parse_options


def periods(memory_mb: list[float], p99_ms: list[float], errors: int = 0) -> list[dict[str, float]]:
    return [
        {
            "minute": minute,
            "answered": 100,
            "errors": errors,
            "RssAnon MB": megabytes,
            "p99 ms": latency_ms,
        }
        for minute, (megabytes, latency_ms) in enumerate(zip(memory_mb, p99_ms, strict=True))
    ]


def test_a_flat_and_stable_soak_has_no_problems() -> None:
    verdict, faults = soak.judge(
        periods([100, 104, 101, 103, 102, 104], [10, 12, 11, 9, 12, 14]), max_growth_mb=5
    )
    assert faults == []
    assert verdict == (
        "5.0 minutes, 600 requests: mean anonymous memory 102.0 MB in the first third and 103.0 MB in "
        "the last, median p99 11.0 ms and 13.0 ms. Flat and stable."
    )


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        (periods([100, 110, 120, 130, 140, 150], [10] * 6), "grew by 40.0 MB"),
        (periods([100] * 6, [10, 10, 12, 12, 16, 16]), "1.60 times"),
        (periods([100] * 6, [10] * 6, errors=2), "12 requests"),
    ],
)
def test_a_soak_that_grows_slows_or_errs_says_so(
    measured: list[dict[str, float]], problem: str
) -> None:
    verdict, [found] = soak.judge(measured, max_growth_mb=5)
    assert problem in found
    assert found in verdict


def test_batching_is_judged_against_no_batching_at_64_clients() -> None:
    cells = {
        ("minilm", batching, clients): {"queries/s": rate, "p99 ms": latency_ms}
        for batching, clients, latency_ms, rate in (
            ("on", 1, 10, 100), ("off", 1, 10, 100), ("on", 64, 40, 300), ("off", 64, 100, 100),
        )
    }  # fmt: skip
    speed, latency = retrieval_server.verdicts(cells)
    assert speed[2:] == ("2.5", "3.00", "reached")
    assert latency[2:] == ("0.50", "0.40", "reached")


def test_a_table_goes_between_its_markers_and_nowhere_else(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- load -->\nold\n<!-- /load -->\nafter\n")
    fill_section(document, "load", markdown_table(("name", "n"), [("a", "1.5"), ("b", "2")]))
    filled = "before\n<!-- load -->\n| name | n |\n| --- | ---: |\n| a | 1.5 |\n| b | 2 |\n<!-- /load -->\nafter\n"
    assert document.read_text() == filled
    with pytest.raises(ValueError, match="no one place"):
        fill_section(document, "soak", "")


def test_options_have_the_types_of_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "benchmark --docs page.md --rows 5 --sizes 1 2 --quick --kinds b --chunk-size 2"
    monkeypatch.setattr("sys.argv", line.split())
    kinds = ["a", "b"]
    options = parse_options(
        "", rows=7, sizes=[9], quick=(False, "less"), kinds=(kinds, "", kinds), chunk_size=1.5,
        work=Path("work"),
    )  # fmt: skip
    assert vars(options) == {
        "docs": Path("page.md"), "rows": 5, "sizes": [1, 2], "quick": True, "kinds": ["b"],
        "chunk_size": 2.0, "work": Path("work"),
    }  # fmt: skip
    monkeypatch.setattr("sys.argv", ["benchmark", "--kinds", "c"])
    with pytest.raises(SystemExit):
        parse_options("", kinds=(kinds, "", kinds))
