"""Between messages and tokens: the model's own chat template one way, its tool calls the other (Hermes format)."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jinja2
from pydantic import BaseModel, JsonValue, ValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from deepsearch_rl.errors import ArtifactError

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"


class ConversationError(ValueError):
    """The messages cannot be rendered."""


class _Call(BaseModel):
    name: str
    arguments: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Renders conversations and parses answers with one model's tokenizer."""

    tokenizer: PreTrainedTokenizerBase

    def prompt_ids(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, continue_last: bool = False
    ) -> list[int]:
        """Tokens of a conversation up to where the model's next turn begins, or to the end of its last message.

        Raises:
            ConversationError: a message lacks what the chat template needs.
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
        return list(self.tokenizer.encode(cast(str, text), add_special_tokens=False))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without the token that ends it."""
        return cast(str, self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def assistant_message(text: str) -> dict[str, Any]:
    """An answer as a Chat Completions message.

    With tool calls that all parse, they are its ``tool_calls`` and the text before them its content (None where there
    is none). If one does not, the text stays as the model wrote it, which tells a caller what went wrong.
    """
    calls = _parse_calls(text)
    if not calls:
        return {"role": "assistant", "content": text}
    before = text.partition(OPEN_TAG)[0].strip()
    return {"role": "assistant", "content": before or None, "tool_calls": [_function_call(call) for call in calls]}


def _parse_calls(text: str) -> list[_Call]:
    """All calls of a text, or none if one of them is not closed or is not a name with an object of arguments."""
    pieces = [piece.partition(CLOSE_TAG) for piece in text.split(OPEN_TAG)[1:]]
    if not all(closed for _, closed, _ in pieces):
        return []
    try:
        return [_Call.model_validate_json(body) for body, _, _ in pieces]
    except ValidationError:
        return []


def _function_call(call: _Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}


def load_chat_format(folder: Path) -> ChatFormat:
    """Open the tokenizer of a model folder.

    Raises:
        ArtifactError: it has no chat template.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise ArtifactError(f"{folder} has no chat template, so conversations cannot be rendered for it.")
    return ChatFormat(tokenizer)
