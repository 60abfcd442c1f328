"""The one MCP session that all rollouts of an agent search through."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from deepsearch_rl.agent.collect import BulkRun, collect
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import Question, StopReason
from tests.agent.conftest import ChatServer, completion
from tests.agent.search_server import breaking_proxy, serve_search

QUESTION = Question(id="q1", question="Who directed Silent Harbor?", golden_answers=("Mary Moss",))
ANSWER = "<answer>Mary Moss</answer>"


@pytest.mark.slow
def test_a_retrieval_server_that_was_started_again_is_searched_on(
    chat_server: ChatServer, agent_config: Callable[..., AgentConfig]
) -> None:
    queries: list[str] = []
    chat_server.says("", "before")
    chat_server.says(ANSWER)
    chat_server.says("", "lost")
    chat_server.says("", "after")
    chat_server.says(ANSWER)

    async def rollouts() -> list[StopReason]:
        with serve_search(queries.append) as port:
            url = f"http://127.0.0.1:{port}"
            agent = SearchAgent(agent_config(), chat_server.endpoint, url, 0.7, backoff_s=0.001)
            await agent.__aenter__()
            first = await agent.answer(QUESTION, 0)
        away = await agent.answer(QUESTION, 1)
        with serve_search(queries.append, port):
            second = await agent.answer(QUESTION, 2)
        # The server is gone by now, which is no error
        await agent.__aexit__(None, None, None)
        return [first.stop_reason, away.stop_reason, second.stop_reason]

    assert asyncio.run(rollouts()) == [
        StopReason.ANSWERED,
        StopReason.TOOL_ERROR,
        StopReason.ANSWERED,
    ]
    assert queries == ["before", "after"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "outcome"), [(1, StopReason.ANSWERED), (3, StopReason.TOOL_ERROR)]
)
def test_a_connection_that_breaks_costs_its_search_an_attempt_and_no_other_rollout_anything(
    chat_server: ChatServer,
    agent_config: Callable[..., AgentConfig],
    tmp_path: Path,
    breaks: int,
    outcome: StopReason,
) -> None:
    chat_server.reply = lambda body: (
        completion(ANSWER) if body["messages"][-1]["role"] == "tool" else completion("", "query")
    )
    questions = [QUESTION.model_copy(update={"id": f"q{number}"}) for number in range(4)]
    with serve_search(lambda _: None) as upstream, breaking_proxy(upstream, breaks) as port:

        def open_agent() -> SearchAgent:
            url = f"http://127.0.0.1:{port}"
            return SearchAgent(agent_config(), chat_server.endpoint, url, 0.7, backoff_s=0.001)

        log, out = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
        found = collect(BulkRun(questions, 1, [open_agent], log, "test", out), concurrency=1)
    assert [one.stop_reason for one in found] == [outcome, *[StopReason.ANSWERED] * 3]


def test_an_mcp_server_without_the_tool_stops_the_agent_before_any_question(
    chat_server: ChatServer, agent_config: Callable[..., AgentConfig]
) -> None:
    async def open_agent(port: int) -> None:
        async with SearchAgent(
            agent_config(), chat_server.endpoint, f"http://127.0.0.1:{port}", 0.7
        ):
            raise AssertionError("it opened")

    with (
        serve_search(lambda _: None, tool="search_the_web") as port,
        pytest.raises(EndpointError, match="retrieve"),
    ):
        asyncio.run(open_agent(port))


def test_the_login_in_the_address_of_a_search_server_that_does_not_answer_is_not_told(
    chat_server: ChatServer, agent_config: Callable[..., AgentConfig]
) -> None:
    async def open_agent() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            url = f"http://bob:hidden@127.0.0.1:{closed.getsockname()[1]}"
        async with SearchAgent(agent_config(), chat_server.endpoint, url, 0.7):
            pass

    with pytest.raises(EndpointError, match=r"http://\*\*\*@127\.0\.0\.1") as raised:
        asyncio.run(open_agent())
    assert "hidden" not in str(raised.value)
