"""Prefect's and other servers, on loopback unless another host is named, with their logs in work/servers/."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from prefect.settings import PREFECT_API_URL

from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard, Server, free_port
from deepsearch_rl.core.redaction import mask_users, public_address
from deepsearch_rl.server.requests import is_loopback
from flows.recovery import kept_running

ROOT = Path(__file__).resolve().parent.parent
PREFECT_PORT = 4200
START_TIMEOUT_S = 180.0
# How long a run waits for a server that does not answer; it may be in an upgrade
RESTART_TIMEOUT_S = 600.0
# For one answer of a server that is busy
HEALTH_TIMEOUT_S = 10.0
EVERYWHERE = "0.0.0.0"
LOGIN_VARIABLE = "DEEPSEARCH_LOGIN"
PASSWORD_CHARACTERS = 12
_LOGIN_STATUSES = (401, 403)


def require_login(host: str) -> str:
    """Return the login ``name:password`` of servers on a host; empty on loopback, where none is needed.

    Raises:
        ConfigError: other machines reach the host, and there is no login or a short password; or it
            is one address.
    """
    if is_loopback(host):
        return ""
    # The project's own clients come by loopback
    if host != EVERYWHERE:
        raise ConfigError(
            f"the servers listen on {LOOPBACK} or, for other machines, on {EVERYWHERE}; not on {host} alone."
        )

    login = os.environ.get(LOGIN_VARIABLE, "")
    name, _, password = login.partition(":")

    if not name or len(password) < PASSWORD_CHARACTERS:
        raise ConfigError(
            f"{host} can be reached from other machines, so the servers there ask for a login: "
            f"write {LOGIN_VARIABLE}=name:password into the file .env, here and on the machines "
            f"that use them; the password has at least {PASSWORD_CHARACTERS} characters."
        )

    return login


def start_server(
    guard: ProcessGuard,
    name: str,
    port: int,
    health: str,
    module: Sequence[str],
    settings: Mapping[str, str],
    host: str = LOOPBACK,
) -> Server:
    """Start ``python -m MODULE... --host --port``; ``health`` is a path of it.

    Its output goes to ``work/servers/NAME.log``; that of the one before stays in
    ``NAME.before.log``.
    """
    log = ROOT / "work" / "servers" / f"{name.lower()}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".before.log"))
    command = [sys.executable, "-m", *module, "--host", host, "--port", str(port)]

    with log.open("w", encoding="utf-8") as output:
        process = guard.start(
            command, folder=ROOT, environment={**os.environ, **settings}, output=output
        )

    return Server(name, f"http://{LOOPBACK}:{port}", health, log, process)


def needs_server() -> bool:
    """Return whether :func:`prefect_api` would start a server: none answers, and it is to be on this machine."""
    api = PREFECT_API_URL.value() or ""
    return _is_here(api) and not _answers(api)


def _answers(api: str) -> bool:
    """Return whether Prefect's server answers at an API address; one that asks for a login does."""
    address = public_address(api)
    if not address:
        return False
    # Only whether somebody is there, without a login: Prefect's own client checks the certificate
    try:
        answer = httpx.get(f"{address.rstrip('/')}/health", timeout=HEALTH_TIMEOUT_S, verify=False)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False

    return answer.is_success or answer.status_code in _LOGIN_STATUSES


def _require_welcome(api: str) -> None:
    """Raise EndpointError where Prefect's server refuses the login of this machine."""
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - loads all of Prefect

    try:
        with get_client(sync_client=True) as client:
            client.hello()
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in _LOGIN_STATUSES:
            raise
        raise EndpointError(
            f"Prefect at {mask_users(api)} refuses this machine's login: {LOGIN_VARIABLE} in .env has to be that of "
            "the machine that serves."
        ) from error


def _is_here(api: str) -> bool:
    return urlsplit(api).hostname in (LOOPBACK, "localhost")


def _require_free(port: int) -> None:
    """Raise EndpointError where a program listens on the port of a Prefect server that does not answer."""
    if free_port(port) != port:
        raise EndpointError(
            f"a program listens on port {port} and does not answer as Prefect within {HEALTH_TIMEOUT_S:g} s. Try again "
            "if it is a Prefect server that is busy; if it is another program, write a free port into .env, such as "
            f"PREFECT_API_URL=http://{LOOPBACK}:{free_port(port)}/api."
        )


@contextmanager
def prefect_api(host: str = LOOPBACK) -> Iterator[str]:
    """Yield the API address of Prefect's server, after starting it if it is to be on this machine and does not answer.

    The address is Prefect's own setting: prefect.toml, or ``PREFECT_API_URL`` in ``.env`` or the
    environment. A server started here keeps its database in ``PREFECT_HOME``, is started again if
    it is killed, and ends with the block. (Prefect could start a temporary server by itself, but
    would leave it behind when the flow is killed.) It listens on ``host``, and on any but loopback
    asks for the login.

    Raises:
        ConfigError: the host needs a login, and there is none; or a server that answers is in the
            way.
        EndpointError: it does not answer and is not on this machine, cannot be started, or refuses
            this machine's login.
    """
    api = PREFECT_API_URL.value() or ""
    address = urlsplit(api)
    login = require_login(host)

    if _answers(api):
        if login:
            raise ConfigError(
                f"a Prefect server already answers at {mask_users(api)}: stop it, so that one can start on {host}."
            )

        _require_welcome(api)
        yield api
        return

    if not _is_here(api):
        raise EndpointError(
            f"no Prefect server answers at {mask_users(api) or 'PREFECT_API_URL, which is empty'}: start it "
            "there, or take PREFECT_API_URL out of the environment and of .env to use one on this "
            "machine."
        )

    port = address.port or PREFECT_PORT

    _require_free(port)
    # The page asks the address that it came from, which may be a forwarded port or another name of
    # this machine.
    settings = {
        "PREFECT_API_URL": api,
        "PREFECT_UI_API_URL": os.environ.get("PREFECT_UI_API_URL", "/api"),
    }
    if login:
        settings["PREFECT_SERVER_API_AUTH_STRING"] = login
    command = ["prefect", "server", "start"]

    with ProcessGuard() as guard:

        def start() -> Server:
            return start_server(guard, "Prefect", port, "/api/health", command, settings, host)

        with kept_running(start) as server:
            server.wait_until_healthy(START_TIMEOUT_S)
            yield api


def wait_for_prefect() -> None:
    """Return as soon as Prefect's server answers; a new client would not try again.

    Raises:
        EndpointError: it does not within ten minutes.
    """
    api = PREFECT_API_URL.value() or ""
    deadline = time.monotonic() + RESTART_TIMEOUT_S

    while api and not _answers(api):
        if time.monotonic() > deadline:
            raise EndpointError(
                f"no Prefect server answered at {mask_users(api)} for {RESTART_TIMEOUT_S:g} s."
            )
        time.sleep(1)
