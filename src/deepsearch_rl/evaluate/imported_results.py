"""Results of other systems, read as our trajectories."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from deepsearch_rl.chat.chat_messages import spoken_text
from deepsearch_rl.core.answers import extract_answer
from deepsearch_rl.core.errors import CheckFailedError, ConfigError, RecordError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import (
    UNKNOWN_PROMPT,
    ForeignRecord,
    Message,
    OptionalText,
    RequiredText,
    RowName,
    StopReason,
    Text,
    Trajectory,
    is_missing,
)
from deepsearch_rl.data.flashrag import numbered_rows


def _error_text(error: object) -> object:
    """Return an error in any form as text; None where there was none, which some write as false or an empty object."""
    if is_missing(error) or not error:
        return None
    return error if isinstance(error, str) else json.dumps(error)


ErrorText = Annotated[str | None, BeforeValidator(_error_text)]


class _Output(ForeignRecord):
    pred: OptionalText = None
    answer: Text = Field(default="", description="the model's last text, with its answer tags")
    error: ErrorText = None


def _empty_output(output: object) -> object:
    """Return the output of a row that failed before it had one as an empty one."""
    return {} if is_missing(output) else output


class ForeignMetadata(ForeignRecord):
    """The part of another system's metadata that is used here; the rest may have any form."""

    question_type: OptionalText = None


class ForeignRow(ForeignRecord):
    """A question's id and golden answers in a row of another system; keys that are not used here are ignored."""

    id: RowName
    golden_answers: tuple[str, ...] = Field(min_length=1)
    metadata: ForeignMetadata | None = None

    @property
    def type_in_metadata(self) -> str:
        """The question's type; empty where it is not known."""
        return (self.metadata and self.metadata.question_type) or ""


class _ResultRow(ForeignRow):
    """A row of FlashRAG's ``intermediate_data.json`` or of DeepSearch-RL's ``results.jsonl``."""

    question: RequiredText
    output: Annotated[_Output, BeforeValidator(_empty_output)]

    def trajectory(self, model: str) -> Trajectory:
        """Return the row as a rollout of a model, with sample number 0."""
        text = self.output.answer or f"<answer>{self.output.pred or ''}</answer>"
        turn = Message(role="assistant", content=text)
        answer = (
            self.output.pred if self.output.pred is not None else extract_answer(spoken_text(turn))
        )
        # Where the other system's own answer is known, it counts and not what its text would give
        reason = StopReason.ANSWERED if answer else StopReason.NO_ANSWER_TAG
        return Trajectory(
            id=f"{self.id}#0",
            question_id=self.id,
            sample=0,
            question=self.question,
            golden_answers=self.golden_answers,
            question_type=self.type_in_metadata,
            model=model,
            prompt=UNKNOWN_PROMPT,
            temperature=0.0,
            messages=(Message(role="user", content=self.question), turn),
            answer="" if self.output.error else answer,
            stop_reason=StopReason.MODEL_ERROR if self.output.error else reason,
            error=self.output.error or None,
        )


def import_results(path: Path, out: Path, model: str) -> int:
    """Read another system's results as trajectories of one sample, and return how many there are.

    Their messages are the question and the last text, which is all that results hold. A row with an
    error becomes a failed rollout. Raise ConfigError where ``model`` is empty; ArtifactError or
    RecordError where the file is missing, malformed or names a question twice (FlashRAG's array
    counts entries as lines); CheckFailedError where it is empty.
    """
    if not model.strip():
        raise ConfigError("name the model that made the results (--model).")
    trajectories: dict[str, Trajectory] = {}

    for number, row in numbered_rows(path, _ResultRow):
        trajectory = row.trajectory(model)
        if trajectory.id in trajectories:
            raise RecordError(path, number, "id", f"{row.id!r} is the id of an earlier row too")
        trajectories[trajectory.id] = trajectory

    if not trajectories:
        raise CheckFailedError(f"{path} holds no results.")
    return write_jsonl(out, (trajectories[name] for name in sorted(trajectories)))
