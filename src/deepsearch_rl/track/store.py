"""The way to an MLflow store: bounded in time, alone at a local one, and with errors that show no password.

A store is SQLite in a folder, or a server. MLflow itself would try a dead server for minutes; here
a server is asked for its health first, and every later request ends within the time given. None is
repeated: one that was carried out and answered too late would make a second run. What breaks off is
sent anew instead, as a whole.
"""

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import httpx
from filelock import FileLock, Timeout
from mlflow.entities import Experiment, LifecycleStage
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.errors import ConfigError, DeepsearchError, EndpointDownError, EndpointError
from deepsearch_rl.core.redaction import public_address, redact, split_address
from deepsearch_rl.track.local_store import ARTIFACTS, database_file, follow_folder

# Params, tags, metrics, traces of one request; MLflow refuses more than 100 params or traces, or
# 1,000 metrics
BATCH = 100
ItemT = TypeVar("ItemT")


def public_uri(uri: str) -> str:
    """Return where a store is, as everybody may read it: a server without user, password and query, or a database file.

    Raise ConfigError where the address cannot be read.
    """
    database = database_file(uri)
    if database:
        return str(database)
    parts = split_address(uri)

    if parts is None:
        raise ConfigError(
            "the MLflow address cannot be read: percent-encode user and password, and give a port number."
        )

    return (public_address(uri) or "").rstrip("/") if parts.scheme else uri


@contextlib.contextmanager
def connected(uri: str, timeout_s: float) -> Iterator[MlflowClient]:
    """Yield a client of the store; a local one is held alone, so that no two processes make or fill it at once.

    Raises:
        ConfigError: the address cannot be read.
        EndpointDownError: no server answers, or another process holds the local store for longer
            than ``timeout_s``.
        EndpointError: the store refuses or breaks off, in this call or in the block.
    """
    place = public_uri(uri)
    database = database_file(uri)
    address = urlsplit(uri)
    # A query may hold a token; which of its values does, nobody knows
    parts = [address.username, address.password]
    parts += [value for _, value in parse_qsl(address.query)]
    secrets = list(filter(None, parts))
    # A server has locks of its own
    alone = contextlib.nullcontext()
    if database:
        alone = held(database, timeout_s, f"the MLflow store {place}")

    try:
        with alone, _bounded(timeout_s):
            _check_health(uri, timeout_s)
            follow_folder(uri)
            yield MlflowClient(tracking_uri=uri)
    except DeepsearchError:
        raise
    except Exception as error:  # noqa: BLE001
        # Whatever an answer, a driver or a full disk breaks in MLflow
        problem = f"{type(error).__name__}: {error}"
        if isinstance(error, MlflowException):
            problem = error.message
        refused = EndpointError(f"MLflow at {place} refused the report: {redact(problem, secrets)}")
        # A traceback would show the address
        raise refused from None if secrets else error


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """Return the experiment of that name; make it if missing. A local store keeps artifacts beside its database.

    Raises:
        EndpointError: somebody deleted the experiment: MLflow keeps its name, and takes no run into
            it.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return _require_active(experiment, uri)
    database = database_file(uri)

    try:
        return client.create_experiment(
            name, database.resolve().with_name(ARTIFACTS).as_uri() if database else None
        )
    except MlflowException:
        # Another process may have made it meanwhile
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return _require_active(experiment, uri)


def _require_active(experiment: Experiment, uri: str) -> str:
    """Return the experiment's id; raise EndpointError with the way to bring it back if it was deleted.

    It is not brought back unasked: that would bring back its old runs as well.
    """
    if experiment.lifecycle_stage == LifecycleStage.ACTIVE:
        return experiment.experiment_id
    raise EndpointError(
        f"the experiment {experiment.name} was deleted in MLflow at {public_uri(uri)}, which keeps "
        "its name and takes no run into it. Bring it back with its runs by `.venv/bin/mlflow "
        f"experiments restore --experiment-id {experiment.experiment_id}`, or choose another name "
        "(`track.experiment` of params.yaml)."
    )


def batches(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Yield consecutive lists of at most ``size`` items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


@contextlib.contextmanager
def held(path: Path, timeout_s: float, name: str) -> Iterator[None]:
    """Hold a file alone; raise EndpointDownError if another process holds it, by its ``name``, for ``timeout_s``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(path.with_name(f".{path.name}.lock")).acquire(timeout=timeout_s)
    except Timeout as error:
        problem = f"{name} was held by another process for {timeout_s:g} s"
        raise EndpointDownError(f"{problem}; wait for that process, or end it.") from error

    with lock:
        yield


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
    # Whatever it answers: a proxy may guard /health, and MLflow brings its own credentials and checks the certificate
    try:
        httpx.get(f"{public_uri(uri)}/health", timeout=timeout_s, verify=False)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        remedy = "Start it, or unset MLFLOW_TRACKING_URI to use the local store."
        raise EndpointDownError(
            f"no MLflow server answers at {public_uri(uri)} ({error}). {remedy}"
        ) from error
