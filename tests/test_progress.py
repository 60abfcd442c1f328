"""What a meter shows, on a terminal and in a file."""

import contextlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from deepsearch_rl.core.progress import ProgressBar, track
from tests.terminals import Terminal, TerminalPipe


class Clock:
    """Stands for the monotonic clock; time passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.contextmanager
def failing(stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream whose writes fail; to close it fails too, which the bar has no part in."""
    try:
        yield stream
    finally:
        with contextlib.suppress(OSError):
            stream.close()


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


def test_a_full_disk_under_a_log_file_ends_progress_and_not_the_work(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        failing(Path("/dev/full").open("w")) as full,
        ProgressBar("answer", 3, "rollouts", full) as meter,
    ):
        for _ in range(3):
            clock.now_s += 10
            meter.advance()

    (warning,) = caplog.messages
    assert warning.startswith("progress of answer is not shown any more")
    assert "No space left on device" in warning


def test_a_terminal_that_is_gone_ends_progress_and_not_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    streams = sys.stdout, sys.stderr
    gone, terminal = os.openpty()
    with (
        failing(os.fdopen(terminal, "w")) as stream,
        ProgressBar("answer", 3, "rollouts", stream) as meter,
    ):
        os.close(gone)
        meter.advance(3)

    assert (sys.stdout, sys.stderr) == streams
    assert len(caplog.messages) == 1


def test_a_bar_whose_pipe_nobody_reads_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    reader, writer = os.pipe()
    os.close(reader)
    pipe = TerminalPipe(os.fdopen(writer, "wb"))
    with failing(pipe) as stream, ProgressBar("answer", 3, "rollouts", stream) as meter:
        meter.advance(3)


@pytest.mark.parametrize("stream", ["closed", "missing"])
def test_work_without_a_stream_to_write_to_goes_on(clock: Clock, stream: str) -> None:
    closed = io.StringIO()
    closed.close()
    with ProgressBar("answer", 3, "rollouts", closed if stream == "closed" else None) as meter:
        clock.now_s += 10
        meter.advance()


def test_the_error_of_the_work_is_not_that_of_its_progress(clock: Clock) -> None:
    closed = io.StringIO()
    closed.close()

    def work() -> None:
        with ProgressBar("answer", 3, "rollouts", closed):
            clock.now_s += 10
            raise OSError("of the work")

    with pytest.raises(OSError, match="of the work"):
        work()


def test_a_log_that_goes_where_the_progress_went_ends_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    handler = logging.StreamHandler(closed)
    logger = logging.getLogger("deepsearch_rl.core.progress")
    logger.addHandler(handler)
    try:
        with ProgressBar("answer", 3, "rollouts", closed) as meter:
            clock.now_s += 10
            meter.advance()
    finally:
        logger.removeHandler(handler)


def test_tracked_items_pass_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(iter("abc"), "letters", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
