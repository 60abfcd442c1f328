"""Logs of servers, and files that one process writes."""

import contextlib
import sys
from pathlib import Path

import httpx
import pytest

from deepsearch_rl.core import processes
from deepsearch_rl.core.processes import running_server
from tests.ports import free_port

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            print("the reason", flush=True)
            os._exit(7)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "error"),
    [(True, None), (True, ValueError), (True, KeyboardInterrupt), (False, None), (False, ValueError)],
)  # fmt: skip
def test_the_log_of_a_server_that_ended_by_itself_is_kept_however_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool, error: type[BaseException] | None
) -> None:
    monkeypatch.setattr(processes.tempfile, "tempdir", str(tmp_path))
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", SERVER, url.rpartition(":")[2]]
    with (
        contextlib.suppress(ValueError, KeyboardInterrupt),
        running_server("the server", command, url, "/health", 30) as server,
    ):
        if dies:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/die")
            server.process.wait(30)
        if error is not None:
            raise error
    logs = list(tmp_path.glob("deepsearch-*/output.log"))
    assert [log.read_text() for log in logs] == (["the reason\n"] if dies else [])
