"""A model behind an endpoint as a policy.

Calls are plain, non-streaming ``chat.completions`` through ``AsyncOpenAI``, so that libraries which capture a rollout
at that seam (openpipe-art does) see every call.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai

from deepsearch_rl.agent.completion import read_completion
from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.agent.policy import Reply
from deepsearch_rl.agent.protocols.protocol import AgentProtocol
from deepsearch_rl.records import Message, StopReason

MODEL_RETRIES = 3
"""Further attempts of a model call; the client makes them for 408, 409, 429, 5xx, connection errors and time-outs."""
CONNECT_TIMEOUT_S = 10.0
_TOO_LONG = re.compile(
    r"context.?(length|window)|context of \d+ tokens|max_model_len|too long|too many (input )?tokens", re.IGNORECASE
)
"""How OpenAI, vLLM, other servers and our own say that a prompt does not fit."""

_REFUSALS = {400, 413, 422}


def open_client(endpoint: Endpoint, timeout_s: float) -> openai.AsyncOpenAI:
    """A client that retries with back-off what may pass; ``timeout_s`` is one call's."""
    timeout = openai.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
    return openai.AsyncOpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, timeout=timeout, max_retries=MODEL_RETRIES
    )


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """A model behind an endpoint.

    Args:
        client: of the endpoint.
        model: name of the model.
        protocol: writes requests and reads what comes back.
        temperature: of sampling.
        seed: of sampling, where the server honours seeds; None leaves it to the server.
        logprobs: ask for the log-probabilities of the tokens that are drawn.
    """

    client: openai.AsyncOpenAI
    model: str
    protocol: AgentProtocol
    temperature: float
    seed: int | None = None
    logprobs: bool = False

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """The next turn.

        Raises:
            openai.APIError: the endpoint failed, and kept failing.
            EndpointError: it answered with something else than a completion.
        """
        options: dict[str, Any] = {} if self.seed is None else {"seed": self.seed}
        if self.logprobs:
            options["logprobs"] = True
        answered = await self.client.chat.completions.create(
            model=self.model,
            temperature=self.temperature,
            max_tokens=max_tokens,
            **self.protocol.request(messages),
            **options,
        )
        completion = read_completion(answered)
        turn = self.protocol.turn(completion, messages)
        return Reply(turn, completion.counted, completion.cut(max_tokens) and not self.protocol.complete(turn))


def model_failure(error: openai.APIError) -> StopReason:
    """Whether the prompt did not fit or the endpoint failed."""
    refused = isinstance(error, openai.APIStatusError) and error.status_code in _REFUSALS
    return StopReason.TOKEN_BUDGET if refused and _TOO_LONG.search(str(error)) else StopReason.MODEL_ERROR
