"""Prefect's and other servers on loopback, with their logs in work/servers/."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from prefect.settings import PREFECT_API_URL

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.processes import LOOPBACK, ProcessGuard, Server, free_port, is_healthy

ROOT = Path(__file__).resolve().parent.parent
PREFECT_PORT = 4200
START_TIMEOUT_S = 180.0


def start_server(
    guard: ProcessGuard, name: str, port: int, health: str, module: Sequence[str], settings: Mapping[str, str]
) -> Server:
    """Start ``python -m MODULE... --host --port``; its output goes to work/servers/, ``health`` is a path of it."""
    log = ROOT / "work" / "servers" / f"{name.lower()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", *module, "--host", LOOPBACK, "--port", str(port)]
    with log.open("w", encoding="utf-8") as output:
        process = guard.start(command, folder=ROOT, environment={**os.environ, **settings}, output=output)
    return Server(name, f"http://{LOOPBACK}:{port}", health, log, process)


@contextmanager
def prefect_api() -> Iterator[str]:
    """Yield the API address of Prefect's server, after starting it if it is to be on this machine and does not answer.

    The address is Prefect's own setting: prefect.toml, or ``PREFECT_API_URL`` in ``.env`` or the environment. A server
    started here keeps its database in ``PREFECT_HOME`` and ends with the block. (Prefect could start a temporary server
    by itself, but would leave it behind when the flow is killed.)

    Raises:
        EndpointError: it does not answer and is not on this machine, or cannot be started.
    """
    api = PREFECT_API_URL.value() or ""
    address = urlsplit(api)
    if is_healthy(f"{api}/health"):
        yield api
        return
    if address.hostname not in (LOOPBACK, "localhost"):
        raise EndpointError(
            f"no Prefect server answers at {api or 'PREFECT_API_URL, which is empty'}: start it there, or take "
            "PREFECT_API_URL out of the environment and of .env to use one on this machine."
        )
    port = address.port or PREFECT_PORT
    if free_port(port) != port:
        raise EndpointError(
            f"another program than Prefect listens on port {port}: write a free one into .env, for example "
            f"PREFECT_API_URL=http://{LOOPBACK}:{free_port(port)}/api."
        )
    with ProcessGuard() as guard:
        settings = {"PREFECT_API_URL": api, "PREFECT_UI_API_URL": api}
        server = start_server(guard, "Prefect", port, "/api/health", ["prefect", "server", "start"], settings)
        server.wait_until_healthy(START_TIMEOUT_S)
        yield api
