"""Between messages and tokens: the model's own chat template one way, its tool calls the other (Hermes format)."""

import functools
import itertools
import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import jinja2
from pydantic import BaseModel, JsonValue, ValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from deepsearch_rl.core.errors import ArtifactError

# A part is a message or less; all rollouts share the system prompt, a group shares its question
REMEMBERED_PARTS = 4096
# What may stand beside a special token; a tokenizer that treats the beginning of a text, or the
# white space around a special token, in its own way gives itself away with them
PROBES = ("Word", " word", "word ", "\n\nWord\n")


class TextTokens:
    """Encodes texts with a tokenizer, and remembers the tokens of their parts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._part_ids = functools.lru_cache(REMEMBERED_PARTS)(self._encode)
        marks = [mark for mark in _special_tokens(tokenizer) if self._is_cut_at(mark)]
        # The longest first: one may begin with another
        marks.sort(key=len, reverse=True)
        self._mark = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None

    @property
    def is_cut(self) -> bool:
        """Whether texts are encoded in parts; False where the tokenizer gives other tokens then."""
        return self._mark is not None

    def ids(self, text: str) -> list[int]:
        """Return the tokens that the tokenizer gives for a text, without any that it adds around it."""
        if self._mark is None:
            return list(self._encode(text))

        ids: list[int] = []
        for part in self._mark.split(text):
            if part:
                ids.extend(self._part_ids(part))
        return ids

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _is_cut_at(self, mark: str) -> bool:
        """Return whether what stands before and after a special token can be encoded alone."""
        for before, after in itertools.product(PROBES, PROBES):
            parts = self._part_ids(before) + self._part_ids(mark) + self._part_ids(after)
            if self._encode(before + mark + after) != parts:
                return False
        return True


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


# More than templates write after the last message
PROMPT_END_TOKENS = 16
OPEN_TAG = "<tool_call>"
OPEN_THINK = "<think>"
CLOSE_THINK = "</think>"
# What a text holds besides words, in order. A ``<think>`` inside a call opens nothing, and a call
# inside a thought is none.
_THOUGHT_OR_CALL = re.compile(
    r"<think>.*?(?:</think>|\Z)|<tool_call>(?P<body>.*?)(?P<closed></tool_call>|\Z)|(?P<end_of_thought></think>)",
    re.DOTALL,
)


class ConversationError(ValueError):
    """The messages cannot be rendered."""


class _Call(BaseModel):
    name: str
    arguments: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Renders conversations and decodes answers with one model's tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    text_tokens: TextTokens

    def prompt_ids(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        continue_last: bool = False,
    ) -> list[int]:
        """Return a conversation's tokens up to where the model's next turn begins, or to the end of its last message.

        Raises ConversationError if the chat template refuses the messages.
        """
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=not continue_last,
                continue_final_message=continue_last,
                tokenize=False,
            )
        except (jinja2.TemplateError, KeyError, TypeError, ValueError) as error:
            raise ConversationError(f"the conversation cannot be rendered: {error}") from error

        return self.text_tokens.ids(cast(str, text))

    def opening_ids(self) -> list[int]:
        """Return the tokens that end every prompt: those that open the model's turn."""
        question = [{"role": "user", "content": "?"}]
        conversation = self.tokenizer.apply_chat_template(
            question, add_generation_prompt=False, return_dict=False
        )
        return self.prompt_ids(question, None)[len(cast(list[int], conversation)) :]

    def prompt_opens_thought(self) -> bool:
        """Return whether every prompt ends in an opening think tag, as those of models that always think do."""
        return self.opens_thought(self.prompt_ids([{"role": "user", "content": "?"}], None))

    def opens_thought(self, prompt: Sequence[int], continued: str = "") -> bool:
        """Return whether the answer to a prompt begins inside a thought.

        Templates of models that always think end the prompt with ``<think>``; ``continued`` is the
        text of a last message that the answer continues.
        """
        if continued:
            return continued.rfind(OPEN_THINK) > continued.rfind(CLOSE_THINK)
        end = str(self.tokenizer.decode(list(prompt[-PROMPT_END_TOKENS:])))
        return end.rstrip().endswith(OPEN_THINK)


def load_chat_format(folder: Path) -> ChatFormat:
    """Open the tokenizer of a model folder; raise ArtifactError if it has no chat template."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise ArtifactError(
            f"{folder} has no chat template, so conversations cannot be rendered for it."
        )

    return ChatFormat(tokenizer, TextTokens(tokenizer))


class _CallText(NamedTuple):
    """A tool call in an answer: where it begins, what stands between its tags, whether it was closed."""

    start: int
    body: str
    closed: bool


def _calls_outside_thoughts(text: str, in_thought: bool) -> list[_CallText]:
    """Return the tool calls of an answer; what a thought mentions is no call, whether the thought was closed or not.

    ``in_thought`` says that the prompt opened a thought. A ``</think>`` that nothing opened ends
    one all the same.
    """
    opened = OPEN_THINK if in_thought else ""
    calls: list[_CallText] = []

    for block in _THOUGHT_OR_CALL.finditer(opened + text):
        if block["body"] is not None:
            calls.append(
                _CallText(block.start() - len(opened), block["body"], bool(block["closed"]))
            )
        elif block["end_of_thought"]:
            calls.clear()

    return calls


def assistant_message(
    text: str, *, in_thought: bool = False, may_call: bool = True
) -> dict[str, Any]:
    """Return an answer as a Chat Completions message.

    If all its tool calls parse, they become ``tool_calls`` and the text before them the content
    (None if there is none), to the letter, as vLLM's hermes parser leaves it. If one does not, the
    text stays as the model wrote it, so that a caller can see what went wrong.

    Args:
        text: what the model wrote.
        in_thought: whether the prompt opened a thought, which the text then continues.
        may_call: whether calls are looked for at all.
    """
    calls = _calls_outside_thoughts(text, in_thought) if may_call else []
    functions: list[dict[str, str]] = []

    try:
        for call in calls:
            function = _Call.model_validate_json(call.body)
            arguments = json.dumps(function.arguments, ensure_ascii=False)
            functions.append({"name": function.name, "arguments": arguments})
    except ValidationError:
        # One call that does not parse leaves the whole answer as it was written
        functions = []

    if not functions or not all(call.closed for call in calls):
        return {"role": "assistant", "content": text}

    tool_calls: list[dict[str, Any]] = []
    for function in functions:
        id_ = f"call_{uuid.uuid4().hex[:12]}"
        tool_calls.append({"id": id_, "type": "function", "function": function})

    content = text[: calls[0].start] or None
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def settled_content(text: str, *, in_thought: bool = False, may_call: bool = True) -> str:
    """Return the part of an unfinished answer that is content whatever follows.

    It ends before the first call, and before what may become the tag of one.
    """
    if not may_call:
        return text
    calls = _calls_outside_thoughts(text, in_thought)
    return text[: calls[0].start] if calls else without_begun(text, OPEN_TAG)


def without_begun(text: str, marker: str) -> str:
    """Return a text without the longest end of it that ``marker`` begins with."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return text[:-length]

    return text
