"""The one MCP session that all rollouts of an agent search through."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.records import Question, StopReason
from deepsearch_rl.retrieval.server.process import listen
from tests.agent.conftest import ChatServer

QUESTION = Question(id="q1", question="Who directed Silent Harbor?", golden_answers=("Mary Moss",))
ANSWER = "<answer>Mary Moss</answer>"


@contextmanager
def serve_search(searching: Callable[[str], None], port: int = 0) -> Iterator[int]:
    """An MCP server that finds one passage for everything; yields its port."""
    mcp = MCPServer("retrieval_server", log_level="ERROR", subscriptions=False)

    @mcp.tool(structured_output=False)
    async def retrieve(query: str) -> CallToolResult:
        searching(query)
        await asyncio.sleep(0)
        found = {"result": [{"chunk": f"T\n{query}", "chunk_id": "c", "score": 1.0}]}
        return CallToolResult(content=[TextContent(text=query)], structured_content=found)

    app = mcp.streamable_http_app(stateless_http=True, json_response=True, host="127.0.0.1")
    with listen("127.0.0.1", port) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(timeout=5)


def test_a_retrieval_server_that_was_started_again_is_searched_on(
    chat_server: ChatServer, agent_config: Callable[..., AgentConfig]
) -> None:
    queries: list[str] = []
    for query in ("before", "after"):
        chat_server.says("", query)
        chat_server.says(ANSWER)

    async def two_rollouts() -> list[StopReason]:
        with serve_search(queries.append) as port:
            agent = SearchAgent(agent_config(), chat_server.endpoint, f"http://127.0.0.1:{port}", 0.7)
            await agent.__aenter__()
            first = await agent.answer(QUESTION, 0)
        with serve_search(queries.append, port):
            second = await agent.answer(QUESTION, 1)
        await agent.__aexit__(None, None, None)  # the server is gone by now, which is no error
        return [first.stop_reason, second.stop_reason]

    assert asyncio.run(two_rollouts()) == [StopReason.ANSWERED, StopReason.ANSWERED]
    assert queries == ["before", "after"]
