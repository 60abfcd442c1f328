"""The faces of a searcher: ``/retrieve``, ``/access``, ``/healthz``, ``/metrics``, and MCP at ``/mcp`` and ``/sse``.

Search-R1, veRL, RLinf and ASearcher clients work unchanged; the shapes are those of docs/contracts.md §1. Whatever the
dialect, a query waits in the same queue and is answered from the same cache. Errors are ``{"detail": message}``: 4xx
for a request that cannot be served as it is, 503 with ``Retry-After`` when too many queries wait or an online search's
endpoint fails, 500 when the search itself does. Nothing is ever padded, and no failure is answered with an empty list.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from mcp.server.transport_security import TransportSecuritySettings
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.retrieval.server.asgi import (
    App,
    CountedSend,
    Receive,
    Scope,
    Send,
    answering_once,
    read_body,
    replayed,
    respond,
    respond_error,
)
from deepsearch_rl.retrieval.server.batching import OverloadedError, SearchFailedError, SearchQueue
from deepsearch_rl.retrieval.server.bodies import (
    MAX_BODY_BYTES,
    MAX_DOCUMENTS,
    MAX_PAGES_BYTES,
    AccessRequest,
    RequestError,
    RetrieveRequest,
    check_json,
    parse_body,
)
from deepsearch_rl.retrieval.server.config import ServiceConfig
from deepsearch_rl.retrieval.server.engine import SearchEngine
from deepsearch_rl.retrieval.server.guard import Guard
from deepsearch_rl.retrieval.server.heap import trim_now_and_then
from deepsearch_rl.retrieval.server.mcp_tool import make_mcp_server
from deepsearch_rl.retrieval.server.metrics import OTHER_ROUTE, Metrics
from deepsearch_rl.retrieval.server.pages import normalise_url, read_pages

_LOG = logging.getLogger(__name__)
_RETRY = ((b"retry-after", b"1"),)


class RetrievalApp:
    """The ASGI application over one engine.

    Raises:
        ArtifactError: there is no pages file where ``config.pages`` says.
        RecordError: a line of it is not a page.
    """

    def __init__(self, engine: SearchEngine, config: ServiceConfig, guard: Guard) -> None:
        self._guard, self._top_k, self._max_top_k = guard, config.top_k, engine.passages
        self._pages = read_pages(config.pages) if config.pages else None
        self._metrics = Metrics()
        self._queue = SearchQueue(engine.searcher, config, self._metrics)
        # The guard has checked Host and Origin for all routes. A search is one request and one answer, so sessions and
        # event streams would only cost round trips.
        checked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._mcp = make_mcp_server(self._queue, config.top_k, filters=engine.takes_filters)
        self._mcp.streamable_http_app(stateless_http=True, json_response=True, transport_security=checked)
        sse = self._mcp.sse_app(transport_security=checked, max_request_body_size=MAX_BODY_BYTES)
        self._routes: dict[str, tuple[str, App]] = {
            "/retrieve": ("POST", self._retrieve),
            "/access": ("POST", self._access),
            "/healthz": ("GET", self._healthz),
            "/metrics": ("GET", self._show_metrics),
            "/mcp": ("POST", _strict(self._mcp.session_manager.handle_request)),
            "/sse": ("GET", lambda scope, receive, send: sse(scope, receive, answering_once(send))),
            "/messages": ("POST", _strict(sse)),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the server's life, or one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope["path"].rstrip("/")
        route = path if path in self._routes else OTHER_ROUTE
        counted = CountedSend(send, route, self._metrics)
        try:
            app = self._admit(scope, path)
            await app(scope, receive, counted)
        except RequestError as error:
            await respond_error(counted, error.status, str(error), error.headers)
        except OverloadedError as error:
            await respond_error(counted, 503, str(error), _RETRY)
        except SearchFailedError as error:
            # An online search's endpoint may be well again soon, an index will not.
            passing = isinstance(error.__cause__, EndpointError)
            await respond_error(counted, 503 if passing else 500, str(error), _RETRY if passing else ())
        except asyncio.CancelledError:  # its time was up when the server stopped
            if not counted.begun:
                await respond_error(counted, 503, "the server is stopping.", _RETRY)
            raise
        except Exception:
            _LOG.exception("a request to %s failed", route)
            if counted.begun:
                raise
            await respond_error(counted, 500, "the server failed; its log says why.")

    def _admit(self, scope: Scope, path: str) -> App:
        """The application of a route, for whoever may ask it."""
        headers = dict(scope["headers"])
        self._guard.check_names(headers)
        if path != "/healthz":
            self._guard.check_token(headers)
        if path not in self._routes:
            raise RequestError(404, f"there is no such route; there are {', '.join(self._routes)}.")
        method, app = self._routes[path]
        asked = "GET" if scope["method"] == "HEAD" else scope["method"]
        if asked != method:
            raise RequestError(405, f"this route answers {method}.", ((b"allow", method.encode()),))
        return app

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()  # lifespan.shutdown: by now no request is left, or its time is up
        await send({"type": "lifespan.shutdown.complete"})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What must run for requests to be served."""
        trimming = asyncio.create_task(trim_now_and_then())
        try:
            async with self._queue, self._mcp.session_manager.run():
                yield
        finally:
            trimming.cancel()

    async def _retrieve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = parse_body(RetrieveRequest, await read_body(scope, receive))
        top_k = min(body.topk or self._top_k, self._max_top_k)
        if len(body.queries) * top_k > MAX_DOCUMENTS:
            asked = f"{len(body.queries)} queries for {top_k} passages each"
            raise RequestError(422, f"topk: {asked} are more than {MAX_DOCUMENTS} passages; send several requests.")
        found = await self._queue.search(body.queries, top_k)
        lists = [answer.as_json(body.return_scores) for answer in found]
        await respond(send, b'{"result":[%b]}' % b",".join(lists))

    async def _access(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._pages is None:
            raise RequestError(404, "this server has no pages: start it with a pages file to use /access.")
        body = parse_body(AccessRequest, await read_body(scope, receive))
        found = [self._pages.get(normalise_url(url), b"null") for url in body.urls]
        if sum(map(len, found)) > MAX_PAGES_BYTES:
            raise RequestError(422, f"urls: these pages are more than {MAX_PAGES_BYTES} bytes; ask for fewer at once.")
        await respond(send, b'{"result":[%b]}' % b",".join(found))

    async def _healthz(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - an ASGI application
        await respond(send, b'{"status":"ok"}')

    async def _show_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await respond(send, self._metrics.render(), content_type=CONTENT_TYPE_PLAIN_0_0_4.encode())


def _strict(app: App) -> App:
    """Let only sound JSON through to ``app``, whose reader accepts texts that no answer can be made of."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive)
        check_json(body)
        await app(scope, replayed(body, receive), send)

    return checked
