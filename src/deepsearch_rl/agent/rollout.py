"""The agent loop: one question answered by one model.

Teachers, trained models and reinforcement learning use the same loop, the OpenAI Agents SDK's. This
module gives it one model, one tool and hard limits, and turns every failure into a
:class:`Trajectory` with a stop reason: a bad rollout is data, scores zero and stays in the
denominator.

The limits of a rollout and the notices that the model reads are in
:mod:`deepsearch_rl.agent.steps`.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self, TypeAlias

import openai
from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from agents.items import TResponseOutputItem, TResponseStreamEvent
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols import EndpointPolicy, Reply, RolloutPolicy, open_protocol
from deepsearch_rl.agent.search_tool import SearchTool, open_session, search_over_mcp
from deepsearch_rl.agent.steps import RolloutSteps
from deepsearch_rl.agent.timing import timed
from deepsearch_rl.agent.transcript import Observer, RolloutKey, RolloutStopped, Transcript
from deepsearch_rl.chat.client import open_client, pausable
from deepsearch_rl.chat.completion import replace_lone_surrogates
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.model_failures import (
    failed_generation,
    is_filtered,
    model_failure,
    server_words,
)
from deepsearch_rl.chat.request_options import USUAL
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import Message, Question, StopReason, Trajectory

_LOG = logging.getLogger(__name__)
# Makes the policy of one rollout from the question and the sample's number, e.g. a scripted
# teacher.
PolicyPerRollout: TypeAlias = Callable[[Question, int], RolloutPolicy]


def rollout_seed(seed: int, question: Question, sample: int) -> int:
    """Return the sampling seed of one rollout; a server that honours seeds then repeats a repeated answer."""
    return random.Random(f"{seed}/{question.id}/{sample}").getrandbits(31)


class RolloutModel(Model):
    """A rollout's model for the Agents SDK: records a policy's turns and stops the rollout at a limit."""

    def __init__(self, policy: RolloutPolicy, steps: RolloutSteps) -> None:
        self._policy = policy
        self._steps = steps
        self._transcript = steps.transcript

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:  # noqa: ARG002
        """Return the next turn of the transcript, which is the conversation; the SDK's own input is not read."""
        self._transcript.settle()
        while True:
            max_tokens = self._steps.begin_turn()
            with timed("model_call", len(self._transcript.messages)):
                reply = await self._ask(max_tokens)
            if self._steps.end_turn(reply):
                break

        output: list[TResponseOutputItem] = []
        for call in reply.turn.tool_calls:
            tool_call = ResponseFunctionToolCall(
                call_id=call.id, name=call.name, arguments=call.arguments, type="function_call"
            )
            output.append(tool_call)

        # An answer without calls ends the SDK's run
        if not output:
            text = ResponseOutputText(text=reply.turn.content, type="output_text", annotations=[])
            output.append(
                ResponseOutputMessage(
                    id="", content=[text], role="assistant", status="completed", type="message"
                )
            )

        # Tokens are counted in the transcript, not by the SDK
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def ending(self) -> StopReason:
        """Return how the rollout ended whose last turn asks for no search."""
        return self._steps.ending()

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:  # noqa: ARG002
        """Part of the SDK's interface; ``Runner.run`` does not call it."""
        raise AssertionError("the agent does not stream")

    async def _ask(self, max_tokens: int) -> Reply:
        """Ask for a turn; if the server reports that it does not fit, ask for less and drop the last passages."""
        try:
            return await self._policy.reply(self._transcript.messages, max_tokens)
        except (openai.APIStatusError, EndpointError) as error:
            failure = model_failure(error, answered_before=self._transcript.is_answered)
            if failure is not StopReason.TOKEN_BUDGET:
                raise
            fewer = self._steps.make_more_room(max_tokens)
            if fewer is None:
                raise

        return await self._policy.reply(self._transcript.messages, fewer)


async def run_rollout(
    model: RolloutModel, tool: SearchTool, transcript: Transcript
) -> tuple[StopReason, str | None]:
    """Let model and tool take turns until the rollout ends; return why it ended, and the error if there was one."""
    agent = Agent[Transcript]("search agent", tools=[tool.for_agent()])
    run_config = RunConfig(model=model, tracing_disabled=True)
    question = transcript.question
    limit = asyncio.timeout(tool.config.timeout_s)

    try:
        async with limit:
            with pausable(limit, transcript.generation.leave_out):
                await Runner.run(
                    agent,
                    question.question,
                    context=transcript,
                    # The limit of turns is RolloutSteps', which knows what the model was told
                    max_turns=None,
                    run_config=run_config,
                )
    except RolloutStopped as stop:
        return stop.reason, stop.detail
    except (openai.APIError, EndpointError) as error:
        return _failed_call(error, transcript)
    except Exception as error:  # noqa: BLE001
        # Any other error that a server's reply causes is this rollout's
        if limit.expired() and isinstance(error, TimeoutError):
            return _overtime(transcript, tool.config.timeout_s)
        _LOG.debug("rollout of %s failed", question.id, exc_info=True)
        return StopReason.MODEL_ERROR, f"{type(error).__name__}: {error}"

    return model.ending(), None


def _overtime(transcript: Transcript, timeout_s: float) -> tuple[StopReason, str]:
    """Return whose failure it is that the time is over: the model's, if it spent most of the time writing.

    Otherwise something hangs: the model server, if a turn has not come, or else a search.
    """
    generation = transcript.generation
    detail = f"not finished after {timeout_s:g} s, of which the model wrote for {generation.total_s:.3g} s"
    if generation.total_s > timeout_s / 2:
        return StopReason.DEADLINE, detail
    if generation.is_pending:
        return StopReason.MODEL_ERROR, f"{detail}: its server hangs in a call"
    return StopReason.TOOL_ERROR, f"{detail}: a search hangs"


def _failed_call(
    error: openai.APIError | EndpointError, transcript: Transcript
) -> tuple[StopReason, str]:
    """Return what a model call's last error means; a turn that the server wrote into it belongs to the transcript."""
    answered_before = transcript.is_answered
    turn = failed_generation(error)
    if turn:
        transcript.messages.append(Message(role="assistant", content=replace_lone_surrogates(turn)))
    words = server_words(error)
    text = words if isinstance(error, EndpointError) else f"{type(error).__name__}: {words}"
    if transcript.unanswered and is_filtered(words):
        query = transcript.retrievals[-1].query if transcript.retrievals else ""
        text = (
            f"the provider's content filter was hit by the passages of the search {query!r}: {text}"
        )
    return model_failure(error, answered_before=answered_before), text


@dataclass(eq=False)
class SearchAgent:
    """Answers questions with one model and one MCP session; use as an async context manager.

    ``model`` is an endpoint, or makes the policy of each rollout. ``logprobs`` asks for those of
    the drawn tokens. Trajectories name ``model_name``, or else the endpoint's. A rollout's seed is
    drawn from ``seed``, the question and the sample's number; None leaves it to the server.
    ``backoff_s``: wait before a failing search's second attempt.
    """

    config: AgentConfig
    model: Endpoint | PolicyPerRollout
    retrieval_url: str
    temperature: float
    _: KW_ONLY
    logprobs: bool = False
    model_name: str | None = None
    seed: int | None = None
    backoff_s: float = 0.5
    observer: Observer | None = None

    def __post_init__(self) -> None:
        config = self.config
        model = self.model

        name = self.model_name or (model.model if isinstance(model, Endpoint) else "scripted")
        self._key = RolloutKey(name, config.prompt_title, self.temperature, config.protocol)
        begins_in_thought = isinstance(model, Endpoint) and model.begins_in_thought
        options = model.options if isinstance(model, Endpoint) else USUAL
        self._protocol = open_protocol(config, begins_in_thought=begins_in_thought, options=options)
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        timeout_s = self.config.call_timeout_s
        # Where the session cannot be opened, the client must not stay open
        async with AsyncExitStack() as opening:
            if isinstance(self.model, Endpoint):
                self._client = await opening.enter_async_context(open_client(self.model, timeout_s))
            session = await opening.enter_async_context(open_session(self.retrieval_url, timeout_s))
            self._open = opening.pop_all()

        search = partial(search_over_mcp, session, self.backoff_s)
        self._tool = SearchTool(search, self.config, self._protocol)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._open.aclose()

    async def answer(
        self, question: Question, sample: int, policy: RolloutPolicy | None = None
    ) -> Trajectory:
        """Answer one question; failures are the trajectory's stop reason and error, nothing is raised.

        A ``policy`` writes the turns in place of the agent's own.
        """
        transcript = Transcript(question, self._protocol.opening(question.question), self.observer)
        steps = RolloutSteps(self._protocol, self.config, transcript)
        model = RolloutModel(policy or self._policy(question, sample), steps)
        reason, detail = await run_rollout(model, self._tool, transcript)
        if detail and isinstance(self.model, Endpoint):
            detail = self.model.redact(detail)
        return transcript.finish(sample, self._key, reason, detail)

    def _policy(self, question: Question, sample: int) -> RolloutPolicy:
        if not isinstance(self.model, Endpoint):
            return self.model(question, sample)
        return self.endpoint_policy(self.model, question, sample)

    def endpoint_policy(self, model: Endpoint, question: Question, sample: int) -> EndpointPolicy:
        """Return the policy of one rollout by the agent's model, an endpoint."""
        seed = None if self.seed is None else rollout_seed(self.seed, question, sample)
        return EndpointPolicy(
            self._client, model, self._protocol, self._key.temperature, seed, self.logprobs
        )
