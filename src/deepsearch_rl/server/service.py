"""The HTTP application: all routes of the retrieval server (docs/contracts.md, section 1).

Whatever the dialect, a query waits in the same queue and is answered from the same cache.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from mcp.server.transport_security import TransportSecuritySettings
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepsearch_rl import __version__
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.search.dates import UNKNOWN_DAY
from deepsearch_rl.search.searcher import SearchesChunks, open_index
from deepsearch_rl.server.batching import (
    Metrics,
    QueueFullError,
    SearchFailedError,
    SearchQueue,
    SearchTimeoutError,
)
from deepsearch_rl.server.config import RetrievalConfig, ServerConfig
from deepsearch_rl.server.mcp_tool import make_mcp_server
from deepsearch_rl.server.online import open_online
from deepsearch_rl.server.pages import PageFile
from deepsearch_rl.server.requests import (
    MAX_BODY_BYTES,
    AccessRequest,
    Guard,
    RetrieveRequest,
    read_body,
)
from deepsearch_rl.server.rerank import CrossEncoder, RerankedSearcher

_LOG = logging.getLogger(__name__)

# Passages of one answer
MAX_PASSAGES = 50_000
RETRY = {"retry-after": "1"}
# The label of paths that are no routes
OTHER_ROUTE = "other"


@dataclass(frozen=True, slots=True)
class SearchEngine:
    """A searcher, and what a server must know of it."""

    searcher: SearchesChunks
    # No search finds more
    passages: int
    # Whether its passages name sources or days
    takes_filters: bool


def open_engine(config: ServerConfig) -> SearchEngine:
    """Open an index or an online search, with its reranker, ready for the first query."""
    settings = config.retrieval
    if settings.online:
        searcher = open_online(settings.online)
        passages = searcher.max_results
        takes_filters = False
    else:
        assert config.index is not None
        searcher = open_index(config.index, config.chunks, settings.retriever, config.threads)
        searcher.find_hits(["warm up"], settings.top_k)
        passages = len(searcher.chunks)
        has_days = bool((searcher.rows.day_N != UNKNOWN_DAY).any())
        takes_filters = bool(searcher.rows.sources) or has_days

    if settings.reranker is not None:
        reranker = CrossEncoder(settings.reranker)
        reranker.warm_up()
        searcher = RerankedSearcher(searcher, reranker, settings.reranker.depth)

    return SearchEngine(searcher, passages, takes_filters)


def make_app(engine: SearchEngine, config: RetrievalConfig, guard: Guard) -> FastAPI:
    """Return the application over one engine; raise what opening the pages file raises."""
    metrics = Metrics()
    queue = SearchQueue(engine.searcher, config, metrics)
    routes = _Routes(queue, engine, config, metrics)
    mcp = make_mcp_server(queue, filters=engine.takes_filters)
    # The guard checks Host and Origin
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    streamable_http = mcp.streamable_http_app(
        stateless_http=True,
        json_response=True,
        transport_security=security,
        max_request_body_size=MAX_BODY_BYTES,
    )
    sse = mcp.sse_app(transport_security=security, max_request_body_size=MAX_BODY_BYTES)

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with queue, mcp.session_manager.run():
            yield

    app = FastAPI(
        title="deepsearch-rl retrieval server",
        version=__version__,
        lifespan=running,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.router.route_class = _PlainRoute
    app.post("/retrieve", openapi_extra=_takes(RetrieveRequest))(routes.retrieve)
    app.post("/access", openapi_extra=_takes(AccessRequest))(routes.access)
    app.get("/healthz")(routes.healthz)
    app.get("/metrics")(routes.show_metrics)
    app.router.routes += streamable_http.routes + sse.routes
    paths = {getattr(route, "path", OTHER_ROUTE) for route in app.routes}
    app.add_middleware(_Gate, guard=guard, metrics=metrics, paths=paths)
    return app


class _PlainRoute(APIRoute):
    """A documented route whose function takes the request: injection would cost a quarter of a cached answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI says of a route's body, which the routes read themselves to bound its size."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


class _Routes:
    def __init__(
        self, queue: SearchQueue, engine: SearchEngine, config: RetrievalConfig, metrics: Metrics
    ) -> None:
        self._queue = queue
        self._top_k = config.top_k
        self._max_top_k = engine.passages
        self._pages = PageFile(config.pages) if config.pages else None
        self._metrics = metrics

    async def retrieve(self, request: Request) -> Response:
        """Search, as Search-R1, veRL and RLinf do.

        The answer is `{"result": [[{"document": {id, contents, url, metadata}, "score"}, ...],
        ...]}`, a list per query, or the documents alone where `return_scores` is false.
        """
        body = await read_body(request, RetrieveRequest)
        top_k = min(body.topk or self._top_k, self._max_top_k)
        if len(body.queries) * top_k > MAX_PASSAGES:
            limit = f"{len(body.queries)} queries may ask for {MAX_PASSAGES} passages in all"
            raise HTTPException(422, f"topk: {limit}, not for {top_k} each; send several requests.")

        try:
            answers = await self._queue.answer(body.queries, top_k)
        except SearchFailedError as error:
            may_pass = isinstance(error, SearchTimeoutError | QueueFullError)
            if may_pass or isinstance(error.__cause__, EndpointError):
                raise HTTPException(503, str(error), RETRY) from error
            raise HTTPException(500, str(error)) from error

        return _results([answer.as_json(body.return_scores) for answer in answers])

    async def access(self, request: Request) -> Response:
        """Return pages by URL, null where there is no such page, as ASearcher and RLinf read them."""
        pages = self._pages
        if pages is None:
            raise HTTPException(
                404, "this server has no pages: start it with a pages file to use /access."
            )
        body = await read_body(request, AccessRequest)
        return _results(await asyncio.to_thread(lambda: list(map(pages.find, body.urls))))

    async def healthz(self, _request: Request) -> Response:
        """Answer once the index is open and warm, with 503 while a search is past its deadline."""
        if problem := self._queue.problem():
            raise HTTPException(503, problem, RETRY)
        return JSONResponse({"status": "ok"})

    async def show_metrics(self, _request: Request) -> Response:
        """Return the counters in Prometheus's text format."""
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _results(items: list[bytes]) -> Response:
    return Response(b'{"result":[%b]}' % b",".join(items), media_type="application/json")


class _Gate:
    """Middleware that asks the guard, counts answers, and answers ``{"detail": ...}`` where a request fails."""

    def __init__(
        self, app: ASGIApp, guard: Guard, metrics: Metrics, paths: Collection[str]
    ) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        route = scope["path"] if scope["path"] in self._paths else OTHER_ROUTE
        started_s = time.perf_counter()
        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                elapsed_s = time.perf_counter() - started_s
                self._metrics.count_request(route, message["status"], elapsed_s)
            await send(message)

        try:
            headers = dict(scope["headers"])
            self._guard.check_names(headers)
            if route != "/healthz":
                self._guard.check_token(headers)
            await self._app(scope, receive, counted)
        except HTTPException as error:
            await _refusal(error.status_code, error.detail, error.headers)(scope, receive, counted)
        except asyncio.CancelledError:
            # uvicorn cancels what still runs when its time to stop is up
            if not begun:
                await _refusal(503, "the server is stopping.", RETRY)(scope, receive, counted)
            raise
        except Exception:  # noqa: BLE001 - logged
            if begun:
                # MCP's event streams do not end cleanly when the server stops; uvicorn closes them
                _LOG.debug("the answer of %s was cut off", route, exc_info=True)
                return
            _LOG.exception("a request to %s failed", route)
            await _refusal(500, "the server failed; its log says why.")(scope, receive, counted)


def _refusal(status: int, detail: str, headers: Any = None) -> Response:
    return JSONResponse({"detail": detail}, status, headers)
