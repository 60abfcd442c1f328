"""The search tool of the agent loop, over one MCP session.

A search that fails is an error of the rollout, never "no results": a model that reads an empty result from a broken
server learns that the corpus holds nothing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agents import FunctionTool
from agents.tool_context import ToolContext
from mcp import Client
from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols.protocol import AgentProtocol
from deepsearch_rl.agent.tool import RETRIEVE_TOOL, RETRIEVE_TOOL_NAME
from deepsearch_rl.agent.transcript import Observation, RolloutStopped, Transcript
from deepsearch_rl.errors import EndpointError
from deepsearch_rl.files import first_problem
from deepsearch_rl.records import Question, Retrieval, StopReason, ToolCall
from deepsearch_rl.retries import retry
from deepsearch_rl.retrieval.server.requests import MAX_QUERY_CHARS

_LOG = logging.getLogger(__name__)
ATTEMPTS = 3
"""How often a failing search is tried."""
NO_SEARCHES_LEFT = "No searches left. Answer now."
"""What the model reads instead of passages once its searches are used up; calling again ends the rollout."""


class ShownPassage(BaseModel):
    """A passage for the model: its text, title first, and the id of its chunk."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    chunk: str
    chunk_id: str

    @property
    def contents(self) -> str:
        """The text under the name that protocols read."""
        return self.chunk


class SearchResult(BaseModel):
    """The structured content of the MCP tool's result, best passage first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    result: tuple[ShownPassage, ...]


class SearchArguments(BaseModel):
    """The arguments of a search as the model wrote them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(min_length=1, max_length=MAX_QUERY_CHARS)


def parse_search(call: ToolCall) -> str:
    """Return the query of a call.

    Raises:
        RolloutStopped: the call names another tool, or its arguments are not the JSON of the schema.
    """
    if call.name != RETRIEVE_TOOL_NAME:
        raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, f"there is no tool named {call.name!r}")
    try:
        return SearchArguments.model_validate_json(call.arguments).query
    except ValidationError as error:
        field, problem = first_problem(error)
        detail = f"arguments {call.arguments!r} of {call.name!r}: {field}{': ' if field else ''}{problem}"
        raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, detail) from error


class RolloutSearch(Protocol):
    """Finds passages for a query of a rollout."""

    async def __call__(self, query: str, question: Question) -> Sequence[ShownPassage]:
        """Return the passages, best first.

        Raises:
            RolloutStopped: the search failed in all attempts.
        """
        ...


@dataclass(frozen=True, slots=True)
class McpSearch:
    """Searches over MCP.

    Args:
        session: with the retrieval server.
        backoff_s: pause before the second attempt of a failing search; doubled for each further one.
    """

    session: Client
    backoff_s: float

    async def __call__(self, query: str, question: Question) -> tuple[ShownPassage, ...]:  # noqa: ARG002 - for other searches
        """Ask the retrieval server, up to :data:`ATTEMPTS` times."""

        async def search() -> tuple[ShownPassage, ...]:
            return _read_result(await self.session.call_tool(RETRIEVE_TOOL_NAME, {"query": query}))

        def warn(error: BaseException, attempt: int) -> None:
            _LOG.warning("search failed (%s), attempt %d of %d", error, attempt, ATTEMPTS)

        try:
            return await retry(ATTEMPTS, self.backoff_s, Exception, warn)(search)()
        except Exception as error:  # MCP's client raises its own, and those of the streams that it is made of
            raise RolloutStopped(StopReason.TOOL_ERROR, f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class SearchTool:
    """Carries out the calls of all rollouts of an agent.

    Args:
        search: finds the passages.
        config: how many searches a rollout may make, and how long a result may be.
        protocol: writes a result for the model.
    """

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
        transcript = context.context
        call = ToolCall(id=context.tool_call_id, name=context.tool_name, arguments=arguments)
        if transcript.searches >= self.config.max_searches:
            observation = Observation(self.protocol.notice(NO_SEARCHES_LEFT), notice=True)
        else:
            transcript.searches += 1  # before the first await: calls of one turn count in their order
            query = parse_search(call)
            passages = self._that_fit(await self.search(query, transcript.question), transcript)
            retrieval = Retrieval(query=query, chunk_ids=tuple(passage.chunk_id for passage in passages))
            observation = Observation(self.protocol.observation(passages), retrieval)
        transcript.keep(call, observation)
        return observation.text

    def _that_fit(self, passages: Sequence[ShownPassage], transcript: Transcript) -> Sequence[ShownPassage]:
        """Return the first passages that fit into an observation, at least one."""
        limit, tokens_of = self.config.max_observation_tokens, transcript.prompt_count.of
        while limit is not None and len(passages) > 1 and tokens_of(len(self.protocol.observation(passages))) > limit:
            passages = passages[:-1]
        return passages


def _read_result(result: CallToolResult) -> tuple[ShownPassage, ...]:
    if result.is_error:
        text = "".join(part.text for part in result.content if isinstance(part, TextContent))
        raise EndpointError(text or "the search tool failed without saying why")
    try:
        return SearchResult.model_validate(result.structured_content).result
    except ValidationError as error:
        field, problem = first_problem(error)
        raise EndpointError(f"the search tool does not say which chunks it found ({field}: {problem})") from error
