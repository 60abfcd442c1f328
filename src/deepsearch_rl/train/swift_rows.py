"""Rows for ms-swift's SFT, with the reasoning of their turns.

ms-swift renders the text of an assistant turn and a ``tool_call`` message per call one after the
other. Chat templates like Qwen's put a newline between text and calls, so the row's text ends in
one. The text begins with the turn's reasoning, wherever the server had put it. docs/contracts.md,
section 2, has the format.

A row must hold the prompts that are served. If the agent sends all reasoning back, one row trains
every turn. If not, each turn is a row of its own: the messages before it without reasoning, and the
turn with its reasoning.
"""

import json
from typing import Literal

from deepsearch_rl.chat.chat_messages import (
    CLOSE_THINK,
    OPEN_THINK,
    RETRIEVE_TOOL,
    split_thought,
)
from deepsearch_rl.chat.prompts import PromptDigests, tools_text
from deepsearch_rl.core.records import Record, Trajectory

_TOOLS = tools_text(RETRIEVE_TOOL)


class SwiftMessage(Record):
    """One message of a row; ms-swift allows no other fields."""

    role: Literal["system", "user", "assistant", "tool_call", "tool_response"]
    content: str


class SwiftRow(Record):
    """One training row; ``tools`` is a JSON string."""

    tools: str
    messages: tuple[SwiftMessage, ...]

    def prompt_digests(self) -> PromptDigests:
        """Return the digests of the row's system prompt, empty where it has none, and of its tools."""
        system = [message.content for message in self.messages[:1] if message.role == "system"]
        return PromptDigests.of("".join(system), self.tools)


def row_targets(trajectory: Trajectory, flatten: bool) -> list[int | None]:
    """Return what each row of a trajectory trains: the position of one assistant message, or None for all of them."""
    if not flatten:
        return [None]
    positions: list[int | None] = []
    for position, message in enumerate(trajectory.messages):
        if message.role == "assistant":
            positions.append(position)

    return positions


def swift_row(trajectory: Trajectory, target: int | None = None) -> SwiftRow:
    """Return a training row of a trajectory of the function-calling protocol.

    ``target`` is the position of the one message to train; the row ends with it, and earlier
    messages have no reasoning. None: all messages, every turn with its reasoning.
    """
    messages = trajectory.messages if target is None else trajectory.messages[: target + 1]
    parts: list[SwiftMessage] = []

    for position, message in enumerate(messages):
        if message.role == "tool":
            parts.append(SwiftMessage(role="tool_response", content=message.content))
            continue

        reasoning, text, _ = split_thought(message)
        text = f"{text}\n" if message.tool_calls and text else text
        if reasoning is not None and target in (None, position):
            text = f"{OPEN_THINK}\n{reasoning}\n{CLOSE_THINK}\n\n{text}"
        if text or not message.tool_calls:
            parts.append(SwiftMessage(role=message.role, content=text))
        for call in message.tool_calls:
            content = f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
            parts.append(SwiftMessage(role="tool_call", content=content))

    return SwiftRow(tools=_TOOLS, messages=tuple(parts))
