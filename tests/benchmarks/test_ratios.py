"""`make bench`: when a ratio is lost, and that a loss ends the command with an error."""

import argparse
from pathlib import Path

import pytest

from benchmarks import ratios
from benchmarks.ratios import Ratio


def at(ratio: float, noise: float = 0.02) -> Ratio:
    return Ratio(ratio, noise, ours=1.0, other=ratio, unit="s")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = tmp_path / ratios.DOCUMENT
    document.parent.mkdir()
    document.write_text("<!-- ratios -->\n<!-- /ratios -->\n")
    ratios.TABLE.parent.mkdir()


def test_a_ratio_is_of_times_the_others_and_of_rates_the_projects() -> None:
    times = Ratio.of([1.0, 2.0, 4.0], [2.0, 4.0, 12.0], "CPU s")
    rates = Ratio.of([30.0, 20.0], [10.0, 10.0], "queries/s")

    assert (times.ratio, times.noise) == (2.0, 0.25)
    assert (times.ours, times.other) == (2.0, 4.0)
    assert rates.ratio == 2.5


@pytest.mark.parametrize(
    ("now", "before", "is_lost"),
    [
        (at(1.72), at(2.0), False),
        (at(1.68), at(2.0), True),
        (at(1.68, noise=0.2), at(2.0), False),
        (at(1.68), at(2.0, noise=0.2), False),
        (at(2.6), at(2.0), False),
    ],
)
def test_a_loss_is_more_than_fifteen_percent_and_more_than_noise(
    now: Ratio, before: Ratio, *, is_lost: bool
) -> None:
    assert now.is_lost(before) == is_lost


@pytest.mark.usefixtures("project")
def test_a_loss_ends_the_command_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    ratios.report({"bm25": at(2.0), "server": at(3.0)}, "before", is_update=True)

    with pytest.raises(SystemExit, match=r"lost .* noise: server\n\n.* of this run: before") as end:
        ratios.report({"bm25": at(2.1), "server": at(2.0)}, "now", is_update=False)
    assert "ratios.json" in str(end.value)

    shown = capsys.readouterr().out
    assert "| bm25 | 2.10 | 2% | 2.00 | +5% |" in shown
    assert "| server | 2.00 | 2% | 3.00 | -33%, lost |" in shown
    assert ratios.read_table() == {"bm25": at(2.0), "server": at(3.0)}


@pytest.mark.usefixtures("project")
def test_without_a_loss_the_command_ends_well_and_writes_nothing() -> None:
    ratios.report({"bm25": at(2.0)}, "before", is_update=True)
    table = ratios.TABLE.read_text()

    ratios.report({"bm25": at(1.9), "new": at(1.0)}, "now", is_update=False)

    assert ratios.TABLE.read_text() == table


@pytest.mark.usefixtures("project")
def test_an_update_writes_the_table_and_its_copy_and_keeps_what_was_not_measured() -> None:
    ratios.report({"bm25": at(2.0), "server": at(3.0)}, "before", is_update=True)
    ratios.report({"server": at(2.0)}, "A note.", is_update=True)

    assert ratios.read_table() == {"bm25": at(2.0), "server": at(2.0)}
    document = ratios.DOCUMENT.read_text()
    assert "A note." in document
    assert "| server | 2.00 | 2% | 1 | 2 | s |" in document


@pytest.mark.usefixtures("project")
def test_a_part_that_is_updated_alone_keeps_the_note_on_the_whole_run() -> None:
    ratios.report({"bm25": at(2.0), "server": at(3.0)}, "whole", is_update=True)
    ratios.report({"server": at(4.0)}, "part", is_update=True, is_part=True)

    assert ratios.read_note() == "whole"
    assert ratios.read_table() == {"bm25": at(2.0), "server": at(4.0)}


@pytest.mark.parametrize(
    ("only", "is_all", "parts"),
    [
        ("", False, 3),
        ("", True, 5),
        ("encoding", True, 2),
    ],
)
def test_a_part_is_measured_alone(
    only: str, is_all: bool, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bm25", "encoding", "server"):
        monkeypatch.setattr(ratios, name, lambda *_: iter(()))

    options = argparse.Namespace(only=only, all=is_all, rounds=1)
    assert len(list(ratios._parts(options, [], Path("minilm")))) == parts
