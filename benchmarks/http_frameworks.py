"""The hot route `/retrieve` before the framework, by Starlette and by FastAPI: queries/s, p99 and server CPU.

    .venv/bin/python -m benchmarks.http_frameworks
    .venv/bin/python -m benchmarks.http_frameworks --docs docs/retrieval.md      # and the table into the document

All three stand behind the same guard, counters, queue and cache, and send the same bytes; 64 queries repeat, so that
the cache answers and the route itself is what is measured. The servers run on one core and are loaded in turn.
"""

import itertools
import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.load.http_load import Load, drive, retrieve_request
from benchmarks.load.server_process import forked_server, spare_core
from benchmarks.measure import medians, option_parser, publish, write_figures
from deepsearch_rl.records import Chunk, ChunkMetadata
from deepsearch_rl.retrieval.row_table import Filter
from deepsearch_rl.retrieval.searcher import Hit
from deepsearch_rl.retrieval.server.batching import Metrics
from deepsearch_rl.retrieval.server.config import RetrievalConfig
from deepsearch_rl.retrieval.server.requests import Guard, RetrieveRequest, parse_body, read_body
from deepsearch_rl.retrieval.server.service import CountedResponse, RetrievalApp, SearchEngine

CONFIG = RetrievalConfig(
    retriever="bm25",
    top_k=3,
    window_ms=0,
    max_batch=64,
    max_pending=4096,
    cache_entries=4096,
    pages=None,
    reranker=None,
    online=None,
    startup_timeout_s=120,
)
GUARD = Guard(token=None, loopback=True)
QUERIES = 64
SHORT_CUT = "the short cut"
FORMATS = {"queries/s": ".0f", "the short cut is faster by": ".2f", "p99 ms": ".2f", "server CPU us/query": ".0f"}


class FixedSearcher:
    """Returns the same passages for every query."""

    def search(self, queries: Sequence[str], top_k: int, where: Filter | None = None) -> list[list[Hit]]:  # noqa: ARG002
        """Return ``top_k`` hits of 600 characters a query."""
        metadata = ChunkMetadata(doc_id="d", doc_chunks=1, doc_chunk_id=0)
        chunks = [Chunk(id=f"c{rank}", contents="Title\n" + "word " * 120, metadata=metadata) for rank in range(top_k)]
        return [[Hit(rank, 1 / (rank + 1), chunk) for rank, chunk in enumerate(chunks)] for _ in queries]


def make_app() -> RetrievalApp:
    """The server, as a user runs it."""
    return RetrievalApp(SearchEngine(FixedSearcher(), passages=100, takes_filters=False), CONFIG, GUARD)


def guarded(app: ASGIApp) -> ASGIApp:
    """A framework's application behind the server's guard and counters."""
    metrics = Metrics()

    async def serve_one(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        GUARD.check_names(dict(scope["headers"]))
        return await app(scope, receive, CountedResponse(send, scope["path"], metrics))

    return serve_one


def by_starlette() -> ASGIApp:
    """A Starlette route with the server's own checks and search."""
    server = make_app()

    async def retrieve(request: Request) -> Response:
        return await server.retrieve(parse_body(RetrieveRequest, await read_body(request.scope, request.receive)))

    routes = [Route("/retrieve", retrieve, methods=["POST"])]
    return guarded(Starlette(routes=routes, lifespan=lambda _: server.running()))


APPS: dict[str, Callable[[], ASGIApp]] = {
    SHORT_CUT: make_app,
    "Starlette": by_starlette,
    "FastAPI": lambda: guarded(make_app().api),
}


def serve(name: str, listener: socket.socket) -> None:
    """Serve one of the applications until killed."""
    config = uvicorn.Config(
        APPS[name](), loop="uvloop", http="httptools", ws="none", log_level="critical", access_log=False,
        server_header=False, date_header=False,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def measure(seconds: float, repetitions: int, clients: Sequence[int]) -> Iterator[Sequence[object]]:
    """Yield one row of the table per number of clients and application."""
    bodies = [{"queries": [f"query {n}"], "topk": 3, "return_scores": True} for n in range(QUERIES)]
    requests = [retrieve_request(json.dumps(body).encode(), expected=b'"document"') for body in bodies]
    with ExitStack() as stack:
        servers = {name: stack.enter_context(forked_server(partial(serve, name), spare_core())) for name in APPS}
        for server in servers.values():
            uvloop.run(drive(server.address, iter(requests), 4, QUERIES, 30))
        for count in clients:
            loads: dict[str, list[tuple[Load, float]]] = {name: [] for name in servers}
            for repetition in range(repetitions):
                for name in list(servers) if repetition % 2 == 0 else reversed(servers):
                    cpu_s = servers[name].cpu_s()
                    load = uvloop.run(
                        drive(servers[name].address, itertools.cycle(requests), count, sys.maxsize, seconds)
                    )
                    loads[name].append((load, servers[name].cpu_s() - cpu_s))
            yield from _rows(loads, count)


def _rows(loads: dict[str, list[tuple[Load, float]]], clients: int) -> Iterator[Sequence[object]]:
    for name, runs in loads.items():
        figures = [
            {
                "queries/s": load.rate_per_s,
                "the short cut is faster by": ours.rate_per_s / load.rate_per_s,
                "p99 ms": load.percentile_ms(99),
                "server CPU us/query": cpu_s / load.answered * 1e6,
            }
            for (ours, _), (load, cpu_s) in zip(loads[SHORT_CUT], runs, strict=True)
        ]
        rate, ratio, p99_ms, cpu_us = write_figures(medians(figures), FORMATS)
        yield name, clients, rate, f"{ratio}x", p99_ms, cpu_us, sum(load.errors for load, _ in runs)


def main() -> None:
    """Parse the command line, measure and print the table."""
    parser = option_parser(__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--seconds", type=float, default=3, help="of load per measurement")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    rows = list(measure(options.seconds, options.repetitions, options.clients))
    publish("http_frameworks", ("route by", "clients", *FORMATS, "errors"), rows, docs=options.docs)


if __name__ == "__main__":
    main()
