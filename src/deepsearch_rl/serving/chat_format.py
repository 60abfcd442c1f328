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
    """Renders conversations and decodes answers with one model's tokenizer."""

    tokenizer: PreTrainedTokenizerBase

    def prompt_ids(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, continue_last: bool = False
    ) -> list[int]:
        """Return a conversation's tokens up to where the model's next turn begins, or to the end of its last message.

        Raises ConversationError if the chat template refuses the messages.
        """
        try:
            tokens = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=not continue_last,
                continue_final_message=continue_last,
                return_dict=False,
            )
        except (jinja2.TemplateError, KeyError, TypeError, ValueError) as error:
            raise ConversationError(f"the conversation cannot be rendered: {error}") from error
        return cast(list[int], tokens)

    def opening_ids(self) -> list[int]:
        """Return the tokens that end every prompt: those that open the model's turn."""
        question = [{"role": "user", "content": "?"}]
        conversation = self.tokenizer.apply_chat_template(question, add_generation_prompt=False, return_dict=False)
        return self.prompt_ids(question, None)[len(cast(list[int], conversation)) :]


def load_chat_format(folder: Path) -> ChatFormat:
    """Open the tokenizer of a model folder; raise ArtifactError if it has no chat template."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.chat_template:
        raise ArtifactError(f"{folder} has no chat template, so conversations cannot be rendered for it.")
    return ChatFormat(tokenizer)


def assistant_message(text: str) -> dict[str, Any]:
    """Return an answer as a Chat Completions message.

    If all its tool calls parse, they become ``tool_calls`` and the text before them the content (None if there is
    none), to the letter, as vLLM's hermes parser leaves it. If one does not, the text stays as the model wrote it, so
    that a caller can see what went wrong.
    """
    before, *pieces = text.split(OPEN_TAG)
    bodies = [piece.partition(CLOSE_TAG) for piece in pieces]
    try:
        calls = [_Call.model_validate_json(body) for body, _, _ in bodies]
    except ValidationError:
        calls = []
    if not calls or not all(closing for _, closing, _ in bodies):
        return {"role": "assistant", "content": text}
    functions = [{"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)} for call in calls]
    tool_calls = [
        {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function} for function in functions
    ]
    return {"role": "assistant", "content": before or None, "tool_calls": tool_calls}
