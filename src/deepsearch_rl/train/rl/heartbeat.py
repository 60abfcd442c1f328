"""What a training process tells its watchdog (:mod:`deepsearch_rl.train.rl.watchdog`): phases and its last error.

It writes JSON lines to a pipe, which no full disk can silence.
"""

import traceback
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from deepsearch_rl.core.errors import (
    DeepsearchError,
    EndpointDownError,
    EndpointError,
    LostProcessError,
    full_disk_named,
)
from deepsearch_rl.core.processes import is_healthy
from deepsearch_rl.core.records import Record
from deepsearch_rl.train.finite import NotFiniteError

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
