import fcntl
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError, EndpointDownError, EndpointError
from deepsearch_rl.track.local_store import local_store
from deepsearch_rl.track.store import connected, public_uri
from tests.search_servers import in_thread
from tests.status_servers import own_certificate, status_server

TIMEOUT_S = 1.0


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def experiments(uri: str) -> None:
    with connected(uri, TIMEOUT_S) as client:
        client.search_experiments()


@pytest.mark.parametrize(
    ("uri", "public"),
    [
        ("http://user:hidden@tracking:5000/", "http://tracking:5000"),
        ("https://tracking/mlflow?token=hidden", "https://tracking/mlflow"),
        ("postgresql://user:hidden@db:5432/mlflow", "postgresql://db:5432/mlflow"),
        ("sqlite:////data/mlflow.db", "/data/mlflow.db"),
    ],
)
def test_an_address_is_shown_without_what_it_keeps_secret(uri: str, public: str) -> None:
    assert public_uri(uri) == public


def test_a_server_that_is_not_there_is_named_without_its_credentials() -> None:
    with pytest.raises(
        EndpointError, match=r"no MLflow server answers at http://127\.0\.0\.1:9 "
    ) as caught:
        experiments("http://user:hidden@127.0.0.1:9")
    assert "hidden" not in str(caught.value)


@pytest.mark.slow
def test_a_server_that_never_answers_is_given_up_in_time(silent: str) -> None:
    with pytest.raises(EndpointError, match=r"timed out"):
        experiments(f"http://{silent}")


@pytest.mark.slow
def test_a_server_that_is_well_and_then_hangs_is_given_up_in_time() -> None:
    released = threading.Event()

    class Hanging(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/health":
                released.wait()
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hanging)
    with in_thread(running):
        with pytest.raises(EndpointError, match=r"refused the report.*timed out"):
            experiments(f"http://127.0.0.1:{running.server_port}")
        released.set()


def test_a_server_that_is_not_mlflow_refuses_and_no_message_holds_the_password() -> None:
    with (
        status_server(health=200, other=404) as address,
        pytest.raises(EndpointError, match=r"refused the report") as caught,
    ):
        experiments(f"http://user:hidden@{address}")
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None  # MLflow's own error shows the address


def test_mlflow_alone_checks_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has variables of its own for a certificate that no authority has signed."""
    strange = status_server(health=200, other=404, certificate=own_certificate(tmp_path))
    with strange as address:
        with pytest.raises(EndpointError, match="certificate verify failed"):
            experiments(f"https://{address}")
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "own.pem"))
        with pytest.raises(EndpointError, match="refused the report") as caught:
            experiments(f"https://{address}")
    assert "certificate" not in str(caught.value)


def test_an_address_that_cannot_be_read_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        experiments("http://user:hid/den@tracking:5000")
    assert "hid" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_local_store_that_another_process_holds_is_given_up_in_time(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    with (tmp_path / ".mlflow.db.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(
                EndpointDownError, match=rf"{database} was held by another process for 0\.2 s"
            ),
            connected(local_store(tmp_path), 0.2),
        ):
            pass
    assert not database.exists()


def test_a_server_that_speaks_another_language_is_none_of_mlflows() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def mumble() -> None:
            connection, _ = listening.accept()
            connection.sendall(b"220 mail.example ready\r\n")
            connection.close()

        threading.Thread(target=mumble, daemon=True).start()
        with pytest.raises(EndpointError, match="no MLflow server answers"):
            experiments(f"http://127.0.0.1:{listening.getsockname()[1]}")


def test_answers_that_mlflow_cannot_read_are_refusals() -> None:
    strange = status_server(health=200, other=200, body=b'{"experiments": 7}')
    with strange as address, pytest.raises(EndpointError, match="refused the report"):
        experiments(f"http://{address}")


def test_a_guarded_health_page_does_not_stop_mlflow_from_trying() -> None:
    with (
        status_server(health=403, other=403) as address,
        pytest.raises(EndpointError, match=r"refused the report.*403"),
    ):
        experiments(f"http://{address}")


@pytest.mark.slow
def test_a_database_without_its_driver_and_a_file_that_is_none_are_refusals(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="nosuchdriver"):
        experiments("postgresql+nosuchdriver://user@127.0.0.1:9/mlflow")
    (tmp_path / "mlflow.db").write_text("this is no database\n" * 100)
    with pytest.raises(
        EndpointError, match=r"mlflow\.db cannot be opened: file is not a database\. Restore"
    ):
        experiments(local_store(tmp_path))


@pytest.mark.slow
def test_the_users_own_limits_win_and_ours_do_not_stay(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    with pytest.raises(EndpointError):
        experiments(f"http://{silent}")
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"
