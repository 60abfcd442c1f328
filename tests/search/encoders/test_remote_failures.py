"""A batch of 64 queries, one per client, before a server of embeddings that fails in one way or another."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from deepsearch_rl.search.encoders.remote import RemoteEncoder
from deepsearch_rl.search.encoders.remote import RemoteEncoderConfig as RemoteConfig
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, SearchesChunks
from deepsearch_rl.server.batching import Metrics, SearchFailedError, SearchQueue
from tests.search_servers import in_thread
from tests.server.searchers import hit, service_config

Reply = tuple[int, Any, Mapping[str, str]]
"""Status, body (bytes as they are, anything else as JSON), headers."""
Behaviour = Callable[[list[str]], Reply | None]
"""What a server answers to texts; None closes the connection without an answer."""


class Server(ThreadingHTTPServer):
    """Answers a request for texts as a function says, and remembers the texts of each."""

    request_queue_size = 128

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.asked: list[list[str]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, *_: object) -> None:
        """Stay quiet about clients that have gone."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(json.loads(body)["input"])

    def do_GET(self) -> None:
        self.answer(parse_qs(urlsplit(self.path).query)["q"])

    def answer(self, texts: list[str]) -> None:
        self.server.asked.append(texts)
        answer = self.server.behaviour(texts)
        if answer is None:
            self.connection.close()
            return

        status, content, headers = answer
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def serve() -> Iterator[Callable[[Behaviour], Server]]:
    """Starts servers that run until the end of the test."""
    with contextlib.ExitStack() as stack:

        def start(behaviour: Behaviour) -> Server:
            server = Server(behaviour)
            stack.enter_context(in_thread(server))
            return server

        yield start


def embeddings_config(server: Server, **settings: float) -> RemoteConfig:
    """The encoder of a server of embeddings, which gets all texts in one request and no second try."""
    return RemoteConfig(
        name="remote",
        base_url=f"http://127.0.0.1:{server.server_port}/v1",
        model="m",
        api_key_variable=None,
        dimension=2,
        query_prefix="",
        passage_prefix="",
        max_characters=None,
        batch_texts=64,
        concurrency=1,
        retries=0,
        **settings,
    )


@dataclass
class EncodingSearcher:
    """Finds one chunk for a query that its encoder can read."""

    encoder: RemoteEncoder

    def find_hits(
        self,
        queries: Sequence[str],
        top_k: int,  # noqa: ARG002
        where: Filter | None = None,  # noqa: ARG002
    ) -> list[list[Hit]]:
        self.encoder.encode(queries, "query")
        return [[hit(query)] for query in queries]


QUERIES = [f"q{number}" for number in range(64)]


async def ask_each(searcher: SearchesChunks, **settings: object) -> list[object]:
    """What 64 clients with a query each, which share a search, get."""
    queue = SearchQueue(
        searcher, service_config(window_ms=15_000, max_batch=64, **settings), Metrics()
    )
    async with queue:
        return await asyncio.gather(
            *(queue.answer([query], 1) for query in QUERIES), return_exceptions=True
        )


POISON = "q9"  # the one query of 64 that a server does not like


def vectors(texts: list[str], number: float | None = 1.0) -> Reply:
    rows = [{"index": row, "embedding": [number, 0.0]} for row in range(len(texts))]
    return 200, {"data": rows}, {}


def nan_for(texts: list[str], of: set[str], nan: float | None = float("nan")) -> Reply:
    rows = [
        {"index": row, "embedding": [nan if text in of else 1.0, 0.0]}
        for row, text in enumerate(texts)
    ]
    return 200, {"data": rows}, {}


def unless_poisoned(answer: Callable[[list[str]], Reply], bad: Reply | None) -> Behaviour:
    return lambda texts: bad if POISON in texts else answer(texts)


def hangs(_: list[str]) -> Reply:
    time.sleep(4.0)
    return 200, {}, {}


@pytest.fixture
def timeout_s(request: pytest.FixtureRequest) -> float:
    """Short where the server hangs; elsewhere a busy machine must not make a query late."""
    return 1.5 if "hangs" in request.node.callspec.id else 30.0


# What the server does, how many of 64 queries fail, how many requests they may cost
EMBEDDINGS: dict[str, tuple[Behaviour, int, int]] = {
    "is down": (lambda _: (503, {"error": "x"}, {}), 64, 2),  # one attempt and one probe
    "refuses everything": (lambda _: (400, {"error": "x"}, {}), 64, 2),
    "a wrong key": (lambda _: (401, {"error": "x"}, {}), 64, 1),
    "refuses a text": (unless_poisoned(vectors, (400, {"error": "x"}, {})), 1, 20),
    "fails at a text": (unless_poisoned(vectors, (500, {"error": "x"}, {})), 1, 20),
    "hangs": (hangs, 64, 1),
    "loses every connection": (lambda _: None, 64, 2),
    "a page of HTML": (lambda _: (200, b"<html>", {}), 64, 1),
    "an error under status 200": (lambda _: (200, {"error": {"message": "x"}}, {}), 64, 1),
    "another dimension": (
        lambda texts: (200, {"data": [{"index": r, "embedding": [1.0]} for r in range(len(texts))]}, {}),
        64,
        1,
    ),
    "a vector too few": (lambda texts: vectors(texts[1:]), 64, 1),
    "null for every number": (lambda texts: vectors(texts, None), 64, 1),
    "NaN for every text": (lambda texts: nan_for(texts, set(texts)), 64, 1),
    "NaN for one text": (lambda texts: nan_for(texts, {POISON}), 1, 13),
    "null for one text": (lambda texts: nan_for(texts, {POISON}, None), 1, 13),
    "no such model": (lambda _: (404, {"error": "x"}, {}), 64, 1),
    "a key that may not": (lambda _: (403, {"error": "x"}, {}), 64, 1),
    "a quota that is out": (lambda _: (429, {"error": "insufficient_quota"}, {}), 64, 1),
    "too many texts at once": (
        lambda texts: (413, {"error": "x"}, {}) if len(texts) > 16 else vectors(texts),
        0,
        10,
    ),
    "a text that it cannot read": (unless_poisoned(vectors, (422, {"error": "x"}, {})), 1, 20),
    "a text that it dies of": (unless_poisoned(vectors, None), 1, 20),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "failures", "requests"), EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_an_embeddings_server_that_fails_in_whatever_way_is_asked_a_few_times_for_a_batch(
    serve: Callable[[Behaviour], Server],
    timeout_s: float,
    behaviour: Behaviour,
    failures: int,
    requests: int,
) -> None:
    server = serve(behaviour)
    config = embeddings_config(server, timeout_s=timeout_s, rate_limit_wait_s=0)
    answers = asyncio.run(ask_each(EncodingSearcher(RemoteEncoder(config))))
    assert sum(isinstance(answer, SearchFailedError) for answer in answers) == failures
    assert len(server.asked) <= requests
