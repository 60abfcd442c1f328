"""The servers of `make ui`, alone on this machine or for others."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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


class Start(Exception):
    """What a process guard would start."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(command)
        self.command = " ".join(command)
        self.environment = environment


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for both servers, which have a login and ports of their own."""
    monkeypatch.setenv(LOGIN_VARIABLE, ":".join(LOGIN))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    for module in (server, ui):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    new_store(tmp_path / "mlruns")
    api = f"http://{LOOPBACK}:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: api, PREFECT_HOME: tmp_path}):
        yield tmp_path


def has_password(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return any(LOGIN[1].encode() in path.read_bytes() for path in files)


def test_both_servers_are_started_with_the_login_where_other_machines_reach_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That they ask for it then is a test of the night."""

    def start(
        _: ProcessGuard, command: Sequence[str], *, environment: Mapping[str, str], **__: object
    ) -> None:
        raise Start(command, environment)

    monkeypatch.setattr(ProcessGuard, "start", start)

    def start_of(host: str, program: Callable[[str], AbstractContextManager[object]]) -> Start:
        with pytest.raises(Start) as caught, program(host):
            pass
        return caught.value

    def mlflow(host: str) -> AbstractContextManager[object]:
        return nullcontext(start_mlflow(ProcessGuard(), free_port(), host))

    prefect_start = start_of(EVERYWHERE, prefect_api)
    assert f"prefect server start --host {EVERYWHERE}" in prefect_start.command
    assert prefect_start.environment["PREFECT_SERVER_API_AUTH_STRING"] == ":".join(LOGIN)
    assert "PREFECT_SERVER_API_AUTH_STRING" not in start_of(LOOPBACK, prefect_api).environment

    mlflow_start = start_of(EVERYWHERE, mlflow)
    assert "--app-name basic-auth" in mlflow_start.command
    assert f"--host {EVERYWHERE}" in mlflow_start.command
    assert mlflow_start.environment["MLFLOW_AUTH_ADMIN_PASSWORD"] == LOGIN[1]
    config = Path(mlflow_start.environment["MLFLOW_AUTH_CONFIG_PATH"])
    assert f"admin_username = {LOGIN[0]}\n" in config.read_text()
    assert "basic-auth" not in start_of(LOOPBACK, mlflow).command

    for start in (prefect_start, mlflow_start):
        assert LOGIN[1] not in start.command, "everybody on the machine can read it"
    assert not has_password(home)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_both_servers_ask_other_machines_for_the_login(home: Path, prefect_tables: Path) -> None:
    if prefect_tables.exists():
        shutil.copyfile(prefect_tables, home / "prefect.db")
    with ProcessGuard() as guard:
        mlflow = start_mlflow(guard, free_port(), EVERYWHERE)
        with prefect_api(EVERYWHERE) as api:
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
    assert not has_password(home)
