"""A rollout in Search-R1's tags that is trained on: its model continues tokens, not a text.

The text in tags is one message that grows. A chat completion sends it as a text, which the server
reads as tokens anew, and the tokenizer may join the end of a turn with the observation behind it
(``>`` and two newlines are one token of Qwen's). Those are not the tokens that were sampled. So the
server is given the sampled tokens with the observation's behind them, as Search-R1's own loop does
(``llm_agent/generation.py``). It continues this very sequence, and the trainer learns from it; the
observation's tokens carry no loss.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import art
from art.preprocessing.tokenize import TokenizedResult
from art.trajectories import History
from openai.types import Completion as TextCompletion
from openai.types.chat.chat_completion import Choice
from transformers import PreTrainedTokenizerBase

from deepsearch_rl.agent.protocols import EndpointPolicy, Reply, RolloutPolicy
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import Message
from deepsearch_rl.endpoints.endpoint import ENDED_BY_LIMIT
from deepsearch_rl.training.backends.art.captures import token_ids
from deepsearch_rl.training.rl.tokens import TokenRecord, TokenRow

_SAMPLED = "token_id"
_READ = "read_id"


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


def row_trajectory(row: TokenRow, reward: float) -> art.Trajectory:
    """Return a sequence as ART carries it: one choice with all tokens, which :func:`tokenized_row` reads."""
    logprobs = row.logprobs or [math.nan] * len(row.ids)
    content: list[dict[str, Any]] = []

    for token, is_sampled, logprob in zip(row.ids, row.mask, logprobs, strict=True):
        name = _SAMPLED if is_sampled else _READ
        content.append({"token": f"{name}:{token}", "logprob": logprob, "top_logprobs": []})

    message = {"role": "assistant", "content": ""}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return art.Trajectory(
        messages_and_choices=[Choice.model_validate({**choice, "logprobs": {"content": content}})],
        reward=reward,
    )


def tokenized_row(
    tokenizer: PreTrainedTokenizerBase,
    _image_processor: Any,
    history: History,
    advantage: float,
    _without_logprobs: bool,
    trajectory: art.Trajectory,
    **_: Any,
) -> TokenizedResult:
    """Return a sequence of :func:`row_trajectory` as ART's ``tokenize_trajectory`` returns a conversation.

    As there, a token that the model did not write has no log-probability (NaN) and no place in the
    mask.
    """
    choice = cast(Choice, history.messages_and_choices[0])
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []

    for entry in (choice.logprobs and choice.logprobs.content) or ():
        name, _colon, token = entry.token.partition(":")
        is_sampled = name == _SAMPLED
        ids.append(int(token))
        mask.append(int(is_sampled))
        logprobs.append(entry.logprob if is_sampled else math.nan)

    return TokenizedResult(
        advantage=advantage,
        chat="",
        token_ids=ids,
        input_pos=list(range(len(ids))),
        assistant_mask=mask,
        logprobs=logprobs,
        pixel_values=None,
        image_grid_thw=None,
        trajectory=trajectory,
        choice_offsets=[],
        extra_logprobs={},
        _tokenizer=tokenizer,
    )
