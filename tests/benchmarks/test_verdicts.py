"""Benchmarks that judge: what they call flat, stable or reached, and where they write it."""

from pathlib import Path

import pytest

from benchmarks import retrieval_server
from benchmarks.measure import fill_section, markdown_table, parse_options


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
        fill_section(document, "absent", "")


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
