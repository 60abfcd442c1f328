"""The HTTP faces of a searcher: ``POST /retrieve``, ``POST /access``, ``GET /healthz``, and MCP at ``/mcp``.

Search-R1, veRL, RLinf and ASearcher clients work unchanged; the shapes are those of docs/contracts.md §1. Errors are
``{"detail": message}``: 422 for a request that does not fit, 404 where no pages are configured, 503 with
``Retry-After`` when too many queries wait. Nothing is ever padded, and no failure is answered with an empty list.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deepsearch_rl.files import read_jsonl
from deepsearch_rl.records import NonEmpty
from deepsearch_rl.retrieval.searcher import Hit
from deepsearch_rl.retrieval.server.batching import OverloadedError, SearchQueue
from deepsearch_rl.retrieval.server.mcp_tool import make_mcp_server

RETRY_AFTER_S = 1
RequestT = TypeVar("RequestT", bound=BaseModel)


class RetrieveRequest(BaseModel):
    """Body of ``POST /retrieve``. Unknown keys are ignored, as the original servers ignore them."""

    model_config = ConfigDict(strict=True)

    queries: list[str]
    topk: int | None = Field(default=None, ge=1)
    return_scores: bool = False


class AccessRequest(BaseModel):
    """Body of ``POST /access``."""

    model_config = ConfigDict(strict=True)

    urls: list[str]


class Page(BaseModel):
    """One page of a pages file; further keys are handed on as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    url: NonEmpty
    contents: str


class RequestError(Exception):
    """A request that cannot be served, with the status code that says so."""

    def __init__(self, status_code: int, detail: str) -> None:
        super().__init__(detail)
        self.status_code = status_code


@dataclass(frozen=True, slots=True)
class RetrievalService:
    """Answers HTTP requests from a search queue. ``pages`` maps normalised URLs to pages; None where there are none."""

    queue: SearchQueue
    top_k: int
    pages: Mapping[str, Page] | None

    async def retrieve(self, request: Request) -> Response:
        """``{"result": [[hit, ...], ...]}``, one list per query; a hit is the document, or document and score."""
        body = await _parse(request, RetrieveRequest)
        found = await self.queue.search(body.queries, body.topk or self.top_k)
        write = _scored_document if body.return_scores else _document
        return JSONResponse({"result": [[write(hit) for hit in hits] for hits in found]})

    async def access(self, request: Request) -> Response:
        """``{"result": [page or null, ...]}``, one per URL."""
        if self.pages is None:
            raise RequestError(404, "this server has no pages: start it with a pages file to use /access.")
        body = await _parse(request, AccessRequest)
        found = [self.pages.get(normalise_url(url)) for url in body.urls]
        return JSONResponse({"result": [page and page.model_dump(mode="json") for page in found]})

    async def healthz(self, request: Request) -> Response:  # noqa: ARG002 - Starlette hands it over
        """Served once the index is open and has answered a first search."""
        return JSONResponse({"status": "ok"})


def make_app(service: RetrievalService, host: str) -> Starlette:
    """The ASGI application. A loopback ``host`` makes the MCP endpoint refuse foreign Host and Origin headers."""
    mcp_server = make_mcp_server(service.queue, service.top_k)
    # A search is one request and one answer: sessions and event streams would only cost round trips.
    mcp_app = mcp_server.streamable_http_app(stateless_http=True, json_response=True, host=host)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.queue, mcp_server.session_manager.run():
            yield

    routes = [
        Route("/retrieve", service.retrieve, methods=["POST"]),
        Route("/access", service.access, methods=["POST"]),
        Route("/healthz", service.healthz, methods=["GET"]),
        *mcp_app.routes,
    ]
    handlers = {RequestError: _refused, OverloadedError: _overloaded}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def normalise_url(url: str) -> str:
    """ASearcher's rule: both spellings of a wiki page's address mean the same page."""
    return url.replace("index.php/", "index.php?title=")


def read_pages(path: Path) -> dict[str, Page]:
    """The pages of a JSON Lines file by normalised URL.

    Raises:
        ArtifactError: the file does not exist.
        RecordError: a line has no ``url`` or no ``contents``.
    """
    return {normalise_url(page.url): page for page in read_jsonl(path, Page)}


def _document(hit: Hit) -> dict[str, JsonValue]:
    metadata: dict[str, JsonValue] = hit.chunk.metadata.model_dump(mode="json")
    url = metadata.get("url") or hit.chunk.id  # clients read it from every document, whatever the corpus
    return {"id": hit.chunk.id, "contents": hit.chunk.contents, "url": url, "metadata": metadata}


def _scored_document(hit: Hit) -> dict[str, JsonValue]:
    return {"document": _document(hit), "score": hit.score}


async def _parse(request: Request, model: type[RequestT]) -> RequestT:
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise RequestError(422, f"{field}: {first['msg']}") from error


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse({"detail": str(error)}, error.status_code)


async def _overloaded(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 503, headers={"Retry-After": str(RETRY_AFTER_S)})
