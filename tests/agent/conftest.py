"""A chat server that answers from a script and an MCP server whose searches can be made to fail, both on loopback."""

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat import client as client_module
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.records import Question, Trajectory
from tests.limit_clock import limit_clock
from tests.policies import model_folder
from tests.search_servers import in_thread, serve_app
from tests.settings import AGENT
from tests.worlds import smoke, world, world_server

__all__ = ["limit_clock", "model_folder", "smoke", "world", "world_server"]

KEY = "sk-very-secret-key"
QUESTION = Question(id="q1", question="Who directed Silent Harbor?", golden_answers=("Mary Moss",))
ANSWER = "<answer> Mary Moss</answer>"
Send = Callable[[BaseHTTPRequestHandler], None]
Answer = Callable[..., Trajectory]


@dataclass
class ChatServer:
    """Answers request number i with ``script[i]``: a body, or a function that writes to the handler itself.

    ``reply``, where there is one, makes the body from the request instead.
    """

    url: str = ""
    script: list[Any] = field(default_factory=list)
    reply: Callable[[dict[str, Any]], str] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    finish: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, "scripted-model", KEY)

    def says(self, content: str | None, *calls: str | tuple[str, ...], **reply: Any) -> None:
        """Add a reply with the queries (or name, raw arguments and id) of its tool calls.

        ``reply``: tokens (read, written), reasoning told apart from the text, finish_reason,
        stop_reason.
        """
        self.script.append(completion(content, *calls, **reply))

    def fails(self, status: int, message: str, *, body: str | None = None) -> None:
        """Add an error reply that asks for an immediate retry."""
        retry = {"retry-after-ms": "1"}
        self.script.append(response(body or {"error": {"message": message}}, status, **retry))

    def hangs(self) -> None:
        """Add a reply that does not come before the test is over."""
        self.script.append(lambda _: self.finish.wait(30))


def _call(call: str | tuple[str, ...]) -> dict[str, Any]:
    name, arguments, *given = (
        ("retrieve", json.dumps({"query": call})) if isinstance(call, str) else call
    )
    return {
        "id": given[0] if given else uuid.uuid4().hex,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def response(
    body: object, status: int = 200, kind: str = "application/json", **headers: str
) -> Send:
    """Make what sends a whole response: bytes and text as they are, anything else as JSON."""
    text = body if isinstance(body, (str, bytes)) else json.dumps(body)
    content = text.encode() if isinstance(text, str) else text
    fields = {"content-type": kind, "content-length": str(len(content)), **headers}

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in fields.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return send


def completion(
    content: str | None,
    *called: str | tuple[str, ...],
    tokens: tuple[int, int] = (100, 10),
    reasoning: str | None = None,
    finish_reason: str | None = None,
    stop_reason: str | None = None,
) -> str:
    """The body of a reply."""
    calls = [_call(call) for call in called]
    message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    message |= {} if reasoning is None else {"reasoning_content": None, "reasoning": reasoning}
    usage = {
        "prompt_tokens": tokens[0],
        "completion_tokens": tokens[1],
        "total_tokens": sum(tokens),
    }
    finish_reason = finish_reason or ("tool_calls" if calls else "stop")
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    return json.dumps(body)


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    state = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.requests.append(json.loads(body))
            if state.reply is not None:
                response(state.reply(state.requests[-1]))(self)
                return
            step = state.script[min(len(state.requests), len(state.script)) - 1]
            send = response(step) if isinstance(step, str) else step
            send(self)

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    with in_thread(server):
        yield state
        state.finish.set()


@dataclass
class Searches:
    """The MCP server's address, the queries that reached it, and how many of them fail (-1: all)."""

    url: str = ""
    queries: list[str] = field(default_factory=list)
    failures: int = 0


@pytest.fixture(scope="session")
def mcp_server() -> Iterator[Searches]:
    state = Searches()
    mcp = MCPServer("retrieval_server", log_level="ERROR", subscriptions=False)

    @mcp.tool(structured_output=False)
    async def retrieve(query: str) -> CallToolResult:
        state.queries.append(query)
        if state.failures:
            state.failures -= 1
            raise ToolError("the index is broken")
        if query == "slow":
            await asyncio.sleep(30)
        if query == "late":  # until the others of its turn have come
            while state.queries[-1] == "late":
                await asyncio.sleep(0.001)
        found = [
            {"chunk": f"About {query}\nPart {i}.", "chunk_id": f"{query}-{i}", "score": 1.0}
            for i in range(2)
        ]
        return CallToolResult(
            content=[TextContent(text="unread")], structured_content={"result": found}
        )

    with serve_app(
        mcp.streamable_http_app(stateless_http=True, json_response=True, host="127.0.0.1")
    ) as state.url:
        yield state


@pytest.fixture
def searches(mcp_server: Searches) -> Searches:
    """The MCP server, with nothing asked of it yet and no failures."""
    mcp_server.queries.clear()
    mcp_server.failures = 0
    return mcp_server


@pytest.fixture
def agent_config() -> Callable[..., AgentConfig]:
    """Makes an agent section with some of its values replaced."""

    def make(**changes: Any) -> AgentConfig:
        values = AGENT.model_dump() | {
            "max_searches": 3,
            "max_turns": 6,
            "max_tokens": 64,
            "answer_tokens": 16,
        }
        values["context_tokens"] = 1024
        changes.setdefault("call_timeout_s", min(20.0, changes.get("timeout_s", 20.0)))
        return AgentConfig(**(values | changes))

    return make


@pytest.fixture
def answer(
    chat_server: ChatServer,
    searches: Searches,
    agent_config: Callable[..., AgentConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> Answer:
    """Runs one rollout against the scripted servers, without waits between attempts.

    ``endpoint`` and ``url`` take the place of the two servers, ``logprobs`` and ``seed`` are the
    agent's; everything else is of its section.
    """
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.001)

    def run(
        *,
        endpoint: Endpoint | None = None,
        url: str = searches.url,
        question: Question = QUESTION,
        sample: int = 0,
        logprobs: bool = False,
        seed: int | None = None,
        **changes: Any,
    ) -> Trajectory:
        agent = SearchAgent(
            agent_config(**changes),
            endpoint or chat_server.endpoint,
            url,
            0.7,
            backoff_s=0.001,
            logprobs=logprobs,
            seed=seed,
        )

        async def rollout() -> Trajectory:
            async with agent:
                return await agent.answer(question, sample)

        return asyncio.run(rollout())

    return run
