"""Child processes: start, wait until healthy, stop with everything that they started.

No child outlives the process that started it, even if that is killed: each runs under a
:mod:`.supervisor`.
"""

import contextlib
import http.client
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from deepsearch_rl.core import supervisor
from deepsearch_rl.core.errors import EndpointError, UnavailableError

LOOPBACK = "127.0.0.1"
GRACE_S = supervisor.GRACE_S
# Lines of a command's output that an error shows
LAST_LINES = 15
PORTS_TRIED = 20

_LOG = logging.getLogger(__name__)
_SUPERVISOR_GRACE_S = (2 * supervisor.KILL_ROUNDS + 1) * GRACE_S
# The last line of a traceback, after whatever a logger puts before it
_ERROR_LINE = re.compile(r"(?:^|\s)[A-Za-z_.]*(?:Error|Exception): \S")
_POLL_S = 0.1
_HEALTH_TIMEOUT_S = 2.0


class ProcessGuard:
    """Runs commands; when this context manager closes, they and all their descendants end."""

    def __init__(self) -> None:
        self._reading_end, self._writing_end = os.pipe()
        self._processes: list[subprocess.Popen[str]] = []
        self._starting = threading.Lock()
        self._open = True

    def __enter__(self) -> "ProcessGuard":
        return self

    def __exit__(self, *exc_info: object) -> None:
        # First, because a second Ctrl-C may arrive at any line
        os.close(self._writing_end)
        with self._starting:
            self._open = False
        for process in self._processes:
            _end_supervisor(process)
        os.close(self._reading_end)

    def check_open(self) -> None:
        """Raise UnavailableError if another thread has closed the guard."""
        if not self._open:
            raise UnavailableError("cancelled before it started")

    def start(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        output: IO[str] | int = subprocess.PIPE,
        settings: str = "",
        inherited: Sequence[int] = (),
        kept: Sequence[int] = (),
    ) -> "subprocess.Popen[str]":
        """Start a command and return its supervisor, which ends with the command's exit status.

        Args:
            command: program and arguments.
            folder: working directory; None: ours.
            environment: variables; None: ours.
            output: where standard output and error go, as one stream of lines.
            settings: text on the command's standard input.
            inherited: file descriptors that the command gets under the same numbers.
            kept: file descriptors, e.g. of locks, that stay open until the last descendant ends.

        Raises UnavailableError if another thread has closed the guard.
        """
        with self._starting, tempfile.TemporaryFile() as standard_input:
            self.check_open()
            standard_input.write(settings.encode())
            standard_input.seek(0)
            descriptors = [standard_input.fileno(), *inherited]
            # -P: the working directory may contain a folder with a package's name
            program = [sys.executable, "-P", "-m", supervisor.__name__]
            process = subprocess.Popen(
                [*program, ",".join(map(str, descriptors)), *command],
                stdin=self._reading_end,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                bufsize=1,
                cwd=folder,
                env=environment,
                pass_fds=[*descriptors, *kept],
                # Ctrl-C reaches only us, and we close the guard
                start_new_session=True,
            )
            self._processes.append(process)

        return process


def _end_supervisor(process: "subprocess.Popen[str]") -> None:
    """Wait until a supervisor has ended its command; kill the group of one that was killed or hangs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.wait(_SUPERVISOR_GRACE_S) >= 0:
            return

    _LOG.warning("process group %d is killed: its supervisor does not end it", process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def last_lines(log: Path) -> str:
    """Return the last lines of a log for an error message, after the last error line above them.

    In a server of several processes (vLLM) the cause comes from one, and the last lines from another
    that waited for it.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    ending = lines[-LAST_LINES:]
    for line in reversed(lines[:-LAST_LINES]):
        if _ERROR_LINE.search(line):
            return "\n".join([line, "...", *ending])

    return "\n".join(ending)


def stream_lines(process: "subprocess.Popen[str]", on_line: Callable[[str], object]) -> list[str]:
    """Call ``on_line`` with every line that is not blank until the process ends; return the last ones."""
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=LAST_LINES)

    with process.stdout as lines:
        for line in map(str.rstrip, lines):
            if line:
                tail.append(line)
                on_line(line)

    process.wait()
    return list(tail)


@dataclass(frozen=True, slots=True)
class Server:
    """A server under a guard: its name in errors, address, path of its health check, log and process."""

    name: str
    url: str
    health: str
    log: Path
    process: "subprocess.Popen[str]"

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Return when the health check answers with status 200; raise EndpointError if it ends or takes longer."""
        deadline = time.monotonic() + timeout_s
        while not is_healthy(f"{self.url}{self.health}"):
            self.raise_if_ended()
            if time.monotonic() > deadline:
                raise self._error(f"did not answer at {self.url} within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def raise_if_ended(self) -> None:
        """Raise EndpointError with the last lines of the log if the server has ended."""
        if (code := self.process.poll()) is not None:
            raise self._error(f"ended with exit code {code}")

    def _error(self, problem: str) -> EndpointError:
        return EndpointError(
            f"{self.name} {problem}; its log, {self.log}, ends:\n{last_lines(self.log)}"
        )


@contextlib.contextmanager
def running_server(
    name: str,
    command: Sequence[str],
    url: str,
    health: str,
    timeout_s: float,
    *,
    settings: str = "",
    listener: socket.socket | None = None,
) -> Iterator[Server]:
    """Run :func:`starting_server`, and begin the block when the server is healthy."""
    starting = starting_server(name, command, url, health, settings=settings, listener=listener)
    with starting as server:
        server.wait_until_healthy(timeout_s)
        yield server


@contextlib.contextmanager
def starting_server(
    name: str,
    command: Sequence[str],
    url: str,
    health: str,
    *,
    settings: str = "",
    listener: socket.socket | None = None,
) -> Iterator[Server]:
    """Run a server until the end of the block, which begins at once: call ``wait_until_healthy`` in it.

    Args:
        name: how errors call it, e.g. "the model server".
        command: program and arguments.
        url: its address.
        health: path that it answers with status 200 once it is ready.
        settings: text on its standard input.
        listener: a socket that it inherits under the same number. It is closed here, so that a server
            that ends during its start breaks the connection of the health check.

    The log is kept if the server ends by itself, or if the block ends with an EndpointError.
    """
    folder = Path(tempfile.mkdtemp(prefix="deepsearch-"))
    log = folder / "output.log"
    is_kept = False

    try:
        with ProcessGuard() as guard:
            inherited = [listener.fileno()] if listener else []
            with log.open("w", encoding="utf-8") as output, listener or contextlib.nullcontext():
                process = guard.start(
                    command, output=output, settings=settings, inherited=inherited
                )
            try:
                yield Server(name, url, health, log, process)
            finally:
                is_kept = process.poll() is not None
    except EndpointError:
        is_kept = True
        raise
    finally:
        if is_kept:
            _LOG.warning("the log of %s is kept in %s", name, folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def is_healthy(url: str) -> bool:
    """Return whether a GET of an http or https address gives status 200."""
    address = urlsplit(url)
    make = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = make(address.hostname or "", address.port, timeout=_HEALTH_TIMEOUT_S)

    with contextlib.closing(connection):
        try:
            connection.request("GET", address.path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def free_port(first: int = 0) -> int:
    """Return a free TCP port of the loopback: any, or the first of 20 from ``first`` on."""
    for port in range(first, first + PORTS_TRIED) if first else (0,):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])

    raise EndpointError(
        f"ports {first} to {first + PORTS_TRIED - 1} are all in use; stop one of the servers there."
    )


def how_it_ended(status: int) -> str:
    """Describe the exit status of a process, a supervisor's or any other."""
    number = -status if status < 0 else status - 128
    if number not in {*signal.Signals}:
        return f"ended with exit status {status}"

    is_kill = number == signal.SIGKILL
    hint = ", as the system does when memory is full (`dmesg` shows that)" if is_kill else ""
    return f"was killed by {signal.Signals(number).name}{hint}"
