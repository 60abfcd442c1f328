"""The command line and the life of the real process: start, refusal, drain, stop."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deepsearch_rl.cli.main import main
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.search.own_retriever import RETRIEVERS
from deepsearch_rl.server.launch import listen

TOKEN = "s3cret-of-the-server"


def error_of(arguments: list[str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["deepsearch", "retrieve", "serve", *arguments])
        with pytest.raises(SystemExit) as raised:
            main()
    return str(raised.value.code)


def test_a_port_in_use_is_one_clear_paragraph(index_dir: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        message = error_of(["--index", str(index_dir), "--port", str(port)])
    assert message.startswith(f"error: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "\n" not in message


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_can_reach_needs_the_flag(index_dir: Path, host: str) -> None:
    assert "--public" in error_of(["--index", str(index_dir), "--host", host, "--port", "0"])
    open_to_all = ["--index", str(index_dir), "--host", host, "--port", "0", "--public"]
    assert "--token-variable SEARCH_TOKEN" in error_of(open_to_all)


def test_a_token_that_is_not_set_is_an_error_and_not_an_open_server(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY_TOKEN", " ")
    for variable in ("EMPTY_TOKEN", "TOKEN_THAT_NOBODY_SET"):
        message = error_of(["--index", str(index_dir), "--port", "0", "--token-variable", variable])
        assert variable in message


def test_an_unknown_retriever_names_the_valid_ones(index_dir: Path) -> None:
    message = error_of(["--index", str(index_dir), "--retriever", "bm26"])
    assert all(name in message for name in ("bm26", *RETRIEVERS))


def test_answers_are_not_held_back_for_an_acknowledgement() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@dataclass(frozen=True, slots=True)
class Served:
    """A server started from the command line, and where it said that it listens."""

    process: subprocess.Popen[str]
    port: int
    first_line: str

    def ask(
        self, method: str, path: str, body: object = None, token: str = TOKEN
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        ) as connection:
            connection.request(method, path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def await_pending(self, queries: int) -> None:
        """Until so many queries wait."""
        while (
            f"deepsearch_queue_queries {queries}.0" not in self.ask("GET", "/metrics")[1].decode()
        ):
            assert self.process.poll() is None


@contextlib.contextmanager
def served(
    *arguments: str, through: tuple[str, ...] = (), shutdown_timeout_s: float = 10
) -> Iterator[Served]:
    deepsearch = (
        "from deepsearch_rl.server import launch; from deepsearch_rl.cli.main import main; "
        f"launch.SHUTDOWN_TIMEOUT_S = {shutdown_timeout_s}; main()"
    )
    command = [
        *through,
        sys.executable,
        "-c",
        deepsearch,
        "retrieve",
        "serve",
        "--port",
        "0",
        *arguments,
    ]
    environment = {**os.environ, "SEARCH_TOKEN": TOKEN}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            line = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+) ", line)
            assert found, line + process.stderr.read()
            yield Served(process, int(found[1]), line)
        finally:
            process.kill()


@pytest.mark.slow
def test_a_server_told_to_stop_answers_what_waits_and_tells_no_secrets(index_dir: Path) -> None:
    options = (
        "--index",
        str(index_dir),
        "-S",
        "retrieval.window_ms=1500",
        "--token-variable",
        "SEARCH_TOKEN",
    )
    with (
        served(*options) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as waiting,
    ):
        assert server.first_line.endswith("with a token\n")
        assert server.ask("GET", "/healthz", token="")[0] == 200
        assert server.ask("POST", "/retrieve", {"queries": ["comet"]}, token="wrong")[0] == 401
        body = b'{"queries": ["comet"]}'
        lines = (
            "POST /retrieve HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {TOKEN}",
            "Connection: close",
        )
        waiting.sendall(
            "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
        )
        server.await_pending(1)
        server.process.send_signal(signal.SIGTERM)
        answer = b"".join(iter(lambda: waiting.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"comet-0"' in answer
        log = server.process.stderr.read()
        assert server.process.wait(20) == 0
    assert log == f"stopped serving {index_dir}\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


@pytest.mark.nightly
def test_more_clients_than_the_usual_limit_of_open_files_are_served(index_dir: Path) -> None:
    low = ("bash", "-c", 'ulimit -S -n 256 && exec "$@"', "serve")
    with (
        served("--index", str(index_dir), through=low) as server,
        contextlib.ExitStack() as open_connections,
    ):
        for _ in range(400):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            open_connections.enter_context(connection)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.nightly
def test_an_open_event_stream_does_not_hold_up_the_stop(index_dir: Path) -> None:
    with (
        served("--index", str(index_dir)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as stream,
    ):
        stream.sendall(b"GET /sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = stream.recv(65536)
        while b"session_id=" not in received:
            received += stream.recv(65536)
        server.process.send_signal(signal.SIGTERM)
        rest = b"".join(iter(lambda: stream.recv(65536), b""))
        assert rest.endswith(b"0\r\n\r\n")
        assert server.process.stderr.read() == f"stopped serving {index_dir}\n"
        assert server.process.wait(20) == 0
