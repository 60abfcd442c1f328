"""Questions as a model writes them about passages, with answers and the sentences that prove them."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from deepsearch_rl.chat.completion import replace_lone_surrogates
from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.records import Chunk, ForeignRecord, Text, is_missing
from deepsearch_rl.data.question_writing.links import PassageGroup

PROMPTS = Path(__file__).with_name("prompts")
UNANSWERABLE = "unanswerable"
# Types of question by the kind of passage group
TYPES = {
    "single": ("single",),
    "pair": ("bridge", "comparison", "temporal", UNANSWERABLE),
    "chain": ("bridge",),
}


def _as_text(value: object) -> object:
    # Models write numbers, true and false as answers
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int | float) and not is_missing(value) else value


def _none_as_empty(rows: object) -> object:
    return () if rows is None else rows


# Text of a model that can be encoded as UTF-8
WrittenText = Annotated[Text, BeforeValidator(_as_text), AfterValidator(replace_lone_surrogates)]


class ProofRow(ForeignRecord):
    """A sentence of a passage, counted from 1."""

    passage: int
    sentence: WrittenText


class WrittenQuestion(ForeignRecord):
    """A question as the model writes it."""

    type: Text
    question: WrittenText
    answer: WrittenText
    evidence: Annotated[tuple[ProofRow, ...], BeforeValidator(_none_as_empty)] = ()


class ReplyRow(ForeignRecord):
    """The model's reply."""

    questions: tuple[WrittenQuestion, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that nobody has checked yet, and the passages that it was written about."""

    group: PassageGroup
    type: str
    question: str
    answer: str
    # Each sentence with the passage that it is quoted from
    proofs: tuple[tuple[Chunk, str], ...]

    @property
    def is_unanswerable(self) -> bool:
        """Whether the right answer is that there is none."""
        return self.type == UNANSWERABLE

    @property
    def golden_answer(self) -> str:
        """The answer as it is scored."""
        return INSUFFICIENT if self.is_unanswerable else self.answer


def prompt_file(name: str) -> Template:
    """Return a prompt of this folder, ``write``, ``answer`` or ``recall``."""
    return Template((PROMPTS / f"{name}.txt").read_text(encoding="utf-8"))


def writing_prompt(group: PassageGroup) -> str:
    """Return what the writer is asked about some passages."""
    kinds = tomllib.loads((PROMPTS / "kinds.toml").read_text(encoding="utf-8"))
    return prompt_file("write").substitute(
        kinds=kinds[group.kind].strip(), passages=shown_passages(group.chunks)
    )


def shown_passages(chunks: Sequence[Chunk]) -> str:
    """Return passages with their numbers, from 1."""
    return "\n\n".join(f"[{number}] {chunk.contents}" for number, chunk in enumerate(chunks, 1))


def read_drafts(reply: str, group: PassageGroup) -> list[Draft]:
    """Return the questions of a reply, none unless it has a JSON object of the requested form.

    A question of another type, or with a proof from a passage that was not shown, makes the whole
    reply unreadable.
    """
    # Models write text before and after their JSON
    start = reply.find("{")
    end = reply.rfind("}") + 1
    try:
        rows = ReplyRow.model_validate(json.loads(reply[start:end])).questions
    except (ValueError, ValidationError, RecursionError):
        return []

    drafts: list[Draft] = []
    for row in rows:
        numbers = [proof.passage for proof in row.evidence]
        is_complete = bool(row.question.strip()) and bool(row.answer.strip())
        # Passages are numbered from 1 in the prompt
        is_shown = all(1 <= number <= len(group.chunks) for number in numbers)
        if row.type not in TYPES[group.kind] or not is_complete or not is_shown:
            return []

        proofs: list[tuple[Chunk, str]] = []
        for proof in row.evidence:
            proofs.append((group.chunks[proof.passage - 1], proof.sentence.strip()))

        question = row.question.strip()
        drafts.append(Draft(group, row.type, question, row.answer.strip(), tuple(proofs)))

    return drafts
