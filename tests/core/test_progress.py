"""What a meter shows, on a terminal and in a file."""

import contextlib
import io
import re
import time
from pathlib import Path

import pytest

from deepsearch_rl.core.progress import ProgressBar, track
from tests.terminals import Terminal


class Clock:
    """Stands for the monotonic clock; time passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_a_plain_line_has_count_rate_time_left_and_note(clock: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar("answer", 100, "rollouts", stream) as meter:
        clock.now_s += 20
        meter.advance(40, "F1 0.500")
    first, last = stream.getvalue().splitlines()
    assert first == last == "answer: 40/100 rollouts, 2.0/s, 0:00:30 left, F1 0.500"


def test_what_an_earlier_run_did_counts_as_done_and_not_as_speed(clock: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar("answer", 10_000, "rollouts", stream, done=9_000) as meter:
        clock.now_s += 10
        meter.advance(5)
        assert meter.elapsed_s == pytest.approx(10)
    assert stream.getvalue().splitlines()[0] == "answer: 9005/10000 rollouts, 0.5/s, 0:33:10 left"


def test_no_time_is_promised_before_anything_of_this_run_is_done(clock: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar("answer", 10, "rollouts", stream, done=9) as meter:
        clock.now_s += 10
        meter.advance(0)
    assert stream.getvalue().splitlines()[0] == "answer: 9/10 rollouts, 0.0/s, no estimate yet"


def test_plain_lines_are_ten_seconds_apart_and_short_work_has_none(clock: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar("answer", 10, "rollouts", stream) as meter:
        for _ in range(9):
            clock.now_s += 1
            meter.advance()
    assert stream.getvalue() == ""
    with ProgressBar("answer", 35, "rollouts", stream) as meter:
        for _ in range(35):
            clock.now_s += 1
            meter.advance()
    assert [line.partition(",")[0] for line in stream.getvalue().splitlines()] == [
        "answer: 10/35 rollouts", "answer: 20/35 rollouts", "answer: 30/35 rollouts", "answer: 35/35 rollouts",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 160])
def test_a_terminal_gets_a_bar_that_begins_with_what_was_done_before(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    terminal = Terminal()
    with ProgressBar("answer", 1000, "rollouts", terminal, done=900) as meter:
        meter.advance(note="F1 0.250, 2 token_budget, 1 model_error, 80 tokens/s")
        meter.advance()
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", terminal.getvalue())
    assert "900/1000" in shown
    assert "902/1000" in shown
    assert "rollouts/s" in shown
    assert "F1 0.250, 2 token_budget, 1 model_error, 80 tokens/s" in shown


def test_a_full_disk_under_a_log_file_does_not_end_the_work(clock: Clock) -> None:
    with (
        contextlib.suppress(OSError),
        Path("/dev/full").open("w") as full,
        ProgressBar("answer", 3, "rollouts", full) as meter,
    ):
        for _ in range(3):
            clock.now_s += 10
            meter.advance()


@pytest.mark.parametrize("stream", ["closed", "missing"])
def test_work_without_a_stream_to_write_to_goes_on(clock: Clock, stream: str) -> None:
    closed = io.StringIO()
    closed.close()
    with ProgressBar("answer", 3, "rollouts", closed if stream == "closed" else None) as meter:
        clock.now_s += 10
        meter.advance()


def test_tracked_items_pass_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(iter("abc"), "letters", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
