"""The search tool over MCP (DeepSearch-RL's dialect): server ``retrieval_server``, tool ``retrieve``.

The model reads the text content, plain passages. Programs read the structured content beside it,
``{"result": [{"chunk", "chunk_id", "score"[, "metadata"]}, ...]}``. A failure is a result with ``isError``, never an
empty list: an agent that takes a broken index for "nothing found" learns to give up.
"""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import JsonValue

from deepsearch_rl import __version__
from deepsearch_rl.errors import DeepsearchError
from deepsearch_rl.retrieval.passages import format_passages
from deepsearch_rl.retrieval.searcher import Hit
from deepsearch_rl.retrieval.server.batching import SearchQueue

SERVER_NAME = "retrieval_server"


def make_mcp_server(queue: SearchQueue, top_k: int) -> MCPServer:
    """An MCP server whose one tool returns the ``top_k`` best passages for a query."""
    server = MCPServer(SERVER_NAME, version=__version__, log_level="WARNING", subscriptions=False)

    # No output schema: clients would check every answer against it, and list the tools once more to get it.
    @server.tool(structured_output=False)
    async def retrieve(query: str, with_meta: bool = False) -> CallToolResult:
        """Search the corpus for passages."""
        try:
            [hits] = await queue.search([query], top_k)
        except DeepsearchError as error:
            raise ToolError(str(error)) from error
        text = format_passages([hit.chunk for hit in hits])
        found: list[JsonValue] = [_structured(hit, with_meta) for hit in hits]
        return CallToolResult(content=[TextContent(text=text)], structured_content={"result": found})

    return server


def _structured(hit: Hit, with_meta: bool) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {"chunk": hit.chunk.contents, "chunk_id": hit.chunk.id, "score": hit.score}
    return {**found, "metadata": hit.chunk.metadata.model_dump(mode="json")} if with_meta else found
