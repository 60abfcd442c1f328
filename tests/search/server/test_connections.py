"""Connections of a real server: what their limits refuse, and what they leave alone."""

import contextlib
import functools
import json
import socket
import time
from collections.abc import Iterator

import pytest

from deepsearch_rl.server import connections
from deepsearch_rl.server.connections import (
    MAX_HEAD_BYTES,
    ConnectionLimit,
    LimitedConnection,
)
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.service import RetrievalApp
from tests.search.server.searchers import GatedSearcher, engine, open_searcher, service_config
from tests.search_servers import serve_app

HEAD_TIMEOUT_S = 0.15
# After it, what the limit of a head ends has ended
LATER_S = 0.4
PING = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.contextmanager
def serving(searcher: GatedSearcher) -> Iterator[socket.socket]:
    """Yield a connection to a server of a searcher."""
    app = RetrievalApp(engine(searcher), service_config(), Guard(token=None, loopback=True))
    protocol = functools.partial(LimitedConnection, limit=ConnectionLimit(4))
    with serve_app(app, http=protocol, loop="uvloop", timeout_keep_alive=75) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=10) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection


@pytest.fixture
def short_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads have little time."""
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", HEAD_TIMEOUT_S)


def search(*queries: str) -> bytes:
    """A request that searches."""
    body = json.dumps({"queries": queries, "topk": 1}).encode()
    head = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """The status and body of the next answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        block = connection.recv(1)
        assert block, received
        received += block
    size_bytes = int(received.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = b""
    while len(body) < size_bytes:
        body += connection.recv(size_bytes - len(body))
    return int(received.split()[1]), body


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended a connection, or ends it before the client's time is up."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("size_bytes", [60_000, 100_000, 130_000, 300_000])
def test_a_body_may_be_longer_than_a_head_and_come_at_once(size_bytes: int) -> None:
    queries = [f"comet {number} {'x' * 1000}" for number in range(size_bytes // 1000)]
    with serving(open_searcher()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for _ in range(3):
            connection.sendall(search(*queries))
            status, body = read_answer(connection)
            assert status == 200
            assert len(json.loads(body)["result"]) == len(queries)


@pytest.mark.usefixtures("short_heads")
def test_a_search_may_take_longer_than_a_head() -> None:
    searcher = GatedSearcher()
    with serving(searcher) as connection:
        connection.sendall(search("comet"))
        time.sleep(LATER_S)
        searcher.gate.set()
        assert read_answer(connection)[0] == 200


@pytest.mark.usefixtures("short_heads")
@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_an_idle_connection_outlives_the_time_of_a_head(end: bytes) -> None:
    with serving(open_searcher()) as connection:
        # Old clients send an empty line after a body
        connection.sendall(search("comet") + end)
        assert read_answer(connection)[0] == 200
        time.sleep(LATER_S)
        connection.sendall(PING)
        assert read_answer(connection)[0] == 200


@pytest.mark.usefixtures("short_heads")
@pytest.mark.parametrize("begin", [b"GET /hea", PING[:-2], b"\r\n"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_that_does_not_end_is_closed(begin: bytes, is_first: bool) -> None:
    with serving(open_searcher()) as connection:
        if not is_first:
            connection.sendall(PING)
            assert read_answer(connection)[0] == 200
        connection.settimeout(2)
        connection.sendall(begin)
        assert is_closed(connection)


@pytest.mark.usefixtures("short_heads")
def test_a_connection_that_sends_nothing_is_closed() -> None:
    with serving(open_searcher()) as connection:
        connection.settimeout(2)
        assert is_closed(connection)


@pytest.mark.usefixtures("short_heads")
def test_a_head_that_comes_byte_by_byte_is_closed() -> None:
    with serving(open_searcher()) as connection:
        connection.sendall(b"GET /")
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                connection.sendall(b"x")
                time.sleep(0.03)
            pytest.fail("the server waits for the rest")


@pytest.mark.parametrize("is_first", [True, False])
def test_an_endless_head_is_refused(is_first: bool) -> None:
    with serving(open_searcher()) as connection:
        if not is_first:
            connection.sendall(search("comet"))
            assert read_answer(connection)[0] == 200
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(2 * MAX_HEAD_BYTES // 8192):
                connection.sendall(b"x" * 8192)
        assert read_answer(connection)[0] == 431
        assert is_closed(connection)


def test_requests_in_one_packet_are_answered_one_after_the_other() -> None:
    with serving(open_searcher()) as connection:
        connection.sendall((search("comet", "x" * 30_000) + PING) * 10)
        assert [read_answer(connection)[0] for _ in range(20)] == [200] * 20


@pytest.mark.usefixtures("short_heads")
def test_half_a_head_behind_a_search_has_its_time_after_the_answer() -> None:
    searcher = GatedSearcher()
    with serving(searcher) as connection:
        connection.sendall(search("comet") + PING[:-2])
        time.sleep(LATER_S)
        searcher.gate.set()
        assert read_answer(connection)[0] == 200
        connection.sendall(PING[-2:])
        assert read_answer(connection)[0] == 200

        connection.sendall(search("lander") + PING[:-2])
        assert read_answer(connection)[0] == 200
        connection.settimeout(2)
        assert is_closed(connection)


def test_an_endless_head_behind_a_search_does_not_spoil_its_answer() -> None:
    searcher = GatedSearcher()
    with serving(searcher) as connection:
        connection.sendall(search("comet"))
        assert searcher.started.acquire(timeout=10)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * (MAX_HEAD_BYTES + 10_000))
        searcher.gate.set()
        assert read_answer(connection)[0] == 200
        connection.sendall(b"x")
        assert read_answer(connection)[0] == 431


UPGRADE = (
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
)
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "retrieve", "arguments": {"query": "comet"}},
}


def upgraded(path: str, body: object, upgrade: str = UPGRADE) -> list[bytes]:
    """Head and body of a request that asks for another protocol, as curl --http2 does."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{upgrade}"
        f"Accept: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return [head.encode(), content]


@pytest.mark.parametrize("upgrade", [UPGRADE, "Connection: Upgrade\r\nUpgrade: websocket\r\n"])
@pytest.mark.parametrize(("path", "body"), [("/retrieve", {"queries": ["comet"]}), ("/mcp", CALL)])
@pytest.mark.parametrize("together", [True, False])
def test_a_wish_for_another_protocol_is_ignored_and_the_body_read(
    path: str, body: object, upgrade: str, together: bool
) -> None:
    with serving(open_searcher()) as connection:
        parts = upgraded(path, body, upgrade=upgrade)
        for packet in [b"".join(parts)] if together else parts:
            connection.sendall(packet)
            time.sleep(0.02)
        status, answer = read_answer(connection)
        assert status == 200
        assert b"comet/3/" in answer
        connection.sendall(search("lander"))
        assert b"lander/1/" in read_answer(connection)[1]


def test_requests_in_one_packet_may_each_wish_for_another_protocol() -> None:
    with serving(open_searcher()) as connection:
        asked = [b"".join(upgraded("/retrieve", {"queries": [f"q{n}"]})) for n in range(200)]
        connection.sendall(b"".join(asked))
        for number in range(200):
            assert b"q%d/3/" % number in read_answer(connection)[1]


def test_a_body_in_pieces_is_read_behind_a_wish_for_another_protocol() -> None:
    content = b'{"queries": ["comet"]}'
    head = (
        f"POST /retrieve HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}Transfer-Encoding: chunked\r\n\r\n"
    )
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    with serving(open_searcher()) as connection:
        for position in range(0, len(head), 7):
            connection.sendall(head[position : position + 7].encode())
        connection.sendall(body)
        assert b"comet/3/" in read_answer(connection)[1]


def test_a_connection_that_is_to_close_is_closed_whatever_protocol_was_wished_for() -> None:
    closing = UPGRADE.replace("Upgrade,", "close, Upgrade,")
    with serving(open_searcher()) as connection:
        connection.sendall(b"".join(upgraded("/retrieve", {"queries": ["comet"]}, closing)))
        assert read_answer(connection)[0] == 200
        assert is_closed(connection)


def test_a_tunnel_is_refused() -> None:
    with serving(open_searcher()) as connection:
        connection.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(connection)[0] >= 400
