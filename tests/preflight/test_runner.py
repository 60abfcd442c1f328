"""Phases are real programs here, as they are in a preflight."""

import json
import sys
from pathlib import Path

import pytest

from deepsearch_rl.cli.terminal import print_table
from tools.preflight.__main__ import HEADER
from tools.preflight.runner import (
    Phase,
    PhaseOutcome,
    chosen_phases,
    run_phases,
    table_row,
    write_report,
)


def phase(name: str, *needs: str, code: str = "", timeout_s: float = 60, **result: object) -> Phase:
    """A phase that runs ``code`` and ends with a result."""
    line = json.dumps({"status": "passed", **result})
    command = (sys.executable, "-c", f"{code}\nprint({line!r})")
    return Phase(
        name=name, purpose=f"does {name}", command=command, timeout_s=timeout_s, needs=needs
    )


@pytest.mark.slow
def test_a_failed_phase_skips_those_that_need_it_and_no_others() -> None:
    phases = [
        phase("first", status="failed", message="install it"),
        phase("second", "first"),
        phase("third", "second"),
        phase("other", figures={"tokens_per_s": 12.0}),
    ]
    outcomes = {outcome.phase: outcome for outcome in run_phases(phases)}
    assert [(outcome.status, outcome.message) for outcome in outcomes.values()] == [
        ("failed", "install it"),
        ("skipped", "needs first"),
        ("skipped", "needs second"),
        ("passed", ""),
    ]
    assert outcomes["other"].figures["tokens_per_s"] == 12.0


@pytest.mark.slow
def test_a_phase_that_is_not_done_in_time_fails_and_the_next_one_runs() -> None:
    code = "import time; time.sleep(600)"
    late, after = run_phases([phase("late", code=code, timeout_s=1), phase("after")])
    assert (late.status, after.status) == ("failed", "passed")
    assert "after 1 s" in late.message


def test_a_phase_that_dies_is_a_failure_with_its_last_lines() -> None:
    (outcome,) = run_phases([phase("dies", code="raise SystemExit('no such device')")])
    assert (outcome.status, outcome.message) == ("failed", "ended with status 1:\nno such device")


@pytest.mark.slow
def test_two_jobs_run_independent_phases_at_once_and_keep_their_order(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    wait = f"""
import pathlib, time
while not pathlib.Path({str(mark)!r}).exists():
    time.sleep(0.01)"""
    phases = [
        phase("waits", code=wait),
        phase("marks", code=f"open({str(mark)!r}, 'w')"),
        phase("last", "waits"),
    ]
    ended: list[str] = []
    outcomes = run_phases(phases, jobs=2, on_outcome=lambda outcome: ended.append(outcome.phase))
    assert [outcome.phase for outcome in outcomes] == ["waits", "marks", "last"]
    assert sorted(ended[:2]) == ["marks", "waits"], "the first ends once the second has begun"
    assert ended[2] == "last"


def test_one_phase_is_run_with_those_that_it_needs() -> None:
    phases = [phase("a"), phase("b"), phase("c", "a"), phase("d", "c")]
    assert [each.name for each in chosen_phases(phases, "d")] == ["a", "c", "d"]
    assert chosen_phases(phases, None) == phases


def test_the_table_has_a_column_for_what_counts_and_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {"tokens_per_s": 1234.5, "peak_gib": 0.7512, "parity": 1.9e-6, "steps": 4.0}
    rows = [
        table_row(PhaseOutcome(phase="sft", status="passed", seconds=12.34, figures=figures)),
        table_row(PhaseOutcome(phase="serve", status="failed", seconds=1, message="start [it]")),
    ]
    assert rows[0] == ["sft", "passed", "12.3", "1234", "0.751", "1.9e-06", "steps 4"]
    print_table("", HEADER, rows)
    assert "start [it]" in capsys.readouterr().out


def test_the_report_holds_every_outcome_and_the_slopes_only_what_plan_knows(tmp_path: Path) -> None:
    figures = {"merge_s": 3.5, "parity": 0.0}
    outcomes = [
        PhaseOutcome(phase="merge", status="passed", seconds=4, figures=figures),
        PhaseOutcome(phase="rl", status="skipped", seconds=0, message="needs prepare"),
    ]
    write_report(tmp_path, outcomes)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(entry["phase"], entry["status"]) for entry in report] == [
        ("merge", "passed"),
        ("rl", "skipped"),
    ]
    assert json.loads((tmp_path / "slopes.json").read_text()) == {"merge_s": 3.5}
