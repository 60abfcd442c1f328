"""Prefect's and MLflow's user interfaces until Ctrl-C; one that ends is started again.

    python -m flows.ui [--host HOST]

They listen on loopback, or on another host with a login. Prefect keeps its database under .prefect/
(``PREFECT_HOME``), MLflow its own under mlruns/. While this runs, `make flow` sends its runs to the
server started here.
"""

import argparse
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

import httpx

from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard, Server, free_port
from deepsearch_rl.core.profile import find_profile, profile_names
from flows.command_line import one_paragraph_errors
from flows.recovery import kept_running
from flows.server import ROOT, START_TIMEOUT_S, prefect_api, require_login, start_server

MLFLOW_PORT = 5000
POLL_S = 0.5
VIEW = "f1"
AUTH = """[mlflow]
default_permission = READ
database_uri = sqlite:///{database}
admin_username = {name}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
"""


def start_mlflow(guard: ProcessGuard, port: int, host: str = LOOPBACK) -> Server:
    """Start MLflow's server over the local store; on a host that other machines reach, it asks for the login.

    Raises:
        ConfigError: the host needs a login, and there is none.
    """
    login = require_login(host)
    folder = ROOT / "mlruns"
    folder.mkdir(exist_ok=True)
    store = f"sqlite:///{ROOT}/mlflow.db"
    artifacts = str(folder)
    module = [
        "mlflow",
        "server",
        "--backend-store-uri",
        store,
        "--artifacts-destination",
        artifacts,
        "--workers",
        "1",
    ]
    settings: dict[str, str] = {}

    if login:
        name, _, password = login.partition(":")
        config = ROOT / "work" / "servers" / "mlflow_auth.ini"
        config.parent.mkdir(parents=True, exist_ok=True)
        # The first start stores the password in this database; another login has another one.
        database = folder / f"auth-{sha256_json(login)[:12]}.db"
        # MLflow's parser takes a single % for the beginning of a reference
        text = AUTH.format(database=database, name=name).replace("%", "%%")
        config.write_text(text, encoding="utf-8")
        module += ["--app-name", "basic-auth", "--allowed-hosts", "*"]
        settings = {
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(),
        }

    return start_server(guard, "MLflow", port, "/health", module, settings, host)


def links(prefect: str, mlflow: str) -> list[str]:
    """Return what to open first: the runs of both servers, and the reports of this folder."""
    reports = [ROOT / "reports" / profile / "index.html" for profile in profile_names(ROOT)]
    newest = sorted(filter(Path.is_file, reports), key=lambda path: path.stat().st_mtime)[-1:]
    try:
        page = runs_page(mlflow, find_profile(ROOT, "tiny").value("track")["experiment"])
    except httpx.HTTPError:
        # Its first answers may take long, and its first page is enough
        page = ""

    return [
        f"Prefect {prefect}/runs",
        f"MLflow  {mlflow}{page}",
        *(f"Report  {path.as_uri()}" for path in newest),
    ]


def runs_page(mlflow: str, experiment: str) -> str:
    """Return the page of all reports of an MLflow experiment with F1 as columns; empty where there is no report.

    The columns are a view that is saved at the server, as its button *Views* does.
    """
    name = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    experiments = f"{mlflow}/api/2.0/mlflow/experiments"

    with httpx.Client(auth=(name, password) if name else None) as client:
        answer = client.get(f"{experiments}/get-by-name", params={"experiment_name": experiment})
        if not answer.is_success:
            return ""
        description = answer.json()["experiment"]
        # Somebody deleted it
        if description["lifecycle_stage"] != "active":
            return ""
        identifier = description["experiment_id"]
        tiny = find_profile(ROOT, "tiny")
        columns = [f"metrics.`f1/{tiny.value('rl')['dataset']}`"]
        columns += [f"metrics.`{model}/f1`" for model in tiny.value("models")]
        columns += ["tags.`profile`", "tags.`git.commit`"]
        view = {
            "key": f"mlflow.sharedViewState.{VIEW}",
            "value": json.dumps({"selectedColumns": columns}),
        }
        client.post(f"{experiments}/set-experiment-tag", json={"experiment_id": identifier, **view})

    return (
        f"/#/experiments/{identifier}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
    )


def main() -> None:
    """Serve until Ctrl-C or SIGTERM; errors end it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--host", default=LOOPBACK, help="address to listen on; any but loopback asks for a login"
    )
    host = parser.parse_args().host
    signal.signal(signal.SIGTERM, _interrupt)
    sys.stderr.write("starting Prefect and MLflow ...\n")

    with one_paragraph_errors():
        try:
            _serve(host)
        except KeyboardInterrupt:
            sys.stderr.write("stopped\n")


def _serve(host: str) -> NoReturn:
    # Another project of this machine may have the usual one
    port = free_port(MLFLOW_PORT)
    with (
        ProcessGuard() as guard,
        kept_running(lambda: start_mlflow(guard, port, host)) as mlflow,
        prefect_api(host) as api,
    ):
        mlflow.wait_until_healthy(START_TIMEOUT_S)
        lines = links(api.removesuffix("/api"), mlflow.url)

        if host != LOOPBACK:
            lines.append(
                f"on other machines with the address of this one in place of {urlsplit(api).hostname}"
            )

        sys.stdout.write("\n".join([*lines, "Ctrl-C stops them.\n"]))
        sys.stdout.flush()
        while True:
            time.sleep(POLL_S)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
