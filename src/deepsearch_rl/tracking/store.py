"""The way to an MLflow store: bounded in time, alone at a local one, and with errors that show no password.

A store is SQLite in a folder, or a server. MLflow itself would try a dead server for minutes; here a server is asked
for its health first, and every later request ends within the time given. None is repeated: one that was carried out
and answered too late would make a second run. What breaks off is sent anew instead, as a whole.
"""

import contextlib
import fcntl
import http.client
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from deepsearch_rl.errors import ConfigError, DeepsearchError, EndpointDownError, EndpointError

SQLITE = "sqlite:///"
_LOCK_POLL_S = 0.05


def local_store(folder: Path) -> str:
    """URI of the SQLite store in ``folder`` (absolute, so that no working directory changes it)."""
    return f"{SQLITE}{folder.resolve() / 'mlflow.db'}"


def shown(uri: str) -> str:
    """Where a store is, fit to be read by anybody: a server without user, password and query, or a database's file.

    Raises:
        ConfigError: the address cannot be read.
    """
    if uri.startswith(SQLITE):
        return uri.removeprefix(SQLITE)
    address = _split(uri)
    if address is None:  # nothing of it is shown: a password with a slash looks like a port
        raise ConfigError(
            "the MLflow address cannot be read: percent-encode user and password, and give a port number."
        )
    port = f":{address.port}" if address.port else ""
    return f"{address.scheme}://{address.hostname or ''}{port}{address.path.rstrip('/')}" if address.scheme else uri


def _split(uri: str) -> SplitResult | None:
    """The parts of an address; None where a password could be taken for another part: behind it stands its '@'."""
    try:
        address = urlsplit(uri)
        _ = address.port
    except ValueError:
        return None
    return None if "@" in f"{address.path}{address.query}{address.fragment}" else address


@contextlib.contextmanager
def connected(uri: str, timeout_s: float) -> Iterator[MlflowClient]:
    """A client of the store; a local one is held alone, so that no two processes make or fill it at once.

    Raises:
        ConfigError: the address cannot be read.
        EndpointDownError: no server answers, or another process holds the local store for longer than ``timeout_s``.
        EndpointError: the store refuses or breaks off, in this call or in the block.
    """
    shown(uri)
    try:
        with _alone_at(uri, timeout_s), _bounded(timeout_s):
            _check_health(uri, timeout_s)
            yield MlflowClient(tracking_uri=uri)
    except DeepsearchError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever an answer, a driver or a full disk breaks in MLflow
        problem = error.message if isinstance(error, MlflowException) else f"{type(error).__name__}: {error}"
        refused = EndpointError(f"MLflow at {shown(uri)} refused the report: {_redacted(uri, problem)}")
        cause = None if _secrets(urlsplit(uri)) else error  # a traceback would show the address
    else:
        return
    raise refused from cause


@contextlib.contextmanager
def _alone_at(uri: str, timeout_s: float) -> Iterator[None]:
    if not uri.startswith(SQLITE):
        yield
        return
    database = Path(uri.removeprefix(SQLITE))
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(f".{database.name}.lock").open("w") as lock:
        _lock(lock, database, timeout_s)
        yield


def _lock(lock: IO[str], database: Path, timeout_s: float) -> None:
    """Wait for the lock. A killed holder loses it at once, but one that was only stopped keeps it."""
    given_up = time.monotonic() + timeout_s
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= given_up:
                break
        time.sleep(_LOCK_POLL_S)
    raise EndpointDownError(
        f"the MLflow store {database} was held by another process for {timeout_s:g} s; wait for that one or end it."
    )


@contextlib.contextmanager
def _bounded(timeout_s: float) -> Iterator[None]:
    """Tell MLflow how long a request may take, and not to print addresses, which may hold a password.

    It reads both from the environment alone. A user's own values win.
    """
    settings = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(math.ceil(timeout_s)),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
    missing = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def _check_health(uri: str, timeout_s: float) -> None:
    """Ask a server for its health once; any answer shows that somebody is there."""
    if not uri.startswith(("http://", "https://")):
        return
    try:
        with urllib.request.urlopen(f"{shown(uri)}/health", timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        error.close()  # a proxy may guard /health, and MLflow brings its own credentials
    except (OSError, http.client.HTTPException) as error:
        mend = "Start it, or unset MLFLOW_TRACKING_URI to use the local store."
        raise EndpointDownError(f"no MLflow server answers at {shown(uri)} ({error}). {mend}") from error


def _redacted(uri: str, text: str) -> str:
    """A message without what the address keeps secret, in either spelling."""
    for secret in _secrets(urlsplit(uri)):
        text = text.replace(secret, "***")
    return text


def _secrets(address: SplitResult) -> list[str]:
    parts = [address.username, address.password, *(value for _, value in parse_qsl(address.query))]
    spellings = {spelling for part in parts if part for spelling in (part, quote(part, safe=""), unquote(part))}
    return sorted(spellings, key=lambda secret: (-len(secret), secret))
