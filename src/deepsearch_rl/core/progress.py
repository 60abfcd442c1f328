"""Progress of long work: a bar with rate and ETA on a terminal, a plain line every ten seconds elsewhere.

Progress never ends the work that it shows. A terminal can go, a disk under a log file can fill up:
after the first write that fails, nothing more is shown.
"""

import contextlib
import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import IO, TextIO, TypeVar, cast

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

ItemT = TypeVar("ItemT")
PLAIN_LINE_INTERVAL_S = 10.0

# An update of a bar costs more than many a unit of work.
BAR_INTERVAL_S = 0.05

_LOG = logging.getLogger(__name__)


class _ProgressStream:
    """Writes to a stream until a write fails, and then nowhere.

    The bar writes from a thread of its own, too, and ends the whole process itself at a pipe that
    nobody reads: so no error gets as far as there.
    """

    def __init__(self, stream: TextIO | None) -> None:
        # Python has no stream at all for a standard error that its parent closed.
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None)
        self.error: OSError | ValueError | None = None

    def isatty(self) -> bool:
        """Return whether it is a terminal; a closed stream is none."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False

    def write(self, text: str) -> int:
        """Write a text, or drop it after an error."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:
                self._stop(error)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._stop(error)

    def _stop(self, error: OSError | ValueError) -> None:
        self._stream = None
        self.error = error


class _TerminalBar(Progress):
    """Bar, count, rate and time left in one line; the note in a line of its own, since both are often long."""

    note = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(self.note)


class ProgressBar:
    """Counts finished work of a known total and shows it; use as a context manager.

    ``label`` says what is being done, e.g. "sft"; ``unit`` is the plural name of a unit, e.g.
    "questions". ``done`` units were finished by an earlier run; they count as done, and in neither
    rate nor ETA. A terminal as ``stream`` gets a bar, anything else plain lines. A stream that cannot
    be written is written no more, which a warning says once.
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
        self._stream = _ProgressStream(stream)
        self._is_warned = False
        self._resumed = self._done = done
        self._note = ""
        self._started = self._shown = time.monotonic()
        self._bar = None
        self._interval_s = PLAIN_LINE_INTERVAL_S

        # In a log file, or under a flow, a bar would be a thousand lines
        if self._stream.isatty():
            texts = (
                TextColumn("{task.description}"),
                TextColumn("{task.fields[rate]:.1f} " + f"{unit}/s"),
            )
            columns = texts[0], BarColumn(), MofNCompleteColumn(), texts[1], TimeRemainingColumn()
            console = Console(file=cast("IO[str]", self._stream))
            self._bar = _TerminalBar(*columns, console=console)
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
        self._warn_once()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` more units as done; ``note`` is shown beside or below them."""
        self._done = self._done + count
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
        self._stream.write(f"{line}{', ' + self._note if self._note else ''}\n")
        self._stream.flush()
        self._warn_once()

    def _warn_once(self) -> None:
        """Log a warning where the stream has failed.

        Here and not where it fails: that may be in the bar's thread, which holds the bar's lock,
        and a handler of the log may wait for it.
        """
        if self._stream.error is None or self._is_warned:
            return

        self._is_warned = True
        # The log may go where the progress went.
        with contextlib.suppress(OSError, ValueError):
            _LOG.warning(
                "progress of %s is not shown any more (%s); the work goes on",
                self._label,
                self._stream.error,
            )


def track(items: Iterable[ItemT], label: str, total: int, unit: str = "items") -> Iterator[ItemT]:
    """Yield ``items`` while showing how many of ``total`` are done."""
    with ProgressBar(label, total, unit) as bar:
        for item in items:
            yield item
            bar.advance()
