"""What is recorded is what ran: a stage whose code, params or data change while it runs does not end well.

DVC reads the files that a stage depends on after its command has ended, and records their content
then (dvc#11058). An edit while a stage runs would so be recorded, and pushed to others, with the
output of what was there before. So the stage compares its state at its end with that of its start,
and ends with an error where they differ: DVC records nothing of a stage that fails.

The files are looked at while the stage runs, too. So a person learns at once that hours of training
will not count, and a file that was edited and put back does not pass: modules are loaded when they
are first needed.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepsearch_rl import LOADED
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.scratch import Scratch
from deepsearch_rl.core.stage_state import StageState, differences, file_stamp, read_state, summary

POLL_S = 2.0
_LOG = logging.getLogger(__name__)


class StageChangedError(DeepsearchError):
    """What a stage depends on changed while it ran, so its output belongs to no state and is not recorded."""


@contextmanager
def unchanged(
    params: Path, before: StageState, root: Path, scratch: Scratch | None = None
) -> Iterator[None]:
    """Raise StageChangedError after a block in which the state of a stage was another one than ``before``.

    The scratch folder of such a run is not resumed, whether the block ended well or with an error
    of its own.
    """
    watch = _Watch(params, before, root, scratch)
    watch.look_at_start()

    if watch.changes:
        raise StageChangedError(
            f"{before.stage} did not begin: {summary(watch.changes)}. Run it again."
        )

    # While it runs: to learn at the end that hours were for nothing would be late
    thread = threading.Thread(target=watch.poll, daemon=True)
    thread.start()

    try:
        yield
    finally:
        watch.ending.set()
        thread.join()
        watch.look()

    if watch.changes:
        raise StageChangedError(
            f"{before.stage} is not recorded, because its inputs changed while it ran: "
            f"{summary(watch.changes)}. Its output belongs neither to the old files nor to the new "
            "ones. Run it again; it then starts anew."
        )


class _Watch:
    """Compares a stage's state with that of its start; ``changes`` has the differences that were seen first."""

    def __init__(
        self, params: Path, before: StageState, root: Path, scratch: Scratch | None
    ) -> None:
        self.ending = threading.Event()
        self.changes: list[str] = []
        self._params = params
        self._before = before
        self._root = root
        self._scratch = scratch
        self._paths = [params, *(root / name for name in before.code), *map(Path, before.data)]
        self._stamp = self._read_stamp()

    def poll(self) -> None:
        """Look every few seconds until the stage ends, or until something has changed."""
        while not self.changes and not self.ending.wait(POLL_S):
            self.look()

    def look_at_start(self) -> None:
        """Find sources that were written after this process began: it may have loaded what was there before."""
        now = time.time()
        for name in self._before.code:
            path = self._root / name
            if path.exists() and LOADED < path.stat().st_mtime <= now:
                self.changes.append(f"{name} (changed while the stage was starting)")

    def look(self) -> None:
        """Compare the states where a file is not the one that it was; a file that was only touched is the same.

        At the end of the stage they are compared in any case: what was edited between the first
        reading of the state and the first stamp has the same stamp ever since.
        """
        if self.changes:
            return
        stamp = self._read_stamp()
        if stamp == self._stamp and not self.ending.is_set():
            return
        self._stamp = stamp
        self.changes = self._differences()
        if not self.changes:
            return
        if self._scratch is not None:
            self._scratch.mark_changed()
        if not self.ending.is_set():
            _LOG.warning(
                "%s will not be recorded, because its inputs change while it runs: %s. Stop it and "
                "run it again, or let it go on for its output on the screen alone.",
                self._before.stage,
                summary(self.changes),
            )

    def _read_stamp(self) -> list[str]:
        return [file_stamp(path) for path in self._paths]

    def _differences(self) -> list[str]:
        # While somebody edits, a file may be half-written, or gone.
        try:
            now = read_state(load_profile(self._params), self._before.stage, self._root)
        except (DeepsearchError, OSError) as error:
            return [f"{self._params} or the graph beside it cannot be read any more ({error})"]

        return differences(self._before, now)
