"""The watchdog of an RL run: a training that hangs or dies is ended with all its children, and started again.

The training is a child process that tells its watchdog over a pipe, in JSON lines, which phase of
which step it is in (:func:`begin`). A phase over its limit, a crash, a kill and a lost server are
failures; the next child continues after the last logged step. An error that only a user can fix is
not tried again.
"""

import contextlib
import fcntl
import logging
import os
import queue
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Literal, TypeAlias

from pydantic import Field

from deepsearch_rl.core.errors import (
    CommandError,
    DeepsearchError,
    EndpointDownError,
    EndpointError,
    LostProcessError,
    full_disk_named,
)
from deepsearch_rl.core.processes import ProcessGuard, how_it_ended, is_healthy, stream_lines
from deepsearch_rl.core.records import Record
from deepsearch_rl.train.finite import NotFiniteError

_LOG = logging.getLogger(__name__)

OUTPUT_LOG = "output.log"

# Of a server under load, two seconds each
HEALTH_CHECKS = 3

Phase: TypeAlias = Literal["load", "start", "roll out", "update", "dev", "save"]


class Beat(Record):
    """A line of the pipe: a phase of a step begins, or the error that ends the process in it."""

    step: int
    phase: Phase
    error: str = ""
    trace: str = ""
    is_final: bool = False


@dataclass
class _Server:
    name: str
    health: str
    answered: datetime

    def check(self) -> None:
        if not any(is_healthy(self.health) for _ in range(HEALTH_CHECKS)):
            raise EndpointDownError(
                f"{self.name} does not answer at {self.health}; it did at "
                f"{self.answered:%d %b %H:%M:%S}. The rollouts since then are not used."
            )

        self.answered = datetime.now()


@dataclass
class _Heart:
    pipe: int
    beat: Beat
    servers: list[_Server] = field(default_factory=list)

    def send(self, beat: Beat) -> None:
        self.beat = beat
        with open(self.pipe, "w", encoding="utf-8", closefd=False) as pipe:
            pipe.write(beat.model_dump_json() + "\n")


_HEART: ContextVar[_Heart | None] = ContextVar("heart", default=None)


def begin(phase: Phase, step: int) -> None:
    """Tell the watchdog, if there is one, that a phase begins; raise EndpointDownError as :func:`check_server` says."""
    heart = _HEART.get()
    # Nobody watches: a training by hand
    if heart is None:
        return
    for server in heart.servers:
        server.check()
    heart.send(Beat(step=step, phase=phase))


def check_server(name: str, health: str) -> None:
    """Have the address of a server's health check asked before every phase from now on, if this process is watched.

    A phase in which it was lost then ends the training, so that no step learns from its silence and
    no score counts it.
    """
    heart = _HEART.get()
    if heart is not None:
        heart.servers.append(_Server(name, health, datetime.now()))


def run_watched(work: Callable[[], None], pipe: int) -> int:
    """Do the work of a watched process, whose pipe has this number; send its error and return the exit status.

    The pipe is open until the process ends, so that one that hangs in its last line is seen.
    """
    heart = _Heart(pipe, Beat(step=0, phase="load"))
    _HEART.set(heart)

    try:
        with full_disk_named("while writing"):
            work()
    except Exception as error:  # noqa: BLE001
        # The watchdog raises it
        is_told = isinstance(error, DeepsearchError | OSError)
        change = {
            "error": str(error) if is_told else f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc(),
            "is_final": _is_final(error, heart.beat.phase),
        }
        heart.send(heart.beat.model_copy(update=change))
        return 1

    return 0


def _is_final(error: Exception, phase: Phase) -> bool:
    """Return whether another attempt would end the same: errors of files and params, a server that never came up.

    An update that is not finite, and one that lost a process, is tried again from the last
    checkpoint.
    """
    if isinstance(error, NotFiniteError | LostProcessError):
        return False
    if isinstance(error, EndpointError):
        return phase in ("load", "start") and not isinstance(error, EndpointDownError)
    of_system = isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError)
    return of_system or isinstance(error, DeepsearchError)


_LIMITS: dict[Phase, str] = {
    "load": "start_s",
    "start": "start_s",
    "roll out": "rollout_s",
    "dev": "rollout_s",
    "update": "update_s",
    "save": "update_s",
}

# What an error means, by a pattern of its text.
#
# The first is torch's and CUDA's, the second that of mp_actors, which starts ART's process.
_CAUSES = {
    "CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED": (
        "The GPU's memory is full: lower rl.max_sequence_tokens, or end what else uses it "
        "(`nvidia-smi` shows that)"
    ),
    "Child process.* (was killed by|exited with|died)": (
        "The process that trains and serves the policy has ended; where nobody ended it, memory was full"
    ),
}


class WatchdogConfig(Record):
    """When a training counts as hung, and how often it is started again."""

    start_s: float = Field(gt=0, description="limit for loading models and starting servers")
    rollout_s: float = Field(
        gt=0, description="limit for the rollouts of a step, a refill or a dev score"
    )
    update_s: float = Field(gt=0, description="limit for an update, and for keeping its checkpoint")
    restarts: int = Field(
        ge=0,
        description="new starts after failures at one step; the next failure there is an error",
    )

    def limit_s(self, phase: Phase) -> float:
        """Return how long a phase may take."""
        return float(getattr(self, _LIMITS[phase]))


def watch(
    name: str,
    command: Sequence[str],
    settings: str,
    config: WatchdogConfig,
    scratch: Path,
) -> None:
    """Run ``command`` until it ends well (``run_watched``); its last argument is the number of a pipe.

    The command reads ``settings`` from its standard input; its output goes to standard error and,
    with the traces of its errors, to ``scratch/output.log``. Errors call it ``name``. Where a child
    of a killed watchdog still runs, the first one starts when that has ended.

    Raises:
        DeepsearchError: the child's own error, where only a user can fix it.
        CommandError: more than ``config.restarts`` failures at one step.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    log = scratch / OUTPUT_LOG
    failures = Counter[int]()
    step = 0

    with (scratch / "lock").open("a") as lock:
        _wait_for(lock, name)

        while failure := _attempt(command, settings, config, log, step, lock.fileno()):
            beat, problem = failure
            step = beat.step
            # By step: a training that gets on may fail often, one that does not is given up
            failures[step] += 1
            count = failures[step]

            what = f"{name} failed at step {step}, phase {beat.phase!r}: {problem}"
            if count > config.restarts:
                raise CommandError(
                    f"{what} This was failure {count} of this step; rl.watchdog.restarts allows "
                    f"{config.restarts} new starts. All output is in {log}. The steps before are "
                    "kept: fix the cause and run the stage again, which continues after the last "
                    "of them."
                )

            _LOG.warning(
                "%s It starts again after the last step (%d of %d).",
                what,
                count,
                config.restarts,
            )


def _wait_for(lock: IO[str], name: str) -> None:
    """Wait until nobody else holds the lock, which the last process of a killed watchdog frees."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _LOG.warning("%s waits until the processes of an earlier run of it have ended", name)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _attempt(
    command: Sequence[str],
    settings: str,
    config: WatchdogConfig,
    log_path: Path,
    step: int,
    lock: int,
) -> tuple[Beat, str] | None:
    """Run one child to its end; return where and how it failed, None if it did not.

    Raise an error that only a user can fix.
    """
    reading, writing = os.pipe()
    beats: queue.Queue[Beat | None] = queue.Queue()

    with log_path.open("ab", buffering=0) as log:
        with ThreadPoolExecutor(2) as readers, ProcessGuard() as guard:
            arguments = [*command, str(writing)]
            process = guard.start(arguments, settings=settings, inherited=[writing], kept=[lock])
            os.close(writing)

            readers.submit(_read_beats, reading, beats)
            readers.submit(stream_lines, process, lambda line: _write(line, log, sys.stderr))
            last, is_late = _follow(beats, Beat(step=step, phase="load"), config)

            # Before the guard is closed, for the child's own status.
            if not is_late:
                process.wait()

        if last.trace:
            _write(last.trace, log)

    if last.is_final:
        error = DeepsearchError(last.error)
        # For --debug
        error.add_note(last.trace)
        raise error

    if last.error:
        return last, _explain(last.error)
    if is_late:
        limit_s = config.limit_s(last.phase)
        return last, f"it was not done after {limit_s:g} s (rl.watchdog.{_LIMITS[last.phase]})."

    if process.returncode:
        return last, f"the process {how_it_ended(process.returncode)}."
    return None


def _read_beats(reading: int, beats: "queue.Queue[Beat | None]") -> None:
    """Queue all beats of a pipe, and None at its end; a kill may leave a part of a line."""
    with open(reading, encoding="utf-8") as pipe:
        for line in pipe:
            if line.endswith("\n"):
                beats.put(Beat.model_validate_json(line))

    beats.put(None)


def _write(line: str, log: IO[bytes], stream: IO[str] | None = None) -> None:
    """Log a line of output and show it on a stream.

    Neither a full disk nor a terminal that is gone must stop the process that wrote it.
    """
    with contextlib.suppress(OSError):
        log.write(f"{line}\n".encode())
    if stream:
        with contextlib.suppress(OSError):
            stream.write(f"{line}\n")


def _follow(
    beats: "queue.Queue[Beat | None]",
    last: Beat,
    config: WatchdogConfig,
) -> tuple[Beat, bool]:
    """Return the last beat of a child, and whether the phase that it is in takes too long.

    Otherwise the child has ended.
    """
    while True:
        try:
            beat = beats.get(timeout=config.limit_s(last.phase))
        except queue.Empty:
            return last, True

        if beat is None:
            return last, False
        last = beat


def _explain(error: str) -> str:
    """Return the text of an error, below what it means if that is known."""
    for pattern, meaning in _CAUSES.items():
        if re.search(pattern, error):
            return f"{meaning}: {error}"

    return error
