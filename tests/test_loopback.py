"""This machine's own addresses and the shell's proxy; a real proxy that writes down what reaches it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import build_opener

import httpx
import httpx2
import pytest
import requests
from openai import OpenAI

from deepsearch_rl.core.loopback import spare_loopback, with_loopback
from deepsearch_rl.core.processes import LOOPBACK
from tests.cli.test_evaluate import evaluate, folder, reads
from tests.evaluate.chat import serve_chat
from tests.search_servers import in_thread

__all__ = ["folder"]

PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ELSEWHERE = "http://example.invalid/"
STAGE = """
import sys
import httpx
httpx.get(sys.argv[2]).raise_for_status()
httpx.get("http://example.invalid/").raise_for_status()
"""


class Recorder(ThreadingHTTPServer):
    """Answers everything and keeps what was asked for; a proxy is asked for whole addresses, a server for paths."""

    daemon_threads = True

    def __init__(self) -> None:
        self.targets: list[str] = []
        super().__init__((LOOPBACK, 0), _Answer)
        self.port = self.server_address[1]
        self.url = f"http://{LOOPBACK}:{self.port}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Recorder)
        self.server.targets.append(self.path)
        body = json.dumps({"object": "list", "data": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002 - the name of the library
        return


@pytest.fixture
def server() -> Iterator[Recorder]:
    yield from recorder()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A proxy that the environment names, as a shell's profile would."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")  # so that it is set back after the test
        monkeypatch.delenv(name)
    for running in recorder():
        for name in PROXY_NAMES:
            monkeypatch.setenv(name, running.url)
        yield running


def recorder() -> Iterator[Recorder]:
    running = Recorder()
    with in_thread(running):
        yield running


@pytest.mark.parametrize("host", [LOOPBACK, "localhost"])
def test_no_library_asks_a_proxy_for_this_machine_and_all_ask_it_for_others(
    server: Recorder, proxy: Recorder, host: str
) -> None:
    spare_loopback()
    address = f"http://{host}:{server.port}"

    def ask(url: str) -> None:
        httpx.get(f"{url}/httpx")
        httpx2.get(f"{url}/httpx2")
        requests.get(f"{url}/requests", timeout=30)
        # Urlopen keeps the proxies of its first call
        build_opener().open(f"{url}/urllib", timeout=30).close()
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).models.list()

    ask(address)
    assert server.targets == ["/httpx", "/httpx2", "/requests", "/urllib", "/v1/models"]
    assert proxy.targets == []
    ask("http://example.invalid")
    assert proxy.targets == [f"http://example.invalid{path}" for path in server.targets]


def test_ipv6s_own_address_is_spared_too(proxy: Recorder) -> None:
    spare_loopback()
    for module in (httpx, httpx2):
        with pytest.raises(module.ConnectError):
            module.get("http://[::1]:9/")
    with pytest.raises(requests.ConnectionError):
        requests.get("http://[::1]:9/", timeout=30)
    assert proxy.targets == []


@pytest.mark.parametrize(
    ("hosts", "result"),
    [
        ("", "127.0.0.1,localhost,::1"),
        ("*", "*"),
        (" * ", " * "),
        (
            "intern.example, 10.0.0.0/8 ,.corp:8080",
            "intern.example, 10.0.0.0/8 ,.corp:8080,127.0.0.1,localhost,::1",
        ),
        ("LOCALHOST , 127.0.0.1", "LOCALHOST , 127.0.0.1,::1"),
        ("127.0.0.1:8000", "127.0.0.1:8000,127.0.0.1,localhost,::1"),
    ],
)
def test_the_users_own_hosts_are_kept(hosts: str, result: str) -> None:
    assert with_loopback(hosts) == result
    assert with_loopback(result) == result


@pytest.mark.parametrize(
    ("environment", "changed"),
    [
        ({}, {}),
        ({"NO_PROXY": "corp"}, {}),
        ({"http_proxy": ""}, {}),
        (
            {"https_proxy": "p"},
            {"NO_PROXY": "127.0.0.1,localhost,::1", "no_proxy": "127.0.0.1,localhost,::1"},
        ),
        ({"HTTP_PROXY": "p", "NO_PROXY": "corp"}, {"NO_PROXY": "corp,127.0.0.1,localhost,::1"}),
        ({"ALL_PROXY": "p", "no_proxy": "corp"}, {"no_proxy": "corp,127.0.0.1,localhost,::1"}),
    ],
)
def test_only_lists_that_the_user_has_change_and_only_where_there_is_a_proxy(
    environment: dict[str, str], changed: dict[str, str]
) -> None:
    result = dict(environment)
    spare_loopback(result)
    assert result == environment | changed


@pytest.mark.slow
def test_a_stage_asks_no_proxy_for_this_machine(
    tmp_path: Path, root: Path, server: Recorder, proxy: Recorder
) -> None:
    for name in (
        "stages/__init__.py",
        "stages/environment.py",
        "stages/project.env",
        "src/deepsearch_rl/core/loopback.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((root / name).read_bytes())
    (tmp_path / "stages" / "probe.py").write_text(STAGE)
    command = [sys.executable, "-m", "stages.probe", "params.yaml", server.url]
    subprocess.run(command, cwd=tmp_path, env=dict(os.environ), check=True)
    assert server.targets == ["/"]
    assert proxy.targets == [ELSEWHERE]


@pytest.mark.nightly
def test_deepsearch_evaluate_asks_no_proxy_for_a_model_and_a_retriever_on_this_machine(
    folder: Path, proxy: Recorder
) -> None:
    with serve_chat(reads) as chat:
        result = evaluate(chat, folder, "--questions", "2")
    assert result.exit_code == 0, result.output
    assert proxy.targets == []
