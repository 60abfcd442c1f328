"""Several server processes behind one port: ``deepsearch retrieve serve --workers N``.

Every worker is a whole server with a queue, a cache and limits of its own; what it maps from the
index's files is in memory once for all. Each has its own socket at the port (``SO_REUSEPORT``), and
the kernel deals new connections out among those that listen. A connection stays with its worker.

The sockets belong to this process. A worker listens once its index is open, so that no client waits
for one that starts. One that dies leaves its socket behind, listening: whoever connects meanwhile is
answered by the next process, which inherits it. A worker that dies before its index is open would
do so again, and ends the server.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.core.hardware import usable_cores
from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.server import launch
from deepsearch_rl.server.config import ServerConfig
from deepsearch_rl.server.metrics import MULTIPROCESS_VARIABLE, forget_worker

_LOG = logging.getLogger(__name__)
_WATCH_S = 0.2
STANDARD_ERROR = 2


@dataclass(slots=True)
class _Worker:
    """A place of the server: its socket, and the process that serves it at present."""

    number: int
    listener: socket.socket
    process: subprocess.Popen[str]

    # Where the process writes its number once its index is open
    ready: int
    pid: int | None = field(default=None)

    def is_ready(self) -> bool:
        """Return whether the index is open, now or before the process died."""
        if self.pid is None and select.select([self.ready], [], [], 0)[0]:
            text = os.read(self.ready, 64)
            self.pid = int(text) if text else None
        return self.pid is not None


class WorkerPool:
    """Starts workers and starts them again; they end with ``guard``."""

    def __init__(self, config: ServerConfig, port: int, guard: ProcessGuard, metrics: Path) -> None:
        threads = config.threads or max(1, usable_cores() // config.workers)
        self._config = config.model_copy(update={"threads": threads})
        self._port = port
        self._guard = guard
        self._metrics = metrics
        self._workers: list[_Worker] = []

    def run(self, stop: threading.Event) -> None:
        """Keep all workers running until ``stop`` is set; raise UnavailableError where one cannot start.

        The first one starts alone: what is wrong with the index is then said once.
        """
        is_announced = False
        while not stop.wait(_WATCH_S):
            for worker in self._workers:
                if worker.process.poll() is not None:
                    self._replace(worker)

            ready = sum(worker.is_ready() for worker in self._workers)
            if not self._workers:
                self._add_worker()
            elif ready and len(self._workers) < self._config.workers:
                for _ in range(len(self._workers), self._config.workers):
                    self._add_worker()
            elif ready == self._config.workers and not is_announced:
                is_announced = True
                what = launch.describe(self._config, self._workers[0].listener)
                _LOG.info(
                    "%s, by %d workers, %d threads each", what, ready, self._config.threads or 0
                )

    def _add_worker(self) -> None:
        listener = launch.bind(self._config.host, self._port, shared=True)
        number = len(self._workers) + 1
        self._workers.append(_Worker(number, listener, *self._start(listener)))

    def _start(self, listener: socket.socket) -> tuple[subprocess.Popen[str], int]:
        """Start a process on a socket; return it and the descriptor on which it says that it is ready."""
        reading_end, writing_end = os.pipe()
        command = [sys.executable, "-m", "deepsearch_rl.server.launch"]
        descriptors = [listener.fileno(), writing_end]

        # The libraries of linear algebra read it when they are loaded
        environment = {
            "OMP_NUM_THREADS": str(self._config.threads),
            **os.environ,
            MULTIPROCESS_VARIABLE: str(self._metrics),
        }

        process = self._guard.start(
            [*command, *map(str, descriptors)],
            environment=environment,
            output=STANDARD_ERROR,
            settings=self._config.model_dump_json(),
            inherited=descriptors,
        )
        os.close(writing_end)
        return process, reading_end

    def _replace(self, worker: _Worker) -> None:
        status = worker.process.returncode
        if not worker.is_ready():
            raise UnavailableError(
                f"worker {worker.number} of the retrieval server ended with status {status} before its index was "
                f"open; what it wrote above says why."
            )

        assert worker.pid is not None
        _LOG.warning(
            "worker %d (process %d) ended with status %d and is started again",
            worker.number,
            worker.pid,
            status,
        )
        forget_worker(worker.pid, self._metrics)
        os.close(worker.ready)
        worker.pid = None
        worker.process, worker.ready = self._start(worker.listener)


def serve_workers(config: ServerConfig) -> None:
    """Serve by ``config.workers`` processes until a signal comes.

    Raise as :func:`~deepsearch_rl.server.launch.open_listener` and :meth:`WorkerPool.run`.
    """
    # A port where another server listens is refused here: sockets that share one would join it.
    with launch.open_listener(config) as probe:
        port = probe.getsockname()[1]

    with (
        tempfile.TemporaryDirectory(prefix="deepsearch-") as metrics,
        ProcessGuard() as guard,
        _stop_signals() as stop,
    ):
        WorkerPool(config, port, guard, Path(metrics)).run(stop)

    _LOG.info("stopped serving %s", config.retrieval.online or config.index)


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets."""
    stop = threading.Event()
    handlers: dict[int, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        handlers[number] = signal.signal(number, lambda *_: stop.set())

    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
