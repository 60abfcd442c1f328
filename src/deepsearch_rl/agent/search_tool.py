"""The search tool as the agent loop calls it: the frozen schema in front, one MCP session behind.

A search that fails is an error of the rollout, never "no results": a model that is shown an empty result for a broken
server learns that the corpus holds nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agents import FunctionTool
from agents.mcp import MCPServer
from agents.tool_context import ToolContext
from mcp.types import TextContent
from pydantic import BaseModel, ConfigDict, ValidationError

from deepsearch_rl.agent.tool import RETRIEVE_TOOL
from deepsearch_rl.agent.transcript import RolloutStopped, Transcript, parse_search
from deepsearch_rl.errors import EndpointError
from deepsearch_rl.records import Retrieval, StopReason, ToolCall

_LOG = logging.getLogger(__name__)
ATTEMPTS = 3
"""How often a failing search is tried."""
NO_SEARCHES_LEFT = "No searches left. Answer now."
"""What the model reads instead of passages once its searches are used up; calling again ends the rollout."""


class Found(BaseModel):
    """The part of a search result that is recorded: which chunk was shown."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    chunk_id: str


class SearchResult(BaseModel):
    """The structured content of the MCP tool's result, best chunk first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    result: tuple[Found, ...]


def search_tool(server: MCPServer, max_searches: int, first_wait_s: float) -> FunctionTool:
    """The tool that an agent is given.

    Args:
        server: a connected MCP session with the tool ``retrieve``.
        max_searches: searches that one rollout may make.
        first_wait_s: pause before the second attempt of a failing search; doubled for each further one.
    """

    async def invoke(context: ToolContext[Transcript], arguments: str) -> str:
        transcript = context.context
        call = ToolCall(id=context.tool_call_id, name=context.tool_name, arguments=arguments)
        if transcript.searches >= max_searches:
            text = NO_SEARCHES_LEFT
        else:
            transcript.searches += 1
            query = parse_search(call)
            text, chunk_ids = await _attempt(lambda: _search(server, query), first_wait_s)
            transcript.retrievals.append(Retrieval(query=query, chunk_ids=chunk_ids))
        transcript.add_tool_result(call.id, text)
        return text

    function = RETRIEVE_TOOL["function"]
    assert isinstance(function, dict)
    return FunctionTool(
        name=str(function["name"]),
        description=str(function["description"]),
        params_json_schema=dict(function["parameters"]),  # type: ignore[arg-type]
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


async def _search(server: MCPServer, query: str) -> tuple[str, tuple[str, ...]]:
    result = await server.call_tool("retrieve", {"query": query})
    text = "".join(part.text for part in result.content if isinstance(part, TextContent))
    if result.is_error:
        raise EndpointError(text or "the search tool failed without saying why")
    try:
        found = SearchResult.model_validate(result.structured_content).result
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise EndpointError(f"the search tool does not say which chunks it found: {problem}") from error
    return text, tuple(passage.chunk_id for passage in found)


async def _attempt(
    search: Callable[[], Awaitable[tuple[str, tuple[str, ...]]]], first_wait_s: float
) -> tuple[str, tuple[str, ...]]:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await search()
        except Exception as error:  # the MCP stack raises its own, those of two httpx generations and groups of them
            if attempt == ATTEMPTS:
                raise RolloutStopped(StopReason.TOOL_ERROR, f"{type(error).__name__}: {error}") from error
            _LOG.warning("search failed (%s), attempt %d of %d", error, attempt, ATTEMPTS)
            await asyncio.sleep(first_wait_s * 2 ** (attempt - 1))
    raise AssertionError("unreachable")
