"""The hot route `/retrieve` before the framework, by Starlette and by FastAPI: queries/s, p99 and server CPU.

    .venv/bin/python -m benchmarks.http_frameworks
    .venv/bin/python -m benchmarks.http_frameworks --docs docs/retrieval.md      # and the table into the document

All three stand behind the same guard, counters, queue and cache, and send the same bytes; 64 queries repeat, so that
the cache answers and the route itself is what is measured. The servers run on one core and are loaded in turn.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.http_load import drive, drive_in_turn, json_request
from benchmarks.measure import medians, parse_options, publish, write_figures
from benchmarks.servers import forked_server, spare_core
from deepsearch_rl.records import Chunk, ChunkMetadata
from deepsearch_rl.retrieval.rows import Filter
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


def _make_app() -> RetrievalApp:
    """Return the server, as a user runs it."""
    return RetrievalApp(SearchEngine(FixedSearcher(), passages=100, takes_filters=False), CONFIG, GUARD)


def _guarded(app: ASGIApp) -> ASGIApp:
    """Return a framework's application behind the server's guard and counters."""
    metrics = Metrics()

    async def serve_one(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        GUARD.check_names(dict(scope["headers"]))
        return await app(scope, receive, CountedResponse(send, scope["path"], metrics))

    return serve_one


def _by_starlette() -> ASGIApp:
    """Return a Starlette route with the server's own checks and search."""
    server = _make_app()

    async def retrieve(request: Request) -> Response:
        return await server.retrieve(parse_body(RetrieveRequest, await read_body(request.scope, request.receive)))

    routes = [Route("/retrieve", retrieve, methods=["POST"])]
    return _guarded(Starlette(routes=routes, lifespan=lambda _: server.running()))


APPS: dict[str, Callable[[], ASGIApp]] = {
    SHORT_CUT: _make_app,
    "Starlette": _by_starlette,
    "FastAPI": lambda: _guarded(_make_app().api),
}


def _serve(name: str, listener: socket.socket) -> None:
    config = uvicorn.Config(
        APPS[name](), loop="uvloop", http="httptools", ws="none", log_level="critical", access_log=False,
        server_header=False, date_header=False,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    """Load all three with every number of clients and print the table."""
    options = parse_options(__doc__, clients=[1, 64], seconds=(3.0, "of load per measurement"), repetitions=5)
    bodies = [{"queries": [f"query {n}"], "topk": 3, "return_scores": True} for n in range(QUERIES)]
    requests = [json_request(body, expected=b'"document"') for body in bodies]
    rows: list[Sequence[object]] = []
    with ExitStack() as stack:
        servers = {name: stack.enter_context(forked_server(partial(_serve, name), spare_core())) for name in APPS}
        for server in servers.values():
            uvloop.run(drive(server.address, requests, 4, 30))
        for clients in options.clients:
            loads = drive_in_turn(servers, requests, clients, options.seconds, options.repetitions)
            ours = [run.load.rate_per_s for run in loads[SHORT_CUT]]
            for name, runs in loads.items():
                figures = [
                    {
                        **run.figures,
                        "the short cut is faster by": rate / run.load.rate_per_s,
                        "server CPU us/query": run.figures["CPU ms/query"] * 1000,
                    }
                    for rate, run in zip(ours, runs, strict=True)
                ]
                rate, ratio, *rest = write_figures(medians(figures), FORMATS)
                rows.append((name, clients, rate, f"{ratio}x", *rest, sum(run.load.errors for run in runs)))
    publish(options, "http_frameworks", ("route by", "clients", *FORMATS, "errors"), rows)


if __name__ == "__main__":
    main()
