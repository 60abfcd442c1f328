"""The search tool of the agent loop, and the MCP session that all rollouts of an agent search through.

A search that fails is an error of the rollout, never "no results": a model that reads an empty
result from a broken server learns that the corpus holds nothing.

The retrieval server's MCP tool answers twice: ``result.content[0].text`` is what any MCP client's
model reads; ``result.structured_content["result"]`` is a list of ``{"chunk": contents, "chunk_id":
id, "score": float}``, best first, which the agent writes in the form of its protocol and records by
id. A failed search has ``is_error`` set and no structured content, and its text is the error.

The session is MCP's own client, because the Agents SDK's sends the calls of a session one after the
other: a hundred rollouts would wait for each other, and the server would never see two queries at
once. A broken connection must cost one search, not the session. MCP's client raises such an error
in the task that opened the session, which ends every rollout in it. So a broken connection becomes
a response of status 503, which is an error of that one call.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import httpx2
from agents import FunctionTool
from agents.tool_context import ToolContext
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent
from pydantic import BeforeValidator, Field, ValidationError

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols import AgentProtocol
from deepsearch_rl.agent.timing import timed
from deepsearch_rl.agent.transcript import RolloutStopped, Transcript
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL, RETRIEVE_TOOL_NAME
from deepsearch_rl.chat.completion import number_text
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import first_problem
from deepsearch_rl.core.records import (
    ForeignRecord,
    Question,
    Record,
    Retrieval,
    StopReason,
    ToolCall,
)
from deepsearch_rl.core.redaction import RETRIEVAL_TOKEN, bearer, mask_users
from deepsearch_rl.core.retries import retry
from deepsearch_rl.server.requests import MAX_QUERY_CHARS

_LOG = logging.getLogger(__name__)
ATTEMPTS = 3
# What the model reads instead of passages once its searches are used up; calling again ends the
# rollout
NO_SEARCHES_LEFT = "No searches left. Answer now."


class ShownPassage(ForeignRecord):
    """A passage for the model: its text (``chunk`` in JSON), title first, and the id of its chunk."""

    contents: str = Field(alias="chunk")
    chunk_id: str


# Returns the passages for a query of a rollout, best first; raises RolloutStopped where the search
# failed
RolloutSearch: TypeAlias = Callable[[str, Question], Awaitable[Sequence[ShownPassage]]]


class _SearchResult(ForeignRecord):
    """The structured content of the MCP tool's result."""

    result: tuple[ShownPassage, ...]


def _as_text(value: object) -> object:
    """Return a number, or the one text of a list, as the text that it means."""
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    return number_text(value)


class _SearchArguments(Record):
    """The arguments of a search as the model wrote them."""

    query: Annotated[
        str, BeforeValidator(_as_text), Field(min_length=1, max_length=MAX_QUERY_CHARS)
    ]


def parse_search(call: ToolCall) -> str:
    """Return the query of a call; raise RolloutStopped if it names another tool or does not fit the schema."""
    if call.name != RETRIEVE_TOOL_NAME:
        raise RolloutStopped(
            StopReason.TOOL_CALL_UNPARSABLE, f"there is no tool named {call.name!r}"
        )

    try:
        return _SearchArguments.model_validate_json(call.arguments).query
    except ValidationError as error:
        field, problem = first_problem(error)
        detail = f"arguments {call.arguments!r} of {call.name!r}: {field}{': ' if field else ''}{problem}"
        raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, detail) from error


@dataclass(frozen=True, slots=True)
class SearchTool:
    """Carries out the calls of all rollouts of an agent, within the limits of ``config``."""

    search: RolloutSearch
    config: AgentConfig
    protocol: AgentProtocol

    def for_agent(self) -> FunctionTool:
        """Return the tool in the Agents SDK's form."""
        function = RETRIEVE_TOOL["function"]
        assert isinstance(function, dict)
        return FunctionTool(
            name=RETRIEVE_TOOL_NAME,
            description=str(function["description"]),
            params_json_schema=dict(function["parameters"]),  # type: ignore[arg-type]
            on_invoke_tool=self._invoke,
            strict_json_schema=False,
        )

    async def _invoke(self, context: ToolContext[Transcript], arguments: str) -> str:
        call = ToolCall(id=context.tool_call_id, name=context.tool_name, arguments=arguments)
        return await self.carry_out(call, context.context)

    async def carry_out(self, call: ToolCall, transcript: Transcript) -> str:
        """Search for a call of the last turn and return what the model reads; the transcript holds it from then on.

        Raises RolloutStopped where the search fails.
        """
        retrieval = None
        if transcript.searches >= self.config.max_searches:
            text = self.protocol.notice(NO_SEARCHES_LEFT)
        else:
            # Before the first await: calls of one turn count in their order
            transcript.searches += 1
            query = parse_search(call)
            ids = [message_call.id for message_call in transcript.messages[-1].tool_calls]
            with timed("search", len(transcript.messages) + ids.index(call.id)):
                passages = await self.search(query, transcript.question)
            limit = self.config.max_observation_tokens
            tokens_of = transcript.prompt_count.of
            text = self.protocol.observation(passages)
            # Whole passages are left out, from the worst one on
            while limit is not None and len(passages) > 1 and tokens_of(len(text)) > limit:
                passages = passages[:-1]
                text = self.protocol.observation(passages)

            retrieval = Retrieval(
                query=query, chunk_ids=tuple(passage.chunk_id for passage in passages)
            )

        transcript.keep(call, text, retrieval)
        return text


async def search_over_mcp(
    session: Client, backoff_s: float, query: str, _question: Question
) -> tuple[ShownPassage, ...]:
    """Ask the retrieval server; raise RolloutStopped after :data:`ATTEMPTS` failures. ``backoff_s``: the first wait."""

    async def call_tool() -> tuple[ShownPassage, ...]:
        """Search once; raise EndpointError where the answer is an error or no passages."""
        result = await session.call_tool(RETRIEVE_TOOL_NAME, {"query": query})
        if result.is_error:
            text = "".join(part.text for part in result.content if isinstance(part, TextContent))
            raise EndpointError(text or "the search tool failed without saying why")

        try:
            return _SearchResult.model_validate(result.structured_content).result
        except ValidationError as error:
            field, problem = first_problem(error)
            raise EndpointError(
                f"the search tool does not say which chunks it found ({field}: {problem})"
            ) from error

    def warn(error: BaseException, attempt: int) -> None:
        _LOG.warning("search failed (%s), attempt %d of %d", error, attempt, ATTEMPTS)

    try:
        return await retry(ATTEMPTS, backoff_s, Exception, warn)(call_tool)()
    except Exception as error:
        # MCP's client raises its own, and those of the streams that it is made of
        raise RolloutStopped(StopReason.TOOL_ERROR, f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def open_session(retrieval_url: str, timeout_s: float) -> AsyncIterator[Client]:
    """Open a session with a retrieval server, with a time-out per call.

    A token in the environment variable :data:`RETRIEVAL_TOKEN` is sent. Raises EndpointError without
    a search tool, ConfigError for a token that is none.
    """
    url = f"{retrieval_url.rstrip('/')}/mcp"
    headers = bearer(RETRIEVAL_TOKEN, "the retrieval server")
    transport = _ErrorsAsResponses()
    async with (
        httpx2.AsyncClient(transport=transport, timeout=timeout_s, headers=headers) as http,
        AsyncExitStack() as opened,
    ):
        session = Client(
            streamable_http_client(url, http_client=http), read_timeout_seconds=timeout_s
        )
        try:
            # By hand, because errors of the opening alone are the endpoint's
            await session.__aenter__()
            opened.push_async_callback(session.__aexit__, None, None, None)
            # The client reads the list of tools here instead of in the first search of every
            # rollout.
            tools = {tool.name for tool in (await session.list_tools()).tools}
        except Exception as error:
            problem = f"({url}) does not answer: {transport.problem or error}"
            raise EndpointError(
                f"the retrieval server's MCP endpoint {mask_users(problem)}"
            ) from error

        if RETRIEVE_TOOL_NAME not in tools:
            raise EndpointError(
                f"the MCP server at {mask_users(url)} has no tool named {RETRIEVE_TOOL_NAME!r}."
            )

        yield session


class _ErrorsAsResponses(httpx2.AsyncBaseTransport):
    """Turns a connection that breaks or stalls into a response of status 503 with the error as its body.

    ``problem`` says what the newest request met; the MCP library's errors do not.
    """

    def __init__(self) -> None:
        self.problem = ""
        # ``agent.concurrency`` and the calls of one turn limit the searches at once
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._transport = httpx2.AsyncHTTPTransport(limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the response to a call is read whole, because a connection may break in the middle of it."""
        try:
            response = await self._transport.handle_async_request(request)
            if request.method == "POST":
                await response.aread()
        except httpx2.TransportError as error:
            self.problem = f"{type(error).__name__}: {error}"
            return httpx2.Response(503, text=self.problem)

        self.problem = "" if response.is_success else f"status {response.status_code}"
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            self.problem += f"; set {RETRIEVAL_TOKEN} to the server's token"
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()
