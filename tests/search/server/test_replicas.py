"""Replicas of the retrieval server behind one address: any of them answers any request."""

import asyncio
import itertools
from functools import partial

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deepsearch_rl.agent.search_tool import open_session, search_over_mcp
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.service import RetrievalApp
from tests.environment.scripted import QUESTION
from tests.search.server.searchers import GatedSearcher, engine, open_searcher, service_config
from tests.search_servers import serve_app


def balancer(urls: list[str]) -> Starlette:
    """Return an application that passes each request to the next of these servers."""
    replicas = itertools.cycle(urls)

    async def forward(request: Request) -> Response:
        url = f"{next(replicas)}{request.url.path}"
        headers = {name: text for name, text in request.headers.items() if name != "host"}
        async with httpx.AsyncClient(timeout=20) as client:
            answer = await client.request(
                request.method, url, headers=headers, content=await request.body()
            )
        kind = answer.headers.get("content-type")
        return Response(answer.content, answer.status_code, media_type=kind)

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST", "DELETE"])])


def app_of(searcher: GatedSearcher) -> RetrievalApp:
    guard = Guard(token=None, loopback=True)
    return RetrievalApp(engine(searcher), service_config(cache_entries=0), guard)


@pytest.mark.slow
def test_searches_over_mcp_are_answered_by_whichever_replica_gets_them() -> None:
    searchers = [open_searcher(), open_searcher()]

    async def search_all(url: str) -> list[str]:
        async with open_session(url, 20) as session:
            search = partial(search_over_mcp, session, 0.001)
            found: list[str] = []
            for number in range(8):
                found.append(str(await search(f"query {number}", QUESTION)))
            return found

    with (
        serve_app(app_of(searchers[0])) as first,
        serve_app(app_of(searchers[1])) as second,
        serve_app(balancer([first, second])) as url,
    ):
        answers = asyncio.run(search_all(url))

    assert all(f"query {number}" in answer for number, answer in enumerate(answers))
    asked = [[query for batch in searcher.batches for query in batch] for searcher in searchers]
    assert all(len(queries) >= 2 for queries in asked)
    assert sorted(itertools.chain(*asked)) == [f"query {number}" for number in range(8)]
