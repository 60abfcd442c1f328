"""Prefect's and MLflow's user interfaces on loopback until Ctrl-C.

    python -m flows.ui

Prefect keeps its database under .prefect/ (``PREFECT_HOME``), MLflow its own under mlruns/. While this runs,
`make flow` sends its runs to the server started here; otherwise it starts a temporary one over the same database.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.tracking import local_store
from flows.leash import Leash

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "work" / "ui"
HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
POLL_S = 0.5
PORTS_TRIED = 20


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs under the leash: its name, address, log file and process."""

    name: str
    url: str
    log: Path
    process: "subprocess.Popen[str]"

    def answers(self) -> bool:
        """Whether it says that it is healthy."""
        return is_healthy(f"{self.url}/api/health") or is_healthy(f"{self.url}/health")

    def raise_if_ended(self) -> None:
        """Raise EndpointError with the log's last lines if the process is gone."""
        if self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise EndpointError(f"{self.name} ended with status {self.process.returncode}; its last lines:\n{tail}")


def is_healthy(url: str) -> bool:
    """Whether a GET of ``url`` on this machine gives JSON or text with status 200, not a page."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200 and "html" not in response.headers.get("Content-Type", "")
    except (urllib.error.URLError, OSError):
        return False


def free_port(first: int) -> int:
    """The first free port from ``first`` on.

    Raises:
        EndpointError: the next ports are in use as well.
    """
    for port in range(first, first + PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex((HOST, port)) != 0:
                return port
    raise EndpointError(f"ports {first} to {first + PORTS_TRIED - 1} are all in use; stop one of the servers there.")


def api_url_file() -> Path:
    """Where the address of a running Prefect server stands for flow runs to find."""
    return Path(os.environ["PREFECT_HOME"]) / "api-url"


def running_prefect_api() -> str | None:
    """The API address of the Prefect server that `make ui` runs, None where it runs none."""
    path = api_url_file()
    url = path.read_text(encoding="utf-8") if path.is_file() else ""
    return url if url and is_healthy(f"{url}/health") else None


@contextmanager
def serve() -> Iterator[list[Server]]:
    """Start both servers, wait until they answer and stop them with the block.

    Raises:
        EndpointError: no port is free, or a server ended or did not answer in time.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    with Leash() as leash:
        servers = [_start_prefect(leash, free_port(4200)), _start_mlflow(leash, free_port(5000))]
        deadline = time.monotonic() + START_TIMEOUT_S
        for server in servers:
            while not server.answers():
                server.raise_if_ended()
                if time.monotonic() > deadline:
                    raise EndpointError(f"{server.name} did not answer at {server.url}; its log is {server.log}.")
                time.sleep(POLL_S)
        api_url_file().write_text(f"{servers[0].url}/api", encoding="utf-8")
        try:
            yield servers
        finally:
            api_url_file().unlink(missing_ok=True)


def _start_prefect(leash: Leash, port: int) -> Server:
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    return _start(leash, "Prefect", url, command, {"PREFECT_API_URL": f"{url}/api", "PREFECT_UI_API_URL": f"{url}/api"})


def _start_mlflow(leash: Leash, port: int) -> Server:
    store = local_store(ROOT / "mlruns")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--workers", "1"]
    command += ["--artifacts-destination", str(ROOT / "mlruns" / "artifacts"), "--host", HOST, "--port", str(port)]
    return _start(leash, "MLflow", f"http://{HOST}:{port}", command, {"MLFLOW_DISABLE_TELEMETRY": "true"})


def _start(leash: Leash, name: str, url: str, command: list[str], settings: dict[str, str]) -> Server:
    log = LOGS / f"{name.lower()}.log"
    with log.open("w", encoding="utf-8") as output:
        process = leash.start(command, ROOT, {**os.environ, **settings}, output)
    return Server(name, url, log, process)


def main() -> None:
    """Serve until Ctrl-C or SIGTERM; errors end it with status 1 and one paragraph."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.stderr.write("starting Prefect and MLflow ...\n")
        with serve() as servers:
            for server in servers:
                sys.stdout.write(f"{server.name:<8}{server.url}\n")
            sys.stdout.write("Ctrl-C stops both.\n")
            sys.stdout.flush()
            while True:
                for server in servers:
                    server.raise_if_ended()
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
    except EndpointError as error:
        sys.exit(f"error: {error}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
