"""The way to MLflow: the server that ``MLFLOW_TRACKING_URI`` names, else ``mlflow.db`` here.

MLflow retries a dead server for minutes; here a request ends in time, and an error names the server
without user and password.
"""

import functools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import mlflow
from filelock import FileLock
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.core.redaction import public_address, redact

SQLITE = "sqlite:///"
COMMIT_CHARACTERS = 7
# All but the files that git keeps and a run of the graph writes
NOT_WRITTEN = (":(exclude)reports", ":(exclude,glob)**/dvc.lock")
MAX_NAME_CHARACTERS = 200
MAX_PROBLEM_CHARACTERS = 300


@contextmanager
def mlflow_client(timeout_s: float) -> Iterator[MlflowClient]:
    """Yield a client of the store that MLFLOW_TRACKING_URI names, else of ``mlflow.db`` in the working directory.

    Raise EndpointError where the store does not answer or refuses, here or in the block.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(ceil(timeout_s)))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    # An address may hold a password
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    is_default = not mlflow.is_tracking_uri_set()
    if is_default:
        # MLflow's own default has %20 for a space in the folder's name, which is another folder
        os.environ["MLFLOW_TRACKING_URI"] = f"{SQLITE}{Path('mlflow.db').absolute()}"
    uri = mlflow.get_tracking_uri()

    try:
        if uri.startswith(SQLITE):
            _create_tables(uri)
        yield MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        raise EndpointError(_problem(uri, error)) from None
    finally:
        if is_default:
            del os.environ["MLFLOW_TRACKING_URI"]


@functools.cache
def _create_tables(uri: str) -> None:
    """Have MLflow create the tables of a SQLite store: two processes that do so at once both fail."""
    database = Path(uri.removeprefix(SQLITE))
    with FileLock(database.with_name(f".{database.name}.lock")):
        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)


def _problem(uri: str, error: MlflowException) -> str:
    address = urlsplit(uri)
    secrets = [
        address.username,
        address.password,
        *(value for _, value in parse_qsl(address.query)),
    ]
    text = " ".join(redact(error.message, secrets).split())[:MAX_PROBLEM_CHARACTERS]
    if not uri.startswith("http"):
        return f"MLflow's store {uri} cannot be used: {text}"
    return (
        f"MLflow's server at {public_address(uri)} does not take the results: {text} "
        "Start it, or unset MLFLOW_TRACKING_URI to use mlflow.db in this folder."
    )


def run_name(subject: str, tags: dict[str, str]) -> str:
    """Return the name of a run: ``tiny/sft · my-experiment · f2f8c1b``."""
    parts = [
        subject,
        tags.get("dvc.experiment", ""),
        tags.get("git.commit", "")[:COMMIT_CHARACTERS],
    ]
    return " · ".join(filter(None, parts))[:MAX_NAME_CHARACTERS]


def source_tags(profile: str) -> dict[str, str]:
    """Return what tells where results come from: profile, commit, DVC experiment, digest of the locked packages.

    The commit ends in ``-dirty`` where tracked files other than those that a run of the graph
    writes differ from it.
    """
    commit = _git("rev-parse", "--verify", "HEAD")
    if commit and _git("status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_WRITTEN):
        commit += "-dirty"
    lock = Path("uv.lock")
    tags = {
        "profile": profile,
        "git.commit": commit,
        "dvc.experiment": os.environ.get("DVC_EXP_NAME", ""),
        "uv.lock": sha256_file(lock) if lock.is_file() else "",
    }
    return {name: value for name, value in tags.items() if value}


def _git(*arguments: str) -> str:
    """Return what git prints, empty outside a repository and where it fails."""
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
