"""The servers of `make ui`, alone on this machine or for others."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_HOME,
    temporary_settings,
)

from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard
from flows import server, ui
from flows.server import LOGIN_VARIABLE, needs_server, prefect_api, require_login
from flows.ui import start_mlflow
from tests.ports import free_port
from tests.status_servers import own_certificate, status_server
from tests.track.conftest import new_store

EVERYWHERE = "0.0.0.0"
# An INI file has a meaning for a %
LOGIN = ("te%am", "correct horse battery")


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


@contextmanager
def prefect_at(api: str) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: api, PREFECT_CLIENT_MAX_RETRIES: 0}):
        yield


def test_a_server_that_is_slow_to_answer_or_named_with_a_slash_is_there() -> None:
    with (
        status_server(200, 200, b"{}", delay_s=2.5) as address,
        prefect_at(f"http://{address}/api"),
    ):
        assert not needs_server()
    with status_server(200, 200, b"{}") as address, prefect_at(f"http://{address}/api/"):
        assert not needs_server()


def test_a_server_with_a_certificate_of_its_own_is_there(tmp_path: Path) -> None:
    own = status_server(200, 200, b"{}", certificate=own_certificate(tmp_path))
    with own as address, prefect_at(f"https://{address}/api"):
        assert not needs_server()


@pytest.mark.parametrize(("health", "other"), [(200, 401), (401, 401), (200, 403)])
def test_a_server_that_refuses_the_login_is_named_with_the_variable(
    health: int, other: int
) -> None:
    with (
        status_server(health, other, b"{}") as address,
        prefect_at(f"http://me:hidden@{address}/api"),
        pytest.raises(EndpointError, match=r"DEEPSEARCH_LOGIN in \.env has to be") as caught,
        prefect_api(),
    ):
        pass
    assert "hidden" not in str(caught.value)


def test_a_program_on_the_port_that_is_not_prefect_is_named_with_a_free_port() -> None:
    with (
        status_server(404, 404) as address,
        prefect_at(f"http://{address}/api"),
        pytest.raises(EndpointError, match=r"does not answer as Prefect .*write a free port"),
        prefect_api(),
    ):
        pass


def test_a_server_elsewhere_that_is_away_is_named_without_its_password() -> None:
    with (
        prefect_at("http://me:hidden@prefect.invalid:4200/api"),
        pytest.raises(
            EndpointError, match=r"no Prefect server answers at http://\*\*\*@"
        ) as caught,
        prefect_api(),
    ):
        pass
    assert "hidden" not in str(caught.value)


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
    settings = ConfigParser()
    settings.read(config)
    assert settings["mlflow"]["admin_username"] == LOGIN[0]
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
