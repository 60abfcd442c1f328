"""The remote encoder against a real HTTP server on loopback that misbehaves on demand."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.search.encoders.encoder import Unread
from deepsearch_rl.search.encoders.remote import RemoteEncoder
from deepsearch_rl.search.encoders.remote import RemoteEncoderConfig as RemoteConfig
from tests.search_servers import in_thread

KEY = "sk-very-secret"
Reply = tuple[int, object]


def vector(text: str) -> list[float]:
    """What the server knows of a text: enough to tell texts apart."""
    return [float(len(text)), float(sum(map(ord, text)) % 97), 1.0]


def embed(texts: list[str]) -> Reply:
    return 200, {
        "data": [{"index": row, "embedding": vector(text)} for row, text in enumerate(texts)]
    }


class Server(ThreadingHTTPServer):
    """Answers with ``script``'s replies one after another, the last one for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        self.script: list[Callable[[list[str]], Reply | None]] = [embed]
        self.requests: list[tuple[str, str | None, list[str]]] = []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body["input"]))
        turn = min(len(self.server.requests), len(self.server.script)) - 1
        reply = self.server.script[turn](body["input"])
        if reply is None:
            self.server.released.wait(30)  # a server that hangs, until the test ends
            return
        status, content = reply
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("EMBEDDINGS_KEY", KEY)
    running = Server()
    with in_thread(running):
        yield running
        running.released.set()


def encoder(server: Server, **changes: object) -> RemoteEncoder:
    settings = {
        "name": "remote",
        "base_url": server.url,
        "model": "m",
        "api_key_variable": "EMBEDDINGS_KEY",
        "dimension": 3,
        "query_prefix": "query: ",
        "passage_prefix": "passage: ",
        "max_characters": None,
        "batch_texts": 2,
        "concurrency": 3,
        "timeout_s": 10,
        "retries": 2,
    }
    return RemoteEncoder(RemoteConfig.model_validate({**settings, **changes}))


def expected(texts: list[str], prefix: str) -> np.ndarray:
    vectors_ND = np.array([vector(prefix + text) for text in texts])
    return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


def test_vectors_come_in_the_order_of_the_texts_whatever_the_order_of_the_answer(
    server: Server,
) -> None:
    def shuffled(texts: list[str]) -> Reply:
        status, answer = embed(texts)
        return status, {"data": answer["data"][::-1], "usage": {}, "object": "list"}

    server.script = [shuffled]
    texts = [f"text {'x' * row}" for row in range(9)]
    assert encoder(server).encode(texts, "passage") == pytest.approx(
        expected(texts, "passage: "), abs=1e-6
    )
    assert encoder(server, batch_texts=4).encode(texts, "query") == pytest.approx(
        expected(texts, "query: "), abs=1e-6
    )
    assert {(path, key) for path, key, _ in server.requests} == {
        ("/v1/embeddings", f"Bearer {KEY}")
    }
    assert max(len(texts) for *_, texts in server.requests[:5]) == 2


def test_blank_texts_are_zero_and_not_sent_and_long_ones_are_cut(server: Server) -> None:
    vectors_ND = encoder(server, max_characters=10).encode(["", "abcdef", " "], "query")
    assert np.linalg.norm(vectors_ND, axis=1) == pytest.approx([0, 1, 0], abs=1e-6)
    assert server.requests[0][2] == ["query: abc"]
    assert encoder(server).encode([], "query").shape == (0, 3)
    assert len(server.requests) == 1


def test_characters_behind_max_characters_are_counted(server: Server) -> None:
    passages = ["abcdef", "abcdefghij"]
    limited = encoder(server, max_characters=10, passage_prefix="p: ")
    assert limited.count_unread(passages) == Unread(texts=1, length=13, unread=3)
    assert encoder(server).count_unread(passages) == Unread()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_server_is_asked_again(server: Server, status: int) -> None:
    server.script = [lambda _: (status, {"error": {"message": "busy"}}), embed]
    assert encoder(server).encode(["a"], "query") == pytest.approx(
        expected(["a"], "query: "), abs=1e-6
    )
    assert len(server.requests) == 2


def test_a_server_that_stays_overloaded_is_given_up(server: Server) -> None:
    server.script = [lambda _: (503, {"error": {"message": "slow down"}})]
    with pytest.raises(EndpointError, match=r"answered 503: .*slow down"):
        encoder(server).encode(["a"], "query")
    assert len(server.requests) == 3 + 1  # the last one for a harmless text
    server.script = [lambda _: (429, {"error": {"message": "slow down"}})]
    with pytest.raises(EndpointError, match=r"answered 429: .*slow down"):
        # The server asks for 1 ms
        encoder(server, rate_limit_wait_s=0.0005).encode(["a"], "query")
    assert len(server.requests) == 4 + 1


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refusal_is_told_at_once_without_the_key(server: Server, status: int) -> None:
    server.script = [
        lambda _: (status, {"error": {"message": f"input too long, your key is {KEY}"}})
    ]
    with pytest.raises(
        EndpointError, match=rf"answered {status}: .*input too long, your key is \*\*\*"
    ) as caught:
        encoder(server).encode(["a"], "query")
    assert KEY not in repr(caught.value)
    assert len(server.requests) == 1


def test_a_server_that_hangs_is_given_up(server: Server) -> None:
    server.script = [lambda _: None]
    with pytest.raises(EndpointError, match=r"did not answer within 0\.1 s"):
        encoder(server, timeout_s=0.1, retries=0).encode(["a"], "query")


def test_a_server_that_is_not_there_is_named(server: Server) -> None:
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:1/v1 cannot be reached"):
        encoder(server, base_url="http://127.0.0.1:1/v1", retries=0).encode(["a"], "query")


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (b"<html>", "answered without embeddings"),
        (
            {"data": [{"index": 0, "embedding": "AAAA"}]},
            r"answered without embeddings \(data\.0\.embedding",
        ),
        ({"data": []}, "answered 1 texts with 0 vectors"),
        ({"data": [{"index": 1, "embedding": [1, 2, 3]}]}, "numbered them wrongly"),
        (
            {"data": [{"index": 0, "embedding": [1, 2]}]},
            r"dimension 2, where index\.encoder\.dimension is 3",
        ),
        (b'{"data": [{"index": 0, "embedding": [1, 2, NaN]}]}', "not finite for 'query: a'"),
        ({"data": [{"index": 0, "embedding": [1, 2, None]}]}, "not finite for 'query: a'"),
    ],
)
def test_an_answer_that_is_no_embedding_is_refused(
    server: Server, reply: Reply, complaint: str
) -> None:
    server.script = [lambda _: (200, reply)]
    with pytest.raises(EndpointError, match=complaint):
        encoder(server).encode(["a"], "query")
    assert len(server.requests) == 1


def test_the_key_comes_from_its_variable_and_is_shown_nowhere(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = encoder(server)
    assert KEY not in repr(made) + str(vars(made)["_config"])
    monkeypatch.delenv("EMBEDDINGS_KEY")
    with pytest.raises(ConfigError, match="set the environment variable EMBEDDINGS_KEY"):
        encoder(server)
    encoder(server, api_key_variable=None).encode(["a"], "query")
    assert server.requests[-1][1] == "Bearer none"


def test_a_missing_key_is_told_without_what_is_secret_in_the_address(server: Server) -> None:
    with pytest.raises(
        ConfigError, match=r"the key of https://embeddings\.example/v1: it"
    ) as raised:
        encoder(
            server,
            base_url="https://bob:hidden@embeddings.example/v1?key=hidden",
            api_key_variable="KEY_THAT_NOBODY_SET",
        )
    assert "hidden" not in str(raised.value)
