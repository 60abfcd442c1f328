"""Finished rollouts as ART trains on them: each as one conversation, in an order that no clock decides."""

from collections.abc import Sequence

import art
from art.types import MessagesAndChoices
from openai.types.chat.chat_completion import Choice

from deepsearch_rl.training.backends.art.captures import sampled_choices
from deepsearch_rl.training.backends.art.tag_policy import (
    row_trajectory,
)
from deepsearch_rl.training.rl.rl_trainer import Rollout
from deepsearch_rl.training.rl.tokens import TokenRow


def in_order(
    rollouts_G: Sequence[Rollout], rewards_G: Sequence[float]
) -> list[tuple[Rollout, float]]:
    """Return the rollouts of a group with their rewards by id, so that no sum depends on which one ended first."""
    return sorted(zip(rollouts_G, rewards_G, strict=True), key=lambda pair: pair[0].trajectory.id)


def art_trajectory(rollout: Rollout, reward: float) -> art.Trajectory:
    """Return a rollout as ART trains on it: what it captured as one conversation with its tools, or the sequence."""
    if isinstance(rollout.capture, TokenRow):
        return row_trajectory(rollout.capture, reward)

    captured: art.Trajectory = rollout.capture
    tools = None
    for history in (captured, *captured.additional_histories):
        if history.tools:
            tools = history.tools
            break

    return art.Trajectory(messages_and_choices=conversation(captured), tools=tools, reward=reward)


def conversation(captured: art.Trajectory) -> MessagesAndChoices:
    """Return the whole conversation of a rollout with every assistant turn as the choice that was sampled.

    ART splits a rollout into several histories where a request does not repeat the previous answer
    to the letter (an empty text against none); they are put back together. ART renders an assistant
    turn as its sampled tokens followed by its structured tool calls, which the tokens already hold;
    the structured copy is dropped.
    """
    # Every request repeats the turns before it, so that the longest history is the whole one.
    longest = captured.messages_and_choices
    for history in captured.additional_histories:
        if len(history.messages_and_choices) > len(longest):
            longest = history.messages_and_choices

    choices = iter(sampled_choices(captured))
    items: MessagesAndChoices = []

    for item in longest:
        if isinstance(item, Choice) or item["role"] == "assistant":
            # Each request has one choice, in the order of the turns
            choice = next(choices)
            message = choice.message.model_copy(update={"content": "", "tool_calls": None})
            item = choice.model_copy(update={"message": message})

        items.append(item)

    return items
