"""The servers of `make ui`, alone on this machine or for others."""

import shutil
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard
from flows import server, ui
from flows.server import LOGIN_VARIABLE, prefect_api, require_login
from flows.ui import start_mlflow
from tests.ports import free_port
from tests.tracking.conftest import new_store

EVERYWHERE = "0.0.0.0"
LOGIN = ("team", "correct horse battery")


@pytest.mark.parametrize("login", ["", "team", "team:short", ":correct horse battery"])
def test_a_host_that_other_machines_reach_needs_a_login(
    login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOGIN_VARIABLE, login)
    assert require_login(LOOPBACK) == ""
    with pytest.raises(
        ConfigError,
        match=r"0\.0\.0\.0 can be reached .* DEEPSEARCH_LOGIN=name:password into the file",
    ):
        require_login(EVERYWHERE)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_prefects_page_asks_the_address_that_it_came_from(prefect_server: str) -> None:
    page = prefect_server.removesuffix("/api")
    api = httpx.get(f"{page}/ui-settings").json()["api_url"]
    forwarded = "http://laptop:14200"
    assert (urljoin(page, api), urljoin(forwarded, api)) == (f"{page}/api", f"{forwarded}/api")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_both_servers_ask_other_machines_for_the_login(
    tmp_path: Path, prefect_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if prefect_tables.exists():
        shutil.copyfile(prefect_tables, tmp_path / "prefect.db")
    monkeypatch.setenv(LOGIN_VARIABLE, ":".join(LOGIN))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    for module in (server, ui):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    api = f"http://{LOOPBACK}:{free_port()}/api"
    new_store(tmp_path / "mlruns")
    with (
        ProcessGuard() as guard,
        temporary_settings({PREFECT_API_URL: api, PREFECT_HOME: tmp_path}),
    ):
        mlflow = start_mlflow(guard, free_port(), EVERYWHERE)
        with prefect_api(EVERYWHERE):
            mlflow.wait_until_healthy(180)
            for url in (
                f"{api}/admin/version",
                f"{mlflow.url}/api/2.0/mlflow/experiments/get?experiment_id=0",
            ):
                assert httpx.get(url).status_code == httpx.codes.UNAUTHORIZED
                assert (
                    httpx.get(url, auth=("team", "another password")).status_code
                    == httpx.codes.UNAUTHORIZED
                )
                assert httpx.get(url, auth=LOGIN).status_code == httpx.codes.OK
    assert not any(
        LOGIN[1].encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )
