"""The MCP session that an agent searches through.

It is MCP's own client and not the Agents SDK's, which sends the calls of a session one after the other: a hundred
rollouts would wait for each other, and the server would never see two queries to search together.

A connection that breaks must cost one search and not the session. MCP's client lets such an error escape into the task
that opened the session, which ends every rollout in it; so what breaks on the way comes back as an answer of status
503, which is an error of that one call.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from deepsearch_rl.agent.tool import RETRIEVE_TOOL_NAME
from deepsearch_rl.errors import EndpointError

_CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
"""As many as there are searches at once: ``agent.concurrency`` and the calls of one turn bound them."""


@asynccontextmanager
async def open_session(retrieval_url: str, timeout_s: float) -> AsyncIterator[Client]:
    """A session with the retrieval server at ``retrieval_url`` (MCP is at ``/mcp`` below it); ``timeout_s`` per call.

    Raises:
        EndpointError: nothing answers there, or not with the tool ``retrieve``.
    """
    url = f"{retrieval_url.rstrip('/')}/mcp"
    transport = _Answering(httpx2.AsyncHTTPTransport(limits=_CONNECTIONS))
    async with httpx2.AsyncClient(transport=transport, timeout=timeout_s) as http:
        session = Client(streamable_http_client(url, http_client=http), read_timeout_seconds=timeout_s)
        try:
            await session.__aenter__()
        except Exception as error:
            raise EndpointError(f"the retrieval server's MCP endpoint ({url}) does not answer: {error}") from error
        try:
            await _require_tool(session, url)
            yield session
        finally:
            await session.__aexit__(None, None, None)


async def _require_tool(session: Client, url: str) -> None:
    """Ask for the tools once here; otherwise every rollout that is first to search does."""
    try:
        offered = {tool.name for tool in (await session.list_tools()).tools}
    except Exception as error:
        raise EndpointError(f"the MCP server at {url} does not say which tools it has: {error}") from error
    if RETRIEVE_TOOL_NAME not in offered:
        raise EndpointError(f"the MCP server at {url} has no tool named {RETRIEVE_TOOL_NAME!r}.")


class _Answering(httpx2.AsyncBaseTransport):
    """Sends requests; a connection that breaks or stalls is answered 503, with what happened as the body."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the answer to a call is read whole, as a connection may break in the middle of it."""
        try:
            response = await self._inner.handle_async_request(request)
            if request.method == "POST":
                await response.aread()
        except httpx2.TransportError as error:
            return httpx2.Response(503, text=f"{type(error).__name__}: {error}")
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()
