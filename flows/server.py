"""Servers on loopback that run under a leash: start, wait until they answer, know where they are."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.errors import EndpointError
from flows.leash import Leash

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
PREFECT_PORT = 4200
START_TIMEOUT_S = 180.0
POLL_S = 0.5
PORTS_TRIED = 20


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs under a leash: its name, address, health page, log file and process."""

    name: str
    url: str
    health: str
    log: Path
    process: "subprocess.Popen[str]"

    def wait_until_healthy(self) -> None:
        """Return when the server answers.

        Raises:
            EndpointError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_healthy(self.health):
            self.raise_if_ended()
            if time.monotonic() > deadline:
                raise EndpointError(f"{self.name} did not answer at {self.url}; its log is {self.log}.")
            time.sleep(POLL_S)

    def raise_if_ended(self) -> None:
        """Raise EndpointError with the log's last lines if the process is gone."""
        if self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise EndpointError(f"{self.name} ended with status {self.process.returncode}; its last lines:\n{tail}")


def is_healthy(url: str) -> bool:
    """Whether a GET of ``url`` is answered with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def free_port(first: int) -> int:
    """The first free port of this machine from ``first`` on.

    Raises:
        EndpointError: the next ports are in use as well.
    """
    for port in range(first, first + PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex((HOST, port)) != 0:
                return port
    raise EndpointError(f"ports {first} to {first + PORTS_TRIED - 1} are all in use; stop one of the servers there.")


def start_server(
    leash: Leash, name: str, port: int, health: str, module: Sequence[str], settings: Mapping[str, str]
) -> Server:
    """Start ``python -m MODULE... --host --port``; its output goes to work/servers/, ``health`` is a path of it."""
    url = f"http://{HOST}:{port}"
    log = ROOT / "work" / "servers" / f"{name.lower()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", *module, "--host", HOST, "--port", str(port)]
    with log.open("w", encoding="utf-8") as output:
        process = leash.start(command, ROOT, {**os.environ, **settings}, output)
    return Server(name, url, f"{url}{health}", log, process)


def start_prefect(leash: Leash) -> Server:
    """Start a Prefect server over the database in ``PREFECT_HOME``."""
    port = free_port(PREFECT_PORT)
    api = f"http://{HOST}:{port}/api"
    settings = {"PREFECT_API_URL": api, "PREFECT_UI_API_URL": api}
    return start_server(leash, "Prefect", port, "/api/health", ["prefect", "server", "start"], settings)


@contextmanager
def prefect_api() -> Iterator[str]:
    """The API address of a Prefect server: the one that the environment names, or that runs already, or a new one.

    Prefect could start a temporary server by itself, but would leave it behind when the flow is killed.
    """
    named, note = os.environ.get("PREFECT_API_URL"), Path(os.environ["PREFECT_HOME"]) / "api-url"
    running = named or (note.read_text(encoding="utf-8") if note.is_file() else "")
    if running and (named or is_healthy(f"{running}/health")):
        yield running
        return
    with Leash() as leash:
        server = start_prefect(leash)
        server.wait_until_healthy()
        note.write_text(f"{server.url}/api", encoding="utf-8")
        try:
            yield f"{server.url}/api"
        finally:
            note.unlink(missing_ok=True)
