"""Child processes: start, health check, stop with all that they started.

    python -m deepsearch_rl.core.processes DESCRIPTORS COMMAND...     (the supervisor, started by ProcessGuard)

No child outlives the process that started it. Every command runs under a small supervisor, whose
standard input is a pipe that only the :class:`ProcessGuard` can write to. When the guard closes it,
or the kernel does because our process was killed, the supervisor ends the command with all of its
descendants: on Linux it adopts orphans (``PR_SET_CHILD_SUBREAPER``, prctl(2)), because servers
start others in sessions of their own.
"""

import contextlib
import ctypes
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

import psutil

from deepsearch_rl.core.errors import EndpointError, UnavailableError

_LOG = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"

# How long a process has between SIGTERM and SIGKILL: more than the retrieval server needs for its
# last answers
GRACE_S = 12.0

# How often descendants are killed before those that stay are left behind
KILL_ROUNDS = 3

# How long a supervisor has to end its command and all descendants
SUPERVISOR_GRACE_S = 2 * GRACE_S * KILL_ROUNDS + GRACE_S

# Exit status of a command that its guard ended: that of a process ended by SIGTERM
CANCELLED_STATUS = 143

# Exit status where there is no such program, as shells have it
NOT_STARTED_STATUS = 127

# How many lines of a command's output an error shows
LAST_LINES = 15
# The line that ends a traceback, whatever a logger puts before it
_ERROR_LINE = re.compile(r"(?:^|\s)[A-Za-z_.]*(?:Error|Exception): \S")
PORTS_TRIED = 20
_POLL_S = 0.1
_WATCH_S = 1.0
_HEALTH_TIMEOUT_S = 2.0
_PR_SET_CHILD_SUBREAPER = 36


class ProcessGuard:
    """A context manager that runs commands; when it closes, they and all their descendants end."""

    def __init__(self) -> None:
        # Children inherit neither unless it is passed to them
        self._reading_end, self._writing_end = os.pipe()
        self._processes: list[subprocess.Popen[str]] = []
        self._starting = threading.Lock()
        self._open = True

    def __enter__(self) -> "ProcessGuard":
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Before anything else: a second Ctrl-C may arrive at any line
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

        It runs in ``folder`` and ``environment``, ours if not given, and reads ``settings`` from
        its standard input. Standard output and error go to ``output`` as one stream of lines. It
        has the file descriptors ``inherited`` under the same numbers. Those of ``kept``, of locks
        for example, stay open until its last descendant has ended. Raises UnavailableError if
        another thread has closed the guard.
        """
        with self._starting, tempfile.TemporaryFile() as standard_input:
            self.check_open()
            standard_input.write(settings.encode())
            standard_input.seek(0)
            descriptors = [standard_input.fileno(), *inherited]
            # -P: no folder of the working directory is taken for a package.
            supervisor = [
                sys.executable,
                "-P",
                "-m",
                "deepsearch_rl.core.processes",
                ",".join(map(str, descriptors)),
            ]
            process = subprocess.Popen(
                [*supervisor, *command],
                stdin=self._reading_end,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                bufsize=1,
                cwd=folder,
                env=environment,
                pass_fds=[*descriptors, *kept],
                # Ctrl-C reaches us alone, and we close the guard
                start_new_session=True,
            )
            self._processes.append(process)

        return process


def _end_supervisor(process: "subprocess.Popen[str]") -> None:
    """Wait until a supervisor has ended its command; kill its group where it was killed itself or does not end."""
    try:
        if process.wait(SUPERVISOR_GRACE_S) >= 0:
            return
    except subprocess.TimeoutExpired:
        _LOG.warning(
            "the supervisor of process group %d does not end; the group is killed", process.pid
        )

    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _LOG.error("process %d cannot be killed and is left behind", process.pid)


def last_lines(log: Path) -> str:
    """Return the last lines of a log, as an error shows them, and before them an error that came earlier.

    A server of several processes (vLLM) ends with the error of one that waited, whose cause another
    process has written before.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    ending = lines[-LAST_LINES:]
    for line in reversed(lines[:-LAST_LINES]):
        if _ERROR_LINE.search(line):
            return "\n".join([line, "...", *ending])

    return "\n".join(ending)


def stream_lines(process: "subprocess.Popen[str]", on_line: Callable[[str], object]) -> list[str]:
    """Call ``on_line`` with every line (or carriage return) that is not blank; return the last lines at the end."""
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
    """A server that runs under a guard: its name in errors, address, path of its health check, log and process."""

    name: str
    url: str
    health: str
    log: Path
    process: "subprocess.Popen[str]"

    def wait_until_healthy(self, timeout_s: float) -> None:
        """Return as soon as the server answers with status 200; raise EndpointError if it ended or is too late."""
        deadline = time.monotonic() + timeout_s
        while not is_healthy(f"{self.url}{self.health}"):
            self.raise_if_ended()
            if time.monotonic() > deadline:
                raise self._error(f"did not answer at {self.url} within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def raise_if_ended(self) -> None:
        """Raise EndpointError with the last lines of the log if the process has ended."""
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
    """Run a server until the end of the block, which begins when it answers.

    The arguments are those of :func:`starting_server`. Raises as :meth:`Server.wait_until_healthy`.
    """
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
    """Run a server until the end of the block, which begins at once: it has :meth:`Server.wait_until_healthy` to call.

    It is healthy when it answers a GET of the path ``health`` with status 200. Errors call it
    ``name``, e.g. "the model server". It reads ``settings`` from its standard input, and has the
    socket ``listener`` under the same number; that is closed here, so that a server that ends while
    it starts breaks the connection of the health check. Its log is kept where it ended by itself, or
    where an EndpointError ends the block.
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
                # A server that ended by itself says why in its log, whatever the block made of it
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
    """Return whether a GET of an http or https address is answered with status 200."""
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
    """Return a loopback TCP port that nothing listens on now: any, or the first one of 20 from ``first`` on."""
    for port in range(first, first + PORTS_TRIED) if first else (0,):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])

    raise EndpointError(
        f"ports {first} to {first + PORTS_TRIED - 1} are all in use; stop one of the servers there."
    )


def how_it_ended(status: int) -> str:
    """Return how a process ended that left no error, by its exit status; a supervisor's is its command's or its own."""
    number = -status if status < 0 else status - 128
    if number not in {*signal.Signals}:
        return f"ended with exit status {status}"

    is_kill = number == signal.SIGKILL
    hint = ", as the system does when memory is full (`dmesg` shows that)" if is_kill else ""
    return f"was killed by {signal.Signals(number).name}{hint}"


def supervise(descriptors: Sequence[int], command: Sequence[str]) -> int:
    """Run a command, whose standard input is the first descriptor, until it or ours ends; return the exit status."""
    # Not Linux: descendants are found by parentage alone
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    cancelled = threading.Event()

    def watch_guard() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        cancelled.set()
        if not _end_descendants():
            # The command itself may be what stays: nobody waits for it any more
            os._exit(CANCELLED_STATUS)

    try:
        process = subprocess.Popen(command, stdin=descriptors[0], pass_fds=descriptors[1:])
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return NOT_STARTED_STATUS

    for descriptor in descriptors:
        os.close(descriptor)
    watch = threading.Thread(target=watch_guard, daemon=True)
    watch.start()
    status: int | None = None

    # A command whose guard nobody watches would outlive it, so a watch that fails ends the command
    while status is None and watch.is_alive():
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(_WATCH_S)

    _end_descendants()
    if status is None or cancelled.is_set():
        return CANCELLED_STATUS

    # Python gives a process that a signal ended the signal's number, negative; shells add it to 128.
    return status if status >= 0 else 128 - status


def _end_descendants() -> bool:
    """Send SIGTERM to all descendants and SIGKILL to those that stay, in rounds, because some start others.

    Returns whether none is left. One that the kernel does not end (in a system call on a dead disk,
    for example) is named and left behind.
    """
    for _ in range(KILL_ROUNDS):
        descendants = psutil.Process().children(recursive=True)
        if not descendants:
            return True
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()

        _, alive = psutil.wait_procs(descendants, timeout=GRACE_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

        psutil.wait_procs(alive, timeout=GRACE_S)

    # The last round may have ended all
    left = [process.pid for process in psutil.Process().children(recursive=True)]
    if left:
        sys.stderr.write(f"processes {left} cannot be killed and are left behind\n")
    return not left


if __name__ == "__main__":
    sys.exit(supervise([int(number) for number in sys.argv[1].split(",")], sys.argv[2:]))
