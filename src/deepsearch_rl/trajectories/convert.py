"""A trajectory as ms-swift's agent row (docs/contracts.md, section 2) and as Chat Completions messages.

ms-swift splits an assistant turn into a message for its text and one ``tool_call`` message per call, and renders them
one after the other; a chat template that follows Qwen's puts a newline between text and calls, so the row's text ends
in one.
"""

import json
from typing import Literal

from pydantic import JsonValue

from deepsearch_rl.agent.tool import RETRIEVE_TOOL
from deepsearch_rl.records import Message, Record, Trajectory

TOOLS = json.dumps([RETRIEVE_TOOL], ensure_ascii=False)


class SwiftMessage(Record):
    """One message of a row; nothing but role and content is allowed."""

    role: Literal["system", "user", "assistant", "tool_call", "tool_response"]
    content: str


class SwiftRow(Record):
    """One training row; ``tools`` is a JSON string."""

    tools: str
    messages: tuple[SwiftMessage, ...]


def swift_row(trajectory: Trajectory) -> SwiftRow:
    """The training row of a trajectory."""
    messages = [part for message in trajectory.messages for part in _swift_messages(message)]
    return SwiftRow(tools=TOOLS, messages=tuple(messages))


def chat_messages(messages: tuple[Message, ...]) -> list[dict[str, JsonValue]]:
    """Messages as the agent sends them to a server."""
    return [_chat_message(message) for message in messages]


def _swift_messages(message: Message) -> list[SwiftMessage]:
    if message.role == "tool":
        return [SwiftMessage(role="tool_response", content=message.content)]
    calls = [
        SwiftMessage(role="tool_call", content=f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}')
        for call in message.tool_calls
    ]
    text = f"{message.content}\n" if calls and message.content else message.content
    return [*([SwiftMessage(role=message.role, content=text)] if text or not calls else []), *calls]


def _chat_message(message: Message) -> dict[str, JsonValue]:
    sent: dict[str, JsonValue] = {"role": message.role, "content": message.content}
    if message.tool_call_id is not None:
        sent["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return sent
