"""Child processes that cannot outlive their parent, with their output kept for error messages."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from deepsearch_rl.errors import EndpointError

_PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A running child and the file that its output goes to."""

    process: "subprocess.Popen[bytes]"
    log: Path


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def watched_process(command: Sequence[str]) -> Iterator[WatchedProcess]:
    """Run a command in a process group of its own and end that group with the block, or with this process."""
    with tempfile.TemporaryDirectory(prefix="deepsearch-") as scratch:
        log = Path(scratch, "output.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=die_with_parent
            )
        try:
            yield WatchedProcess(process, log)
        finally:
            stop(process)


def stop(process: "subprocess.Popen[Any]", timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask the process's group to end, and kill it if it has not after ``timeout_s``."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
            return


def wait_until_healthy(server: WatchedProcess, url: str, timeout_s: float) -> None:
    """Poll ``url`` until it answers 200.

    Raises:
        EndpointError: the process ended (with its last lines) or did not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise EndpointError(
                f"the model server ended with exit code {server.process.returncode}:\n{last_lines(server.log)}"
            )
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=2.0).status_code == 200:
                return
        time.sleep(0.1)
    raise EndpointError(f"the model server did not answer at {url} within {timeout_s:g} s:\n{last_lines(server.log)}")


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, for an error message."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])


def die_with_parent() -> None:
    """Linux: have the kernel end this child when its parent ends, however that happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
