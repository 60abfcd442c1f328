"""Run commands that cannot outlive the process that started them, however it ends.

    python -m flows.leash COMMAND...          (the child's half; standard input is the leash)

A :class:`Leash` is a pipe. Every command runs under a small supervisor that holds the reading end as its standard
input; when the last writing end is gone - closed by us, or by the kernel because we were killed - the supervisor sees
the end of the file and ends the command with everything that it started. A process group would not do: servers that a
stage starts have sessions of their own. On Linux the supervisor therefore adopts orphans (``PR_SET_CHILD_SUBREAPER``,
prctl(2)), so that all of them are its descendants.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from deepsearch_rl.errors import UnavailableError

GRACE_S = 10.0
"""How long a process has between SIGTERM and SIGKILL."""
CANCELLED_STATUS = 143
"""Exit status of a command whose leash was let go: that of a process ended by SIGTERM."""
_PR_SET_CHILD_SUBREAPER = 36


class Leash:
    """While it is held (a context manager), commands run; when it is let go, they and their descendants end."""

    def __init__(self) -> None:
        self._reading_end, self._writing_end = os.pipe()  # neither is inherited unless passed on
        self._started: list[subprocess.Popen[str]] = []
        self._starting = threading.Lock()
        self._held = True

    def __enter__(self) -> "Leash":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._writing_end)  # first of all: a second Ctrl-C may arrive at any line
        with self._starting:
            self._held = False
        for process in self._started:
            process.wait()
        os.close(self._reading_end)

    def start(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: IO[str] | int = subprocess.PIPE,
    ) -> "subprocess.Popen[str]":
        """Start a command in ``folder``; its standard output and error go to ``output`` as one stream of lines.

        Raises:
            UnavailableError: the leash was let go already, in another thread.
        """
        with self._starting:
            if not self._held:
                raise UnavailableError("cancelled before it started")
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), *command],
                stdin=self._reading_end,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                bufsize=1,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C reaches us alone; we let go
            )
            self._started.append(process)
        return process


def main(command: Sequence[str]) -> int:
    """Run the command until it ends or standard input does; leave no descendant behind."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: descendants are found by parentage alone
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    let_go = threading.Event()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch_leash, args=(let_go,), daemon=True).start()
    status = process.wait()
    _end_descendants()
    return CANCELLED_STATUS if let_go.is_set() else status if status >= 0 else 128 - status


def _watch_leash(let_go: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    let_go.set()
    _end_descendants()


def _end_descendants() -> None:
    """SIGTERM to all descendants, SIGKILL to those that stay; repeated, for some start others while they end."""
    for descendants in _living_descendants():
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, staying = psutil.wait_procs(descendants, timeout=GRACE_S)
        for process in staying:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(staying, timeout=GRACE_S)


def _living_descendants() -> Iterator[list[psutil.Process]]:
    while descendants := psutil.Process().children(recursive=True):
        yield descendants


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
