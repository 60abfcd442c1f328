"""Messages and the search tool in the Chat Completions form.

A server returns the reasoning of a turn in one of three places: a field of its own, where it runs a
reasoning parser (vLLM calls it ``reasoning``, older versions and others ``reasoning_content``; both
are :attr:`Message.reasoning` here); in the text between ``<think>`` and ``</think>``; or in the
text before ``</think>`` alone, where the opening tag belongs to the prompt, as with Qwen3's
Thinking models. :func:`split_thought` reads all three, and a thought that was never closed:
everything after its opening tag is thought. :func:`spoken_text` is what a turn says, and the only
text that may hold an answer. Agent, rewards, training rows and IFEval read thoughts with these two
functions alone.

Requests carry reasoning in the fields and nowhere else: Qwen3's templates read the field first, and
newer ones would render a block inside the text a second time. Both names are sent, because vLLM
from 0.16 on reads ``reasoning`` alone, and others ``reasoning_content`` alone.

The tool's schema is part of every prompt that a model is trained on and served with. So it is
frozen here, and the MCP server's own schema, which is longer (titles, defaults, an argument for
callers), is not used.
"""

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from pydantic import JsonValue

from deepsearch_rl.core.records import Message, ToolCall

OPEN_THINK = "<think>"
CLOSE_THINK = "</think>"
RETRIEVE_TOOL_NAME: Final = "retrieve"
RETRIEVE_TOOL: Final[dict[str, JsonValue]] = {
    "type": "function",
    "function": {
        "name": RETRIEVE_TOOL_NAME,
        "description": "Search the corpus for passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
"""The tool in OpenAI's function format. Changing a character of it needs new training of every model."""


OTHER_THOUGHTS = (
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
)
"""Tags of models whose templates do not know ``<think>`` (Gemma, Seed, Magistral, Kimi).

They stay in the text of a turn, which such a template renders as it is, but what they hold was not
said.
"""
_OPENING = (OPEN_THINK, *(opening for opening, _ in OTHER_THOUGHTS))
_CLOSING = (CLOSE_THINK, *(closing for _, closing in OTHER_THOUGHTS))
_THINK_TAG = re.compile("|".join(map(re.escape, (*_OPENING, *_CLOSING))))


class Thought(NamedTuple):
    """The reasoning of a turn without tags and outer white space, None where there is none, and the other text."""

    reasoning: str | None
    text: str
    closed: bool = True
    """False where the turn ended in the middle of its thought, so that it says nothing."""


def split_thought(message: Message) -> Thought:
    """Return the reasoning of a turn and the text after it, wherever the server put the reasoning.

    Only a block at the very beginning of the text is reasoning; it is dropped if it is empty or
    repeats the field. A block without a closing tag is all of the text. A text without such a block
    stays as it is.
    """
    block = Thought(None, message.content)
    if message.role != "assistant":
        return block
    before, closed, after = message.content.partition(CLOSE_THINK)
    start = before.lstrip()

    if closed and (OPEN_THINK not in start or start.startswith(OPEN_THINK)):
        block = Thought(start.removeprefix(OPEN_THINK).strip() or None, after.lstrip("\n"))
    elif not closed and start.startswith(OPEN_THINK):
        block = Thought(start.removeprefix(OPEN_THINK).strip() or None, "", closed=False)

    reasoning = (message.reasoning or "").strip()
    if not reasoning:
        return block
    text = block.text if block.reasoning in (None, reasoning) else message.content
    return Thought(reasoning, text.lstrip("\n"), block.closed)


def spoken_text(message: Message) -> str:
    """Return the text of a turn outside all of its thoughts, wherever they stand, closed or not."""
    text = split_thought(message).text
    spoken: list[str] = []
    depth = 0
    end = 0

    for tag in _THINK_TAG.finditer(text):
        if depth == 0:
            spoken.append(text[end : tag.start()])
        if tag[0] in _OPENING:
            depth += 1
        elif depth > 0:
            depth -= 1
        elif tag[0] == CLOSE_THINK:
            # The prompt opened it: the text before it was a thought, too
            spoken.clear()

        end = tag.end()

    if depth == 0:
        spoken.append(text[end:])
    return "".join(spoken)


def has_unclosed_thought(messages: Iterable[Message]) -> bool:
    """Return whether a turn ended, or called a tool, in the middle of its thought: a template would close it."""
    return any(not split_thought(message).closed for message in messages)


def assistant_turn(
    text: str,
    reasoning: str | None,
    calls: tuple[ToolCall, ...] = (),
    *,
    begins_in_thought: bool = False,
) -> Message:
    """Return a turn as a model wrote it.

    ``begins_in_thought``: the prompt ends in an opening tag, and the server leaves thoughts in the
    text. A text without a closing tag is then an unclosed thought, and gets the prompt's tag, by
    which every reader knows it.
    """
    if (
        begins_in_thought
        and reasoning is None
        and CLOSE_THINK not in text
        and not text.lstrip().startswith(OPEN_THINK)
    ):
        text = OPEN_THINK + text

    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


def chat_messages(
    messages: Iterable[Message], *, with_reasoning: bool = False
) -> list[dict[str, JsonValue]]:
    """Return messages as requests carry them: texts may be empty, but not null, which some servers refuse."""
    chat: list[dict[str, JsonValue]] = []
    for message in messages:
        reasoning, text, _ = split_thought(message)
        fields: dict[str, JsonValue] = {"role": message.role, "content": text}
        if with_reasoning and reasoning is not None:
            fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if message.tool_call_id is not None:
            fields["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]

        chat.append(fields)

    return chat


def search_call(query: str, number: int) -> ToolCall:
    """Return the call of a search; ``number`` distinguishes it from others of a conversation."""
    arguments = json.dumps({"query": query}, ensure_ascii=False)
    return ToolCall(id=f"call_{number}", name=RETRIEVE_TOOL_NAME, arguments=arguments)
