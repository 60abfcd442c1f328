"""Digests of the texts that stand around every question: system prompt, tool schema and chat template.

A model learns with these very texts and is served with them. So rollouts and trained models carry
their digests, and whoever reads them compares: an edited prompt is another prompt, whatever its
name.
"""

import hashlib
import json
from typing import Final, Literal, Self

from pydantic import Field, JsonValue

from deepsearch_rl.core.records import Record

PromptPart = Literal["prompt", "tool", "template"]
# How messages and tables call the parts
PART_NAMES: Final[dict[PromptPart, str]] = {
    "prompt": "system prompt",
    "tool": "tool schema",
    "template": "chat template",
}


def text_digest(text: str) -> str:
    """Return the hex SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def tools_text(*tools: dict[str, JsonValue]) -> str:
    """Return tools as the JSON text that training rows hold; the order of keys counts, for a model reads it."""
    return json.dumps(tools, ensure_ascii=False)


class PromptDigests(Record):
    """What rollouts were made with."""

    prompt: str = Field(description="SHA-256 of the system prompt, without surrounding white space")
    tool: str = Field(
        description="SHA-256 of the tools as JSON text; of an empty list where no tool is offered"
    )

    @classmethod
    def of(cls, prompt: str, tools: str) -> Self:
        """Return the digests of a system prompt and of tools, which are given as :func:`tools_text` writes them."""
        return cls(prompt=text_digest(prompt.strip()), tool=text_digest(tools))

    def with_template(self, template: str) -> "TrainedWith":
        """Return these digests and that of a model's chat template."""
        return TrainedWith(prompt=self.prompt, tool=self.tool, template=text_digest(template))

    def other_parts(self, other: "PromptDigests") -> tuple[PromptPart, ...]:
        """Return the parts that both have and that differ."""
        ours = self.model_dump()
        theirs = other.model_dump()
        parts: list[PromptPart] = []
        for part in PART_NAMES:
            if part in ours and part in theirs and ours[part] != theirs[part]:
                parts.append(part)

        return tuple(parts)


class TrainedWith(PromptDigests):
    """What a model was trained with: ``trained_with`` in the manifest of its folder."""

    template: str = Field(
        description="SHA-256 of the chat template that rendered the conversations"
    )


def parts_text(parts: tuple[PromptPart, ...]) -> str:
    """Return the names of parts: ``system prompt and tool schema``."""
    return " and ".join(PART_NAMES[part] for part in parts)
