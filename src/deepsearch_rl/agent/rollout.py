"""One question answered by one model: the loop that teacher, trained models and reinforcement learning all go through.

The loop itself is the OpenAI Agents SDK's (model call, tool call, model call, ...). This module gives it one model, one
tool and hard limits, and turns everything that goes wrong into a :class:`Trajectory` with a stop reason: a bad rollout
is data, it scores zero and stays in the denominator.

Calls are plain, non-streaming ``chat.completions`` through ``AsyncOpenAI``, so that libraries which capture a rollout
at that seam (openpipe-art does) see every call.
"""

import asyncio
import logging
import random
import re
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeAlias

import openai
from agents import (
    Agent,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
)
from agents.exceptions import MaxTurnsExceeded
from agents.items import TResponseInputItem
from agents.mcp import MCPServerStreamableHttp
from agents.models.interface import Model
from agents.run_config import CallModelData, ModelInputData
from pydantic import Field, field_validator, model_validator

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.agent.search_tool import NO_SEARCHES_LEFT, search_tool
from deepsearch_rl.agent.tool import RETRIEVE_TOOL
from deepsearch_rl.agent.transcript import RolloutKey, RolloutStopped, Transcript, parse_search
from deepsearch_rl.errors import EndpointError, UnknownNameError
from deepsearch_rl.records import Message, Question, Record, StopReason, Trajectory

_LOG = logging.getLogger(__name__)
PROTOCOLS = ("function_calling",)
MODEL_RETRIES = 3
"""Further attempts of a model call; the client makes them for 408, 409, 429, 5xx, connection errors and time-outs."""
_TOO_LONG = re.compile(r"context.?length|context of \d+ tokens|max_model_len", re.IGNORECASE)
"""How OpenAI, vLLM and our own server say that a prompt does not fit."""

ModelPerRollout: TypeAlias = Callable[[Question, int], Model]
"""Makes the model of one rollout from the question and the sample's number, e.g. a scripted teacher."""


class AgentConfig(Record):
    """The agent, the same wherever a model answers questions.

    Raises:
        UnknownNameError: ``protocol`` or ``prompt`` is not a known name.
    """

    protocol: str = Field(description="how the model calls the tool: function_calling")
    prompt: str = Field(description="name of a file in agent/prompts")
    max_searches: int = Field(ge=0, description="searches per question; one call more is answered with a notice")
    max_turns: int = Field(ge=1, description="model calls per question")
    max_tokens: int = Field(ge=1, description="completion tokens per model call")
    context_tokens: int = Field(ge=1, description="prompt and completion tokens of one model call together")
    timeout_s: float = Field(gt=0, description="seconds per question")
    concurrency: int = Field(ge=1, description="questions answered at once")

    @field_validator("protocol")
    @classmethod
    def _known_protocol(cls, name: str) -> str:
        if name not in PROTOCOLS:
            raise UnknownNameError("agent protocol", name, PROTOCOLS)
        return name

    @field_validator("prompt")
    @classmethod
    def _known_prompt(cls, name: str) -> str:
        load_prompt(name)
        return name

    @model_validator(mode="after")
    def _room_for_a_prompt(self) -> Self:
        if self.max_tokens >= self.context_tokens:
            raise ValueError(f"max_tokens {self.max_tokens} leaves no room for a prompt in {self.context_tokens}")
        return self


class SearchAgent:
    """Answers questions with one model and one MCP session; use as an async context manager.

    Args:
        config: limits, prompt and protocol.
        model: an endpoint, or a function that makes an Agents SDK model for each rollout.
        retrieval_url: base URL of the retrieval server; MCP is at ``/mcp`` below it.
        temperature: sampling temperature of every call.
        logprobs: ask the endpoint for the log-probabilities of the tokens it draws.
        model_name: what trajectories name as their model; the endpoint's own name if not given.
        seed: every rollout asks the endpoint to sample with a seed drawn from this one, its question and its number,
            so that repeating it repeats the answer where the server honours seeds; None leaves it to the server.
        first_wait_s: pause before the second attempt of a failing search; doubled for each further one.
    """

    def __init__(
        self,
        config: AgentConfig,
        model: Endpoint | ModelPerRollout,
        retrieval_url: str,
        temperature: float,
        *,
        logprobs: bool = False,
        model_name: str | None = None,
        seed: int | None = None,
        first_wait_s: float = 0.5,
    ) -> None:
        self._config, self._model = config, model
        name = model_name or (model.model if isinstance(model, Endpoint) else "scripted")
        self._key = RolloutKey(name, config.prompt, temperature)
        self._first_wait_s, self._seed = first_wait_s, seed
        self._system = Message(role="system", content=load_prompt(config.prompt))
        self._server = MCPServerStreamableHttp(
            {"url": f"{retrieval_url.rstrip('/')}/mcp", "timeout": config.timeout_s},
            client_session_timeout_seconds=config.timeout_s,
        )
        self._settings = ModelSettings(
            temperature=temperature,
            max_tokens=config.max_tokens,
            extra_args={"logprobs": True} if logprobs else None,
            # The SDK adds a key to the schema; the models are trained with the frozen one.
            extra_body={"tools": [RETRIEVE_TOOL]},
        )
        self._client: openai.AsyncOpenAI | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._server.connect()
        except Exception as error:
            raise EndpointError(
                f"the retrieval server's MCP endpoint ({self._server.params['url']}) does not answer: {error}"
            ) from error
        tool = search_tool(self._server, self._config.max_searches, self._first_wait_s)
        self._agent = Agent[Transcript](
            "search agent", instructions=self._system.content, tools=[tool], model_settings=self._settings
        )
        self._run_config = RunConfig(
            model=self._endpoint_model(), tracing_disabled=True, call_model_input_filter=_recorded_input
        )
        self._limits = _Limits(self._config.context_tokens, self._config.max_tokens)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.cleanup()
        if self._client is not None:
            await self._client.close()

    def _endpoint_model(self) -> Model | None:
        if not isinstance(self._model, Endpoint):
            return None
        endpoint = self._model
        self._client = openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            timeout=self._config.timeout_s,
            max_retries=MODEL_RETRIES,
        )
        return OpenAIChatCompletionsModel(endpoint.model, self._client)

    async def answer(self, question: Question, sample: int) -> Trajectory:
        """Answer one question; whatever goes wrong is in the trajectory's stop reason and error, nothing is raised."""
        transcript = Transcript([self._system, Message(role="user", content=question.question)])
        reason, detail = await self._outcome(question, sample, transcript)
        return transcript.finish(question, sample, self._key, reason, detail)

    async def _outcome(self, question: Question, sample: int, transcript: Transcript) -> tuple[StopReason, str | None]:
        redact = self._model.redact if isinstance(self._model, Endpoint) else str
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await self._run(question, sample, transcript)
        except TimeoutError:
            return StopReason.DEADLINE, f"not finished after {self._config.timeout_s:g} s"
        except RolloutStopped as stop:
            return stop.reason, stop.detail
        except MaxTurnsExceeded:
            return StopReason.TURN_BUDGET, f"no answer after {self._config.max_turns} turns"
        except openai.APIError as error:
            return model_failure(error), redact(f"{type(error).__name__}: {error}")
        except (UnicodeEncodeError, RecursionError) as error:  # the SDK reads a call's arguments before we can
            return StopReason.TOOL_CALL_UNPARSABLE, f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - whatever else a server's reply breaks is this rollout's failure
            _LOG.debug("rollout %s#%d failed", question.id, sample, exc_info=True)
            return StopReason.MODEL_ERROR, redact(f"{type(error).__name__}: {error}")
        return (StopReason.ANSWERED if transcript.has_answer_tags else StopReason.NO_ANSWER_TAG), None

    async def _run(self, question: Question, sample: int, transcript: Transcript) -> None:
        run_config = self._run_config
        if not isinstance(self._model, Endpoint):
            run_config = replace(run_config, model=self._model(question, sample))
        elif self._seed is not None:
            drawn = random.Random(f"{self._seed}/{question.id}/{sample}").getrandbits(31)
            run_config = replace(run_config, model_settings=ModelSettings(extra_args={"seed": drawn}))
        await Runner.run(
            self._agent,
            question.question,
            context=transcript,
            max_turns=self._config.max_turns,
            hooks=self._limits,
            run_config=run_config,
        )


def _recorded_input(call: CallModelData[Transcript]) -> ModelInputData:
    """Send exactly what the transcript records."""
    assert call.context is not None
    return ModelInputData(input=call.context.input_items(), instructions=call.model_data.instructions)


def model_failure(error: openai.APIError) -> StopReason:
    """Whether the prompt did not fit or the endpoint failed."""
    too_long = isinstance(error, openai.BadRequestError) and _TOO_LONG.search(str(error))
    return StopReason.TOKEN_BUDGET if too_long else StopReason.MODEL_ERROR


class _Limits(RunHooks[Transcript]):
    """Records every turn and ends a rollout at a limit or at a call that cannot be carried out."""

    def __init__(self, context_tokens: int, max_tokens: int) -> None:
        self._context_tokens, self._max_tokens = context_tokens, max_tokens

    async def on_llm_start(
        self,
        context: RunContextWrapper[Transcript],
        agent: Agent[Transcript],  # noqa: ARG002 - the SDK's signature
        system_prompt: str | None,  # noqa: ARG002
        input_items: list[TResponseInputItem],  # noqa: ARG002
    ) -> None:
        """Refuse a call whose prompt and completion would not fit the context."""
        expected = context.context.expected_prompt_tokens()
        if expected + self._max_tokens > self._context_tokens:
            detail = f"about {expected} prompt tokens and {self._max_tokens} to write exceed {self._context_tokens}"
            raise RolloutStopped(StopReason.TOKEN_BUDGET, detail)

    async def on_llm_end(
        self,
        context: RunContextWrapper[Transcript],
        agent: Agent[Transcript],  # noqa: ARG002 - the SDK's signature
        response: ModelResponse,
    ) -> None:
        """Record the turn; stop at one that was cut, that cannot be parsed, or that searches against the notice."""
        transcript = context.context
        told = transcript.messages[-1].role == "tool" and transcript.messages[-1].content == NO_SEARCHES_LEFT
        turn = transcript.add_turn(response)
        if response.usage.output_tokens >= self._max_tokens and not transcript.has_answer_tags:
            raise RolloutStopped(StopReason.TOKEN_BUDGET, f"cut after {self._max_tokens} tokens")
        if not turn.tool_calls and "<tool_call>" in turn.content:
            raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, "a tool call that the server could not parse")
        if not turn.tool_calls and not turn.content:  # the SDK would ask again, with an empty turn in between
            raise RolloutStopped(StopReason.NO_ANSWER_TAG, "an empty turn")
        for call in turn.tool_calls:
            parse_search(call)
        if told and turn.tool_calls:
            raise RolloutStopped(StopReason.SEARCH_BUDGET, "searched again after the last search")
