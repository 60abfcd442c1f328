"""Native tool calls: a system prompt, the frozen schema, and as many calls in one turn as the model likes."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepsearch_rl.agent.chat_messages import chat_messages, split_thought
from deepsearch_rl.agent.completion import CalledFunction, Said
from deepsearch_rl.agent.protocols.protocol import AgentProtocol
from deepsearch_rl.agent.tool import RETRIEVE_TOOL, search_call
from deepsearch_rl.agent.transcript import RolloutStopped, whole
from deepsearch_rl.answers import has_answer_tags
from deepsearch_rl.records import Message, ProtocolName, StopReason, ToolCall
from deepsearch_rl.retrieval.passages import Found, format_passages

_RAW_CALL = re.compile(r"\s*<tool_call>.*?</tool_call>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FunctionCalling(AgentProtocol):
    """The tool calls of Chat Completions.

    Args:
        instruction: the system prompt.
        history_reasoning: send the reasoning of earlier turns back with them.
        offer_tool: name the tool in requests; without it the model can only answer.
    """

    instruction: str
    history_reasoning: bool = False
    offer_tool: bool = True

    @property
    def name(self) -> ProtocolName:  # noqa: D102 - the protocol's
        return "function_calling"

    def opening(self, question: str) -> list[Message]:  # noqa: D102
        return [Message(role="system", content=self.instruction), Message(role="user", content=question)]

    def request(self, messages: Sequence[Message]) -> dict[str, Any]:  # noqa: D102
        sent = {"messages": chat_messages(messages, with_reasoning=self.history_reasoning)}
        return {**sent, "tools": [RETRIEVE_TOOL]} if self.offer_tool else sent

    def turn(self, said: Said, number: int, cut: bool) -> Message:  # noqa: D102, ARG002 - servers name calls themselves
        content = said.content or said.refusal or ""
        if said.tool_calls:  # some servers repeat the calls as raw text; the template would render them twice
            content = _RAW_CALL.sub("", content)
        calls = tuple(_tool_call(call) for call in said.tool_calls or ())
        reasoning = said.thought and whole(said.thought)
        return Message(role="assistant", content=whole(content), reasoning=reasoning, tool_calls=calls)

    def search(self, query: str) -> Message:  # noqa: D102
        return Message(role="assistant", tool_calls=(search_call(query, 1),))

    def complete(self, turn: Message) -> bool:  # noqa: D102
        return has_answer_tags(split_thought(turn).text)

    def correction(self, turn: Message) -> None:  # noqa: D102
        if turn.tool_calls:
            return
        text = split_thought(turn).text
        if "<tool_call>" in text:
            raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, "a tool call that the server could not parse")
        if not text:
            raise RolloutStopped(StopReason.NO_ANSWER_TAG, "an empty turn")

    def observation(self, passages: Sequence[Found]) -> str:  # noqa: D102
        return format_passages(passages)

    def followed_by(self, observation: str, notice: str) -> str:  # noqa: D102
        return f"{observation}\n\n{notice}"

    def notice(self, text: str) -> str:  # noqa: D102
        return text


def _tool_call(call: CalledFunction) -> ToolCall:
    return ToolCall(id=call.id, name=call.function.name, arguments=_compact(call.function.arguments))


def _compact(arguments: str) -> str:
    """Arguments as `json.dumps` writes them, which is how training renders them.

    What is no JSON, or none that can be written (too deep, thousands of digits, half a surrogate pair), is left as it
    is, to be refused when the call is read.
    """
    try:
        compact = json.dumps(json.loads(arguments), ensure_ascii=False)
        compact.encode()
    except (ValueError, RecursionError):
        return whole(arguments)
    return compact
