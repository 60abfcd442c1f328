"""The HTTP application: all routes of the retrieval server.

``/retrieve``, ``/access``, ``/healthz``, ``/metrics``, MCP at ``/mcp`` and ``/sse``, OpenAPI at
``/docs``. Shapes and errors are those of docs/contracts.md, section 1. Whatever the dialect, a
query waits in the same queue and is answered from the same cache. FastAPI documents the routes and
serves those of GET; ``/retrieve`` and ``/access`` are answered before FastAPI sees the request
(docs/retrieval.md has the measured gain).
"""

import asyncio
import contextlib
import ctypes
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import FastAPI
from mcp.server.transport_security import TransportSecuritySettings
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepsearch_rl import __version__
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.search.manifest import read_manifest
from deepsearch_rl.search.rows import UNKNOWN_DAY
from deepsearch_rl.search.searcher import SearchesChunks, open_index
from deepsearch_rl.server import requests
from deepsearch_rl.server.batching import SearchQueue, SearchTimeoutError
from deepsearch_rl.server.config import RetrievalConfig, ServerConfig
from deepsearch_rl.server.limits import RETRY, BodyLimit, Budget, max_documents
from deepsearch_rl.server.mcp_accept import AnyAccept
from deepsearch_rl.server.mcp_tool import make_mcp_server
from deepsearch_rl.server.metrics import OTHER_ROUTE, Metrics
from deepsearch_rl.server.online.searcher import open_online
from deepsearch_rl.server.pages import NO_PAGE, PageFile
from deepsearch_rl.server.rerank import CrossEncoder, RerankedSearcher

_LOG = logging.getLogger(__name__)
_TRIM_EVERY_S = 10
PIECE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class SearchEngine:
    """A searcher, and what a server must know of it."""

    searcher: SearchesChunks
    # No search finds more
    passages: int
    # Whether its passages name sources or days
    takes_filters: bool
    # Mean size of a passage in the chunk file; 0 where it is not known
    passage_bytes: float = 0.0


def open_engine(config: ServerConfig) -> SearchEngine:
    """Open an index or an online search, reranked or not, ready for the first query; raise what opening them raises."""
    settings = config.retrieval
    if settings.online:
        searcher = open_online(settings.online)
        passages = searcher.config.max_results
        takes_filters = False
        # An answer's bytes have a limit of their own
        passage_bytes = 0.0
    else:
        assert config.index is not None
        searcher = open_index(config.index, config.chunks, settings.retriever, config.threads)
        searcher.find_hits(["warm up"], settings.top_k)
        manifest = read_manifest(config.index)
        passages = len(searcher.chunks)
        passage_bytes = manifest.chunks_bytes / manifest.rows
        takes_filters = bool(searcher.rows.sources) or bool(
            (searcher.rows.day_N != UNKNOWN_DAY).any()
        )

    if settings.reranker is not None:
        reranker = CrossEncoder(settings.reranker)
        reranker.warm_up()
        searcher = RerankedSearcher(searcher, reranker, settings.reranker.depth)

    return SearchEngine(searcher, passages, takes_filters, passage_bytes)


class RetrievalApp:
    """The ASGI application over one engine, ``api`` its FastAPI part; making it raises what :class:`PageFile` does."""

    def __init__(
        self,
        engine: SearchEngine,
        config: RetrievalConfig,
        guard: requests.Guard,
        alone: bool = True,
    ) -> None:
        """``alone``: no other process answers at the same port, so that a session finds its process again."""
        self._guard = guard
        self._top_k = config.top_k
        self._max_top_k = engine.passages
        self._pages = PageFile(config.pages) if config.pages else None
        self._metrics = Metrics()
        self._wait_s = config.search_timeout_s
        self._bodies = BodyLimit(requests.MAX_BODIES_BYTES)
        self._max_documents = max_documents(engine.passage_bytes)
        # Of all requests together
        self._documents = Budget(2 * self._max_documents)
        self._page_bytes = Budget(requests.MAX_HELD_PAGES_BYTES)
        self._queue = SearchQueue(engine.searcher, config, self._metrics, self._max_documents)

        # The guard has checked Host and Origin. A search is one request and one answer: sessions
        # cost round trips.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._mcp = make_mcp_server(self._queue, filters=engine.takes_filters)
        self._mcp.streamable_http_app(
            stateless_http=True, json_response=True, transport_security=security
        )
        sse = self._mcp.sse_app(
            transport_security=security, max_request_body_size=requests.MAX_BODY_BYTES
        )
        self._mcp_apps: dict[str, ASGIApp] = {
            "/mcp": AnyAccept(self._mcp.session_manager.handle_request)
        }
        if alone:
            self._mcp_apps |= {"/messages": sse, "/sse": sse}
        self.api = self._make_api()
        self._methods = {route.path: "GET" for route in self.api.routes if isinstance(route, Route)}
        self._methods |= {"/retrieve": "POST", "/access": "POST"}
        self._methods |= {path: "POST" for path in self._mcp_apps}
        if alone:
            self._methods["/sse"] = "GET"

    def _make_api(self) -> FastAPI:
        api = FastAPI(
            title="deepsearch-rl retrieval server",
            version=__version__,
            lifespan=lambda _: self.running(),
            redoc_url=None,
            swagger_ui_oauth2_redirect_url=None,
        )
        api.post("/retrieve")(self.retrieve)
        api.post("/access")(self._access)
        api.get("/healthz")(self._healthz)
        api.get("/metrics")(self._show_metrics)
        return api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the server's life, or one request."""
        if scope["type"] == "lifespan":
            await self.api(scope, receive, send)
            return

        path = scope["path"].rstrip("/")
        route = path if path in self._methods else OTHER_ROUTE
        response = CountedResponse(send, route, self._metrics)

        try:
            await self._serve(scope, receive, response, path)
        except HTTPException as error:
            refusal = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
            await refusal(scope, receive, response)
        except asyncio.CancelledError:
            # Its time was up when the server stopped.
            refusal = JSONResponse({"detail": "the server is stopping."}, 503, RETRY)
            await refusal(scope, receive, response)
            raise
        except Exception:
            _LOG.exception("a request to %s failed", route)
            if response.begun:
                raise
            refusal = JSONResponse({"detail": "the server failed; its log says why."}, 500)
            await refusal(scope, receive, response)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        headers = dict(scope["headers"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        self._guard.check_names(headers)
        if path != "/healthz":
            self._guard.check_token(headers)
        allowed = self._methods.get(path)

        if allowed is None:
            raise HTTPException(
                404, f"there is no such route; there are {', '.join(self._methods)}."
            )

        if method != allowed:
            raise HTTPException(405, f"this route answers {allowed}.", {"allow": allowed})

        # Counted until the answer is sent, because its parsed queries live as long.
        with self._bodies.body() as held:
            body = await requests.read_body(scope, receive, held) if method == "POST" else b""
            if path == "/retrieve":
                await self._answer_retrieve(
                    requests.parse_body(requests.RetrieveRequest, body), scope, receive, send
                )
            elif path == "/access":
                await self._answer_access(body, scope, receive, send)
            elif path in self._mcp_apps and method == "POST":
                # The library accepts texts that no answer can be made of
                requests.check_json(body)
                async with self._documents.part(self._top_k, self._wait_s):
                    await self._mcp_apps[path](scope, requests.replayed(body, receive), send)
            elif path in self._mcp_apps:
                await self._mcp_apps[path](scope, receive, send)
            else:
                await self.api({**scope, "path": path, "method": method}, receive, send)

    async def _answer_retrieve(
        self, body: requests.RetrieveRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async with self._documents.part(self._documents_of(body), self._wait_s):
            response = await self.retrieve(body)
            async with asyncio.timeout(requests.SEND_TIMEOUT_S):
                await response(scope, receive, send)

    async def _answer_access(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if self._pages is None:
            raise HTTPException(
                404, "this server has no pages: start it with a pages file to use /access."
            )

        request = requests.parse_body(requests.AccessRequest, body)

        size_bytes = self._size_of_pages(request)
        async with self._page_bytes.part(size_bytes, self._wait_s):
            response = await self._access(request)
            async with asyncio.timeout(requests.SEND_TIMEOUT_S):
                await response(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run what must run for requests to be served."""
        trimming = asyncio.create_task(_trim_heap())
        try:
            async with self._queue, self._mcp.session_manager.run():
                yield
        finally:
            trimming.cancel()

    async def retrieve(self, body: requests.RetrieveRequest) -> Response:
        """Search, as Search-R1, veRL and RLinf do.

        The answer is `{"result": [[{"document": {id, contents, url, metadata}, "score"}, ...],
        ...]}`, a list per query, or the documents alone where `return_scores` is false.
        """
        self._documents_of(body)
        try:
            answers = await self._queue.answer(body.queries, self._top_k_of(body))
        except EndpointError as error:
            # A search that takes long and an online search's endpoint may be well again soon, an
            # index will not.
            may_pass = isinstance(error, SearchTimeoutError)
            may_pass = may_pass or isinstance(error.__cause__, EndpointError)
            if may_pass:
                raise HTTPException(503, str(error), RETRY) from error
            raise HTTPException(500, str(error)) from error

        return _results([answer.as_json(body.return_scores) for answer in answers])

    def _top_k_of(self, body: requests.RetrieveRequest) -> int:
        return min(body.topk or self._top_k, self._max_top_k)

    def _documents_of(self, body: requests.RetrieveRequest) -> int:
        """Return how many passages the answer may have; raise a HTTPException (422) if they are too many."""
        top_k = self._top_k_of(body)
        documents = len(body.queries) * top_k
        if documents > self._max_documents:
            limit = f"{len(body.queries)} queries may ask for {self._max_documents} passages in all"
            raise HTTPException(422, f"topk: {limit}, not for {top_k} each; send several requests.")
        return documents

    async def _access(self, body: requests.AccessRequest) -> Response:
        """Return pages by URL, null where there is no such page, as ASearcher and RLinf read them."""
        self._size_of_pages(body)
        return _results(await asyncio.to_thread(self._find_pages, body))

    def _find_pages(self, body: requests.AccessRequest) -> list[bytes]:
        if self._pages is None:
            return [NO_PAGE for _ in body.urls]
        return [self._pages.find(url) for url in body.urls]

    def _size_of_pages(self, body: requests.AccessRequest) -> int:
        """Return how many bytes the answer takes; raise a HTTPException (422) if they are too many."""
        size_bytes = sum(map(self._pages.size_bytes, body.urls)) if self._pages else 0
        if size_bytes > requests.MAX_PAGES_BYTES:
            raise HTTPException(
                422,
                f"urls: the pages have more than {requests.MAX_PAGES_BYTES} bytes; ask for fewer.",
            )

        return size_bytes

    async def _healthz(self) -> dict[str, str]:
        """Answer once the index is open and warm, with 503 while a search is past its deadline."""
        if problem := self._queue.problem():
            raise HTTPException(503, problem, RETRY)
        return {"status": "ok"}

    async def _show_metrics(self) -> Response:
        """Return the counters in Prometheus's text format."""
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class CountedResponse:
    """A ``send`` for one response, counted as soon as it begins.

    An event stream that is cut off when the server stops begins a second response, which is sent as
    the first's end.
    """

    __slots__ = ("_ended", "_metrics", "_route", "_send", "_started", "begun")

    def __init__(self, send: Send, route: str, metrics: Metrics) -> None:
        self._send = send
        self._route = route
        self._metrics = metrics
        self._started = time.perf_counter()
        self.begun = self._ended = False

    async def __call__(self, message: Message) -> None:
        """Send a message of the first response."""
        if self._ended:
            return
        if message["type"] == "http.response.start":
            if self.begun:
                message = {"type": "http.response.body", "body": b""}
            else:
                elapsed_s = time.perf_counter() - self._started
                self._metrics.count_request(self._route, message["status"], elapsed_s)

        self.begun = True
        is_body = message["type"] == "http.response.body"
        self._ended = is_body and not message.get("more_body", False)
        await self._send(message)


class PiecewiseResponse(Response):
    """A response that is sent in pieces: the server keeps a whole body in its buffer until the client has read it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the body; a piece is only begun when the client has read most of those before."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        for start in range(0, len(self.body), PIECE_BYTES):
            piece = self.body[start : start + PIECE_BYTES]
            is_last = start + PIECE_BYTES >= len(self.body)
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last})


def _results(items: list[bytes]) -> Response:
    return PiecewiseResponse(b'{"result":[%b]}' % b",".join(items), media_type="application/json")


async def _trim_heap() -> None:
    """Give freed memory back to the system every few seconds until cancelled, which glibc does not do by itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_TRIM_EVERY_S)
        await asyncio.to_thread(trim, 0)
