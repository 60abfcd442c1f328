"""Progress of long work: a bar with rate and ETA on a terminal, a plain line every ten seconds elsewhere."""

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TextIO, TypeVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

ItemT = TypeVar("ItemT")
PLAIN_LINE_INTERVAL_S = 10.0
# Updating a bar costs more than many units of work
BAR_INTERVAL_S = 0.05


class _TerminalBar(Progress):
    """Bar, count, rate and time left in one line, and the note below, since both are often long."""

    note = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(self.note)


class ProgressBar:
    """Shows how much of a known total is done; use as a context manager.

    Args:
        label: what is being done, e.g. "sft".
        total: number of units.
        unit: plural name of a unit, e.g. "questions".
        stream: a terminal gets a bar, anything else plain lines; None shows nothing.
        done: units that an earlier run finished; they count neither for the rate nor for the ETA.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "items",
        stream: TextIO | None = sys.stderr,
        *,
        done: int = 0,
    ) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._stream = stream
        self._resumed = self._done = done
        self._note = ""
        self._started = self._shown = time.monotonic()
        self._bar = None
        self._interval_s = PLAIN_LINE_INTERVAL_S

        # A log file would get a thousand lines of a bar
        if stream is not None and not stream.closed and stream.isatty():
            texts = (
                TextColumn("{task.description}"),
                TextColumn("{task.fields[rate]:.1f} " + f"{unit}/s"),
            )
            columns = texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn()
            self._bar = _TerminalBar(*columns, console=Console(file=stream))
            self._task = self._bar.add_task(label, total=total, completed=done, rate=0.0)
            self._interval_s = BAR_INTERVAL_S

    def __enter__(self) -> "ProgressBar":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.elapsed_s >= self._interval_s or self._bar is not None:
            self._show()
        if self._bar is not None:
            self._bar.stop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` more units as done and show ``note`` beside or below them."""
        self._done += count
        self._note = note or self._note
        if time.monotonic() - self._shown >= self._interval_s:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        elapsed_s = self._shown - self._started
        rate = (self._done - self._resumed) / elapsed_s if elapsed_s else 0.0

        if self._bar is not None:
            self._bar.note = self._note
            self._bar.update(self._task, completed=self._done, rate=rate)
            return

        left = timedelta(seconds=math.ceil((self._total - self._done) / rate)) if rate else None
        eta = "no estimate yet" if left is None else f"{left} left"
        line = f"{self._label}: {self._done}/{self._total} {self._unit}, {rate:.1f}/s, {eta}"
        if self._stream is not None:
            # A full disk or a closed stream must not end the work
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{line}{', ' + self._note if self._note else ''}\n")
                self._stream.flush()


def track(items: Iterable[ItemT], label: str, total: int, unit: str = "items") -> Iterator[ItemT]:
    """Yield ``items`` while showing how many of ``total`` are done."""
    with ProgressBar(label, total, unit) as bar:
        for item in items:
            yield item
            bar.advance()
