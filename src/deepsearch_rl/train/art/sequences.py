"""Finished rollouts as ART trains on them: sequences of tokens, in an order that no clock decides.

ART knows conversations and renders them. A rollout is the sequence that the policy read and wrote,
so it travels through ART as one choice that holds every token, and is read back where ART would
render it.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import art
from art.preprocessing.tokenize import TokenizedResult
from art.trajectories import History
from openai.types.chat.chat_completion import Choice
from transformers import PreTrainedTokenizerBase

from deepsearch_rl.train.art.captures import reported_tokens
from deepsearch_rl.train.rl.rl_trainer import Rollout
from deepsearch_rl.train.rl.tokens import TokenRow

_SAMPLED = "token_id"
_READ = "read_id"


def in_order(
    rollouts_G: Sequence[Rollout], rewards_G: Sequence[float]
) -> list[tuple[Rollout, float]]:
    """Return the rollouts of a group with their rewards by id, so that no sum depends on which one ended first."""
    return sorted(zip(rollouts_G, rewards_G, strict=True), key=lambda pair: pair[0].trajectory.id)


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

    for entry in reported_tokens(choice):
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
