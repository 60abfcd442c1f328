"""A rollout in Search-R1's tags that is trained on: its model continues tokens, not a text.

The text in tags is one message that grows. A chat completion sends it as a text, which the server
reads as tokens anew, and the tokenizer may join the end of a turn with the observation behind it
(``>`` and two newlines are one token of Qwen's). Those are not the tokens that were sampled. So the
server is given the sampled tokens with the observation's behind them, as Search-R1's own loop does
(``llm_agent/generation.py``). It continues this very sequence, and the trainer learns from it; the
observation's tokens carry no loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openai.types import Completion as TextCompletion

from deepsearch_rl.agent.protocols import EndpointPolicy, Reply, RolloutPolicy
from deepsearch_rl.chat.completion import ENDED_BY_LIMIT
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import Message
from deepsearch_rl.train.art.captures import token_ids
from deepsearch_rl.train.rl.tokens import TokenRecord, TokenRow


@dataclass(slots=True)
class TagPolicy(RolloutPolicy):
    """Writes the turns of one rollout as ``endpoint`` would; ``tokens`` records the sequence."""

    endpoint: EndpointPolicy
    tokens: TokenRecord

    @property
    def row(self) -> TokenRow | None:
        """The sequence of the rollout; None before the first turn."""
        return self.tokens.rows[0] if self.tokens.rows else None

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Return the next turn; raises openai.APIError, and EndpointError for a reply without token ids."""
        prompt = self.tokens.prompt(messages)
        response = await self._complete(prompt, messages, max_tokens)
        ids, logprobs = _sampled(response)
        was_cut = response.choices[0].finish_reason in ENDED_BY_LIMIT

        # Recorded only now: of a request that failed there is nothing to train on
        self.tokens.begin_turn(prompt)
        turn_tokens = self.tokens.read(ids, messages, max_tokens, was_cut)
        self.tokens.end_turn(turn_tokens.ids, logprobs)

        protocol = self.endpoint.protocol
        turn = protocol.turn(turn_tokens.completion, messages)
        truncated = was_cut and not protocol.complete(turn)
        return Reply(turn, turn_tokens.completion.usage, truncated)

    async def _complete(
        self, prompt: Sequence[int], messages: Sequence[Message], max_tokens: int
    ) -> TextCompletion:
        endpoint = self.endpoint
        request: dict[str, Any] = {} if endpoint.seed is None else {"seed": endpoint.seed}
        return await endpoint.client.completions.create(
            model=endpoint.model,
            prompt=list(prompt),
            max_tokens=max_tokens,
            temperature=endpoint.temperature,
            stop=endpoint.protocol.request(messages)["stop"],
            logprobs=0,
            extra_body={"include_stop_str_in_output": True, "return_tokens_as_token_ids": True},
            **request,
        )


def _sampled(response: TextCompletion) -> tuple[list[int], list[float]]:
    """Return the ids of a completion's tokens and their log-probabilities."""
    reported = response.choices[0].logprobs if response.choices else None
    tokens = reported.tokens if reported and reported.tokens else []
    logprobs = reported.token_logprobs if reported and reported.token_logprobs else []
    ids = token_ids(tokens)

    if not ids or len(ids) != len(logprobs):
        raise EndpointError(
            "the model server's completion has no token ids with log-probabilities: rl in "
            "search_tags needs a server whose /v1/completions takes return_tokens_as_token_ids and "
            "logprobs, as vLLM's does."
        )
    return ids, logprobs
