"""Search tools over MCP: server ``retrieval_server``, tool ``retrieve`` (DeepSearch-RL's dialect).

The model reads the text content, plain passages; programs read the structured content beside it. A
failure is a result with ``isError``, never an empty list: an agent that takes a broken index for
"nothing found" learns to give up. ``retrieve_filtered`` is a tool of its own, so that ``retrieve``
stays the one that models were trained with.
"""

from datetime import date
from typing import Annotated, TypeAlias

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import BeforeValidator, Field, JsonValue, ValidationError

from deepsearch_rl import __version__
from deepsearch_rl.chat.chat_messages import format_passages
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.records import is_missing
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.server.batching import SearchQueue
from deepsearch_rl.server.requests import MAX_QUERY_CHARS

SERVER_NAME = "retrieval_server"


def _none_where_missing(value: object) -> object:
    """Return None for an empty text, which many models write for an argument that they do not need."""
    return None if is_missing(value) else value


_Source: TypeAlias = Annotated[
    str | None,
    BeforeValidator(_none_where_missing),
    Field(description="Name of the source, exactly."),
]
_After: TypeAlias = Annotated[
    date | None,
    BeforeValidator(_none_where_missing),
    Field(description="Published on this day or later."),
]
_Before: TypeAlias = Annotated[
    date | None,
    BeforeValidator(_none_where_missing),
    Field(description="Published on this day or earlier."),
]


def make_mcp_server(queue: SearchQueue, filters: bool) -> MCPServer:
    """Return an MCP server whose tools search with a queue; ``filters`` adds the second tool."""
    server = MCPServer(SERVER_NAME, version=__version__, log_level="WARNING", subscriptions=False)

    # No output schema: clients would check every answer against it, and list the tools once more to
    # get it.
    @server.tool(structured_output=False)
    async def retrieve(query: str, with_meta: bool = False) -> CallToolResult:
        """Search the corpus for passages."""
        return await _search(queue, query, None, with_meta)

    async def retrieve_filtered(
        query: str,
        source: _Source = None,
        after: _After = None,
        before: _Before = None,
    ) -> CallToolResult:
        """Search the passages of one source, or of a range of days."""
        try:
            where = Filter(source=source, after=after, before=before)
        except ValidationError as error:
            raise ToolError(f"this filter cannot work: {error.errors()[0]['msg']}.") from error

        return await _search(queue, query, None if where == Filter() else where, with_meta=True)

    if filters:
        server.add_tool(retrieve_filtered, structured_output=False)
    return server


async def _search(
    queue: SearchQueue, query: str, where: Filter | None, with_meta: bool
) -> CallToolResult:
    if len(query) > MAX_QUERY_CHARS:
        raise ToolError(
            f"the query has {len(query)} characters and may have {MAX_QUERY_CHARS}; shorten it."
        )

    try:
        [answer] = await queue.answer([query], where=where)
    except DeepsearchError as error:
        raise ToolError(str(error)) from error

    hits: list[dict[str, JsonValue]] = []

    for passage in answer.passages:
        hits.append({"chunk": passage.contents, "chunk_id": passage.id, "score": passage.score})
        if with_meta:
            hits[-1]["metadata"] = passage.metadata

    text = format_passages(answer.passages)
    return CallToolResult(content=[TextContent(text=text)], structured_content={"result": hits})
