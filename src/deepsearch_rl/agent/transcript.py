"""The record of one rollout while it runs: every message, every executed search and every token counted.

The transcript is the conversation: what is sent to the model next is rebuilt from it, so that a stored trajectory
holds exactly the messages that the model saw.
"""

import itertools
import json
import math
import re
from dataclasses import dataclass, field

from agents import ModelResponse, TResponseInputItem
from agents.exceptions import AgentsException
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepsearch_rl.agent.tool import RETRIEVE_TOOL
from deepsearch_rl.answers import extract_answer
from deepsearch_rl.records import Message, Question, Retrieval, StopReason, TokenUsage, ToolCall, Trajectory

_RAW_CALL = re.compile(r"\s*<tool_call>.*?</tool_call>\s*", re.DOTALL)
_SCHEMA_CHARACTERS = len(json.dumps(RETRIEVE_TOOL)) + 400
"""The tool's schema and the words around it: part of every prompt, but of no message."""
_TOOL_NAME = RETRIEVE_TOOL["function"]["name"]  # type: ignore[index,call-overload]


class RolloutStopped(AgentsException):
    """Ends a rollout from inside the Agents SDK, which lets its own exceptions through unchanged."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class SearchArguments(BaseModel):
    """The arguments of a search as the model wrote them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """What a trajectory says of how it came about."""

    model: str
    prompt: str
    temperature: float


@dataclass(slots=True)
class Transcript:
    """A running rollout."""

    messages: list[Message]
    retrievals: list[Retrieval] = field(default_factory=list)
    searches: int = 0
    usage: list[TokenUsage] = field(default_factory=list)
    _characters_counted: int = 0

    def add_turn(self, response: ModelResponse) -> Message:
        """Record what the model answered and return it as one assistant message."""
        calls = tuple(_tool_call(item) for item in response.output if isinstance(item, ResponseFunctionToolCall))
        content = "".join(_text(item) for item in response.output if isinstance(item, ResponseOutputMessage))
        if calls:  # some servers repeat the calls as raw text; the model's own template would render them twice
            content = _RAW_CALL.sub("", content)
        reasoning = "".join(_reasoning(item) for item in response.output if isinstance(item, ResponseReasoningItem))
        turn = Message(role="assistant", content=whole(content), reasoning=whole(reasoning) or None, tool_calls=calls)
        self.messages.append(turn)
        if response.usage.total_tokens:  # zeros stand for an endpoint that does not count
            self.add_usage(response.usage.input_tokens, response.usage.output_tokens)
        return turn

    def add_usage(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count the tokens of the last turn's call."""
        self.usage.append(TokenUsage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens))
        self._characters_counted = self._characters()

    def add_tool_result(self, call_id: str, text: str) -> None:
        """Record what the model is shown for one of its calls."""
        self.messages.append(Message(role="tool", content=text, tool_call_id=call_id))

    def expected_prompt_tokens(self) -> int:
        """Tokens of the next prompt: those of the last call, and its share of tokens per character for what is new.

        0 before the first call and where the endpoint counts nothing.
        """
        last_call_tokens = self.usage[-1].prompt_tokens + self.usage[-1].completion_tokens if self.usage else 0
        if not last_call_tokens:
            return 0
        new = self._characters() - self._characters_counted
        return last_call_tokens + math.ceil(new * last_call_tokens / self._characters_counted)

    def _characters(self) -> int:
        written = sum(len(message.content) for message in self.messages)
        called = sum(len(call.arguments) for message in self.messages for call in message.tool_calls)
        return _SCHEMA_CHARACTERS + written + called

    @property
    def has_answer_tags(self) -> bool:
        """Whether the last message holds an opening answer tag and a closing one after it."""
        text = self.messages[-1].content
        return 0 <= text.find("<answer>") < text.rfind("</answer>")

    @property
    def answer(self) -> str:
        """The answer in the last message, empty where it holds none."""
        return extract_answer(self.messages[-1].content)

    def input_items(self) -> list[TResponseInputItem]:
        """The conversation without the system prompt, as the Agents SDK takes it.

        Every assistant turn has a text, if only an empty one: a content of ``null`` is refused by some servers.
        """
        items: list[TResponseInputItem] = []
        for message in self.messages[1:]:
            items.extend(_input_items(message))
        return items

    def finish(
        self, question: Question, sample: int, key: RolloutKey, reason: StopReason, error: str | None
    ) -> Trajectory:
        """The record of the rollout once it has ended."""
        return Trajectory(
            id=f"{question.id}#{sample}",
            question_id=question.id,
            sample=sample,
            question=question.question,
            golden_answers=question.golden_answers,
            question_type=question.metadata.question_type,
            model=key.model,
            prompt=key.prompt,
            temperature=key.temperature,
            messages=self.numbered_messages(),
            retrievals=tuple(self.retrievals),
            answer=self.answer if reason is StopReason.ANSWERED else "",
            stop_reason=reason,
            error=error and whole(error),
            usage=tuple(self.usage),
        )

    def numbered_messages(self) -> tuple[Message, ...]:
        """The messages with call ids counted from ``call_1``, since servers draw them at random."""
        names: dict[str, str] = {}
        numbers = itertools.count(1)
        numbered: list[Message] = []
        for message in self.messages:
            # A later turn may use an id again: its results follow it.
            names |= {call.id: f"call_{next(numbers)}" for call in message.tool_calls}
            numbered.append(_renamed(message, names))
        return tuple(numbered)


def parse_search(call: ToolCall) -> str:
    """The query of a call.

    Raises:
        RolloutStopped: the call names another tool, or its arguments are not the JSON that the schema asks for.
    """
    if call.name != _TOOL_NAME:
        raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, f"there is no tool named {call.name!r}")
    try:
        return SearchArguments.model_validate_json(call.arguments).query
    except ValidationError as error:
        first = error.errors()[0]
        detail = f"arguments {call.arguments!r} of {call.name!r}: {first['msg']}"
        raise RolloutStopped(StopReason.TOOL_CALL_UNPARSABLE, detail) from error


def _tool_call(item: ResponseFunctionToolCall) -> ToolCall:
    return ToolCall(id=item.call_id, name=item.name, arguments=_compact(item.arguments))


def _compact(arguments: str) -> str:
    """Arguments as `json.dumps` writes them, which is how training renders them.

    What is no JSON, or none that can be written (too deep, thousands of digits, half a surrogate pair), is left as it
    is, for :func:`parse_search` to refuse.
    """
    try:
        compact = json.dumps(json.loads(arguments), ensure_ascii=False)
        compact.encode()
    except (ValueError, RecursionError):
        return whole(arguments)
    return compact


def whole(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can escape and no file can hold, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(item: ResponseOutputMessage) -> str:
    return "".join(part.text if part.type == "output_text" else part.refusal for part in item.content)


def _reasoning(item: ResponseReasoningItem) -> str:
    return "".join(part.text for part in item.summary)


def _input_items(message: Message) -> list[TResponseInputItem]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id or "", "output": message.content}]
    if message.role == "user":
        return [{"role": "user", "content": message.content}]
    text: TResponseInputItem = {
        "type": "message",
        "role": "assistant",
        "id": "",
        "status": "completed",
        "content": [{"type": "output_text", "text": message.content, "annotations": []}],
    }
    calls: list[TResponseInputItem] = [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return [text, *calls]


def _renamed(message: Message, names: dict[str, str]) -> Message:
    calls = tuple(call.model_copy(update={"id": names[call.id]}) for call in message.tool_calls)
    answered = None if message.tool_call_id is None else names[message.tool_call_id]
    return message.model_copy(update={"tool_calls": calls, "tool_call_id": answered})
