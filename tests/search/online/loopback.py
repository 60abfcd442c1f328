"""A search endpoint on loopback that answers what a test says."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.search_servers import in_thread


@dataclass
class Reply:
    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def as_json(value: object, status: int = 200, **headers: str) -> Reply:
    return Reply(
        json.dumps(value).encode(),
        status,
        {name.replace("_", "-"): text for name, text in headers.items()},
    )


@dataclass
class Endpoint:
    """Gives its replies in turn, the last one for ever, and remembers what it was asked."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list[Reply])
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    gate: threading.Barrier | None = None


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    state, lock = Endpoint(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with lock:
                state.asked.append(
                    (self.path, {name.lower(): text for name, text in self.headers.items()}, body)
                )
                reply = state.replies.pop(0) if len(state.replies) > 1 else state.replies[0]
                state.at_once += 1
                state.most_at_once = max(state.most_at_once, state.at_once)
            try:
                if state.gate:
                    state.gate.wait(10)
            except threading.BrokenBarrierError:
                # The test ended while this request waited
                self.close_connection = True
                return
            finally:
                with lock:
                    state.at_once -= 1
            self.send_response(reply.status)
            for name, text in {"content-length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    with in_thread(server):
        yield state
