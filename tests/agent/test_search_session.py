"""The one MCP session that all rollouts of an agent search through."""

import asyncio
from collections.abc import Callable

import pytest

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.errors import EndpointError
from deepsearch_rl.records import Question, StopReason
from tests.agent.conftest import ChatServer
from tests.agent.search_server import serve_search

QUESTION = Question(id="q1", question="Who directed Silent Harbor?", golden_answers=("Mary Moss",))
ANSWER = "<answer>Mary Moss</answer>"


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


def test_an_mcp_server_without_the_tool_stops_the_agent_before_any_question(
    chat_server: ChatServer, agent_config: Callable[..., AgentConfig]
) -> None:
    async def open_agent(port: int) -> None:
        async with SearchAgent(agent_config(), chat_server.endpoint, f"http://127.0.0.1:{port}", 0.7):
            raise AssertionError("it opened")

    with serve_search(lambda _: None, tool="search_the_web") as port, pytest.raises(EndpointError, match="retrieve"):
        asyncio.run(open_agent(port))
