"""Rollouts as ART captures them and as the agent records them."""

from collections.abc import Sequence
from typing import Any

from openai.types.chat.chat_completion import Choice

from deepsearch_rl.core.records import Message, StopReason, Trajectory


def captured_choice(message: dict[str, Any], tokens: Sequence[int]) -> Choice:
    """Return a turn as a server reports it that names the sampled tokens."""
    content = [
        {"token": f"token_id:{each}", "logprob": -1.0, "bytes": None, "top_logprobs": []}
        for each in tokens
    ]
    fields: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
    return Choice.model_validate({**fields, "logprobs": {"content": content}})


def recorded(messages: Sequence[Message]) -> Trajectory:
    return Trajectory(
        id="q#0",
        question_id="q",
        sample=0,
        question="Who?",
        golden_answers=("Mary Moss",),
        model="m",
        prompt="p",
        temperature=1.0,
        messages=tuple(messages),
        stop_reason=StopReason.ANSWERED,
    )
