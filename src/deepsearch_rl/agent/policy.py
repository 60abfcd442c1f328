"""Who writes the turns of a rollout: an endpoint or a script.

Calls of an endpoint are plain, non-streaming ``chat.completions`` through ``AsyncOpenAI``, so that libraries which
capture rollouts there (openpipe-art does) see every call.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import openai

from deepsearch_rl.agent.endpoint import Endpoint, read_completion
from deepsearch_rl.agent.protocols import AgentProtocol
from deepsearch_rl.records import Message, StopReason, TokenUsage

MODEL_RETRIES = 3
"""Further attempts of a model call; the client makes them for 408, 409, 429, 5xx, connection errors and time-outs."""
CONNECT_TIMEOUT_S = 10.0
_TOO_LONG = re.compile(
    r"context.?(length|window)|context of \d+ tokens|max_model_len|too long|too many (input )?tokens", re.IGNORECASE
)
"""How OpenAI, vLLM, other servers and our own report that a prompt does not fit."""
_REFUSALS = {400, 413, 422}


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn; ``usage`` is None where tokens are not counted, ``truncated``: the token limit ended the turn."""

    turn: Message
    usage: TokenUsage | None = None
    truncated: bool = False


class RolloutPolicy(Protocol):
    """Writes the turns of one rollout; made anew for every rollout."""

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Return the next turn of a conversation, of at most ``max_tokens`` tokens."""
        ...


def open_client(endpoint: Endpoint, timeout_s: float) -> openai.AsyncOpenAI:
    """Return a client that retries failed calls with back-off; ``timeout_s`` applies to each call."""
    timeout = openai.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
    return openai.AsyncOpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, timeout=timeout, max_retries=MODEL_RETRIES
    )


@dataclass(frozen=True, slots=True)
class EndpointPolicy(RolloutPolicy):
    """A model behind an endpoint; ``logprobs`` asks for the log-probabilities of the sampled tokens.

    ``seed`` is that of sampling, where the server honours seeds; None leaves it to the server.
    """

    client: openai.AsyncOpenAI
    model: str
    protocol: AgentProtocol
    temperature: float
    seed: int | None = None
    logprobs: bool = False

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Return the next turn; raise openai.APIError after all attempts, EndpointError if it is no completion."""
        options = self.protocol.request(messages)
        if self.seed is not None:
            options["seed"] = self.seed
        if self.logprobs:
            options["logprobs"] = True
        response = await self.client.chat.completions.create(
            model=self.model, temperature=self.temperature, max_tokens=max_tokens, **options
        )
        completion = read_completion(response)
        turn = self.protocol.turn(completion, messages)
        truncated = completion.truncated(max_tokens) and not self.protocol.complete(turn)
        return Reply(turn, completion.usage, truncated)


def model_failure(error: openai.APIError) -> StopReason:
    """Return whether the prompt did not fit or the endpoint failed."""
    refused = isinstance(error, openai.APIStatusError) and error.status_code in _REFUSALS
    return StopReason.TOKEN_BUDGET if refused and _TOO_LONG.search(str(error)) else StopReason.MODEL_ERROR
