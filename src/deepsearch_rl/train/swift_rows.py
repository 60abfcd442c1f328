"""Rows for ms-swift's SFT, with the reasoning of their turns (docs/contracts.md, section 2).

ms-swift renders the text of an assistant turn and a ``tool_call`` message per call one after the
other. Chat templates like Qwen's put a newline between text and calls, so the row's text ends in
one. The text begins with the turn's reasoning, wherever the server had put it.

A row must hold the prompts that are served. If the agent sends all reasoning back, one row trains
every turn. If not, each turn is a row of its own: the messages before it without reasoning, and the
turn with its reasoning.
"""

import json
import logging
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from deepsearch_rl.chat.chat_messages import (
    CLOSE_THINK,
    OPEN_THINK,
    RETRIEVE_TOOL,
    split_thought,
)
from deepsearch_rl.chat.prompts import PromptDigests, tools_text
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Record, Trajectory
from deepsearch_rl.train.swift import fitting_rows

_TOOLS = tools_text(RETRIEVE_TOOL)

_LOG = logging.getLogger(__name__)


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


def read_rows(rows: Path) -> tuple[int, PromptDigests]:
    """Return how many rows a file holds, and the digests of the prompt and the tools that all of them have.

    Raise ArtifactError where there is none, ConfigError where rows differ in them, RecordError for
    what is no row.
    """
    count = 0
    prompts: set[PromptDigests] = set()
    for row in read_jsonl(rows, SwiftRow) if rows.is_file() else ():
        count += 1
        # A model learns one prompt: rows of two would be served by neither
        prompts.add(row.prompt_digests())

    if not count:
        raise ArtifactError(
            f"{rows} holds no rows to train on; look at the drop counts of the filter stage."
        )

    if len(prompts) > 1:
        raise ConfigError(
            f"the rows in {rows} have {len(prompts)} different system prompts or tool schemas, and "
            "a model is trained with one; run the stages synthesize and filter again."
        )

    return count, prompts.pop()


def require_fitting_row(rows: Path, model: Path, max_length: int) -> None:
    """Raise ConfigError where the texts of every row have more tokens than ``max_length``.

    The tokens are those of the model's tokenizer.json; a model that has none is not refused.
    """
    file = model / "tokenizer.json"
    if not file.is_file():
        return

    tokenizer = Tokenizer.from_file(str(file))
    # One that cuts its input, as a model needs it, would count too few
    tokenizer.no_truncation()
    tokenizer.no_padding()
    shortest = 0

    for row in read_jsonl(rows, SwiftRow):
        texts = [row.tools, *(message.content for message in row.messages)]
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        tokens = sum(map(len, encodings))
        if tokens <= max_length:
            return

        shortest = min(shortest or tokens, tokens)

    raise ConfigError(
        f"every row in {rows} is longer than sft.max_length = {max_length}, so none would be left to "
        f"train on: the texts of the shortest alone have {shortest} tokens. Raise sft.max_length; "
        "`tokens` in the report of the stage filter says how long rows are."
    )


def trained_rows(count: int, scratch: Path, max_length: int) -> int:
    """Return how many of ``count`` rows were not too long; warn where some were."""
    fitting = fitting_rows(scratch)
    if fitting is None or fitting == count:
        return count

    _LOG.warning(
        "%d of %d rows are longer than sft.max_length = %d and were left out; raise it, or lower "
        "filter.max_tokens, which counts such rows as dropped.",
        count - fitting,
        count,
        max_length,
    )
    return fitting
