"""Prefect's and MLflow's servers on this machine.

    python -m flows.servers [--host 0.0.0.0]      (`make ui`)

They serve the stores of this folder: Prefect's ``.prefect/`` (prefect.toml) and MLflow's
``mlflow.db``, which plain `prefect` and `mlflow` typed here use as well.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from prefect.settings import PREFECT_API_URL

from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard, Server, free_port, is_healthy
from flows import ROOT
from flows.driver import interrupt_on_sigterm, one_paragraph_errors

PREFECT_PORT = 4200
MLFLOW_PORT = 5000
START_TIMEOUT_S = 180.0
LOGIN_VARIABLES = (
    "PREFECT_API_AUTH_STRING",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
)


def start_server(
    guard: ProcessGuard,
    name: str,
    port: int,
    health: str,
    command: Sequence[str],
    variables: Mapping[str, str],
    host: str,
) -> Server:
    """Start ``python -m COMMAND --host --port``; its output goes to ``work/servers/NAME.log``."""
    log = ROOT / "work" / "servers" / f"{name.lower()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, "-P", "-m", *command, "--host", host, "--port", str(port)]
    with log.open("w", encoding="utf-8") as output:
        environment = {**os.environ, **variables}
        process = guard.start(line, folder=ROOT, environment=environment, output=output)
    return Server(name, f"http://{LOOPBACK}:{port}", health, log, process)


@contextmanager
def prefect_server(host: str = LOOPBACK) -> Iterator[Server | None]:
    """Run Prefect's server during a block, or nothing where one answers at ``PREFECT_API_URL`` already.

    Raises:
        EndpointError: none answers at an address of another machine, or it cannot be started.
    """
    api = PREFECT_API_URL.value() or ""
    if is_healthy(f"{api}/health"):
        yield None
        return
    address = urlsplit(api)
    if address.hostname not in (LOOPBACK, "localhost"):
        raise EndpointError(
            f"no Prefect server answers at {api}: start it there with `make ui HOST=0.0.0.0`, or "
            "take PREFECT_API_URL out of .env to use one on this machine."
        )

    port = address.port or PREFECT_PORT
    if free_port(port) != port:
        raise EndpointError(
            f"another program listens on port {port}: write "
            f"PREFECT_API_URL=http://{LOOPBACK}:{free_port(port)}/api into .env."
        )
    login = os.environ.get("PREFECT_API_AUTH_STRING")
    variables = {"PREFECT_SERVER_API_AUTH_STRING": login} if login else {}
    with ProcessGuard() as guard:
        command = ["prefect", "server", "start"]
        server = start_server(guard, "Prefect", port, "/api/health", command, variables, host)
        server.wait_until_healthy(START_TIMEOUT_S)
        yield server


def start_mlflow(guard: ProcessGuard, host: str) -> Server:
    """Start MLflow's server over its default store in this folder; it asks for the login on another host."""
    # Another project of this machine may have the usual one
    port = free_port(int(os.environ.get("MLFLOW_PORT", MLFLOW_PORT)))
    command = ["mlflow", "server", "--workers", "1"]
    variables: dict[str, str] = {}
    if host != LOOPBACK:
        command += ["--app-name", "basic-auth", "--allowed-hosts", "*"]
        variables = {
            "MLFLOW_AUTH_ADMIN_USERNAME": os.environ["MLFLOW_TRACKING_USERNAME"],
            "MLFLOW_AUTH_ADMIN_PASSWORD": os.environ["MLFLOW_TRACKING_PASSWORD"],
            "MLFLOW_FLASK_SERVER_SECRET_KEY": os.urandom(16).hex(),
        }
    return start_server(guard, "MLflow", port, "/health", command, variables, host)


def require_login(host: str) -> None:
    """Raise ConfigError where other machines reach the servers and .env has no login for both of them."""
    missing = [name for name in LOGIN_VARIABLES if not os.environ.get(name)]
    if host != LOOPBACK and missing:
        raise ConfigError(
            f"other machines reach {host}, so both servers ask for a login there. Write "
            "PREFECT_API_AUTH_STRING=NAME:PASSWORD, MLFLOW_TRACKING_USERNAME=NAME and "
            "MLFLOW_TRACKING_PASSWORD=PASSWORD (12 characters or more) into .env, here and on the "
            f"machines that use the servers; {', '.join(missing)} missing."
        )


def serve(host: str) -> None:
    """Serve both user interfaces until Ctrl-C or SIGTERM; raise EndpointError where one of them ends."""
    require_login(host)
    with ProcessGuard() as guard, ExitStack() as stack:
        # Before Prefect's, so that they start side by side
        mlflow = start_mlflow(guard, host)
        prefect = stack.enter_context(prefect_server(host))
        mlflow.wait_until_healthy(START_TIMEOUT_S)
        pages = [f"Prefect {PREFECT_API_URL.value().removesuffix('/api')}", f"MLflow  {mlflow.url}"]
        sys.stdout.write("\n".join([*pages, "Ctrl-C stops them.\n"]))
        sys.stdout.flush()
        while True:
            for server in filter(None, [prefect, mlflow]):
                server.raise_if_ended()
            time.sleep(0.5)


def main() -> None:
    """Command line of `make ui`."""
    parser = argparse.ArgumentParser(description="Serve Prefect and MLflow until Ctrl-C.")
    parser.add_argument(
        "--host", default=LOOPBACK, help="0.0.0.0 for other machines, with a login from .env"
    )
    host = parser.parse_args().host
    interrupt_on_sigterm()
    with one_paragraph_errors():
        serve(host)


if __name__ == "__main__":
    main()
