"""Other systems' results, read as our trajectories."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from deepsearch_rl.answers import extract_answer
from deepsearch_rl.errors import CheckFailedError, ConfigError, RecordError
from deepsearch_rl.files import numbered_records, parse_record, read_json, write_jsonl
from deepsearch_rl.records import Message, NonEmpty, StopReason, Trajectory

UNKNOWN = "unknown"
"""The prompt of results that do not name theirs."""


class Output(BaseModel):
    """What FlashRAG and DeepSearch-RL keep of an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pred: str | None = None
    answer: str = Field(default="", description="the model's last text, answer tags and all")
    error: str | None = None


class ForeignMetadata(BaseModel):
    """What of another system's metadata counts here; the rest may have any form."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    question_type: str | None = None


class ResultRow(BaseModel):
    """A row of FlashRAG's ``intermediate_data.json`` or of DeepSearch-RL's ``results.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    id: NonEmpty
    question: NonEmpty
    golden_answers: tuple[str, ...] = Field(min_length=1)
    metadata: ForeignMetadata | None = None
    output: Output


def import_results(path: Path, out: Path, model: str) -> int:
    """Read another system's results as trajectories of one sample, and return how many there are.

    They hold the question and the last text, which is all that was kept; prompt and temperature are not known. A row
    with an error, which that system counts as an empty answer, becomes a failed rollout.

    Raises:
        ConfigError: ``model`` is empty.
        ArtifactError, RecordError: the file is missing or malformed, or names a question twice; FlashRAG's array counts
            entries as lines.
        CheckFailedError: it holds no results.
    """
    if not model.strip():
        raise ConfigError("name the model that made the results (--model).")
    trajectories: dict[str, Trajectory] = {}
    for number, row in _read_results(path):
        made = _trajectory(row, model)
        if made.id in trajectories:
            raise RecordError(path, number, "id", f"{row.id!r} stands further up too")
        trajectories[made.id] = made
    if not trajectories:
        raise CheckFailedError(f"{path} holds no results.")
    return write_jsonl(out, (trajectories[name] for name in sorted(trajectories)))


def _read_results(path: Path) -> Iterator[tuple[int, ResultRow]]:
    if path.is_file() and _begins_with_bracket(path):
        rows = enumerate(read_json(path), 1)
        return ((number, parse_record(ResultRow, json.dumps(row), path, number)) for number, row in rows)
    return numbered_records(path, ResultRow)


def _begins_with_bracket(path: Path) -> bool:
    with path.open("rb") as data:
        return data.read(64).lstrip()[:1] == b"["


def _trajectory(row: ResultRow, model: str) -> Trajectory:
    text = row.output.answer or f"<answer>{row.output.pred or ''}</answer>"
    answer = row.output.pred if row.output.pred is not None else extract_answer(text)
    said = StopReason.ANSWERED if answer else StopReason.NO_ANSWER_TAG
    return Trajectory(
        id=f"{row.id}#0",
        question_id=row.id,
        sample=0,
        question=row.question,
        golden_answers=row.golden_answers,
        question_type=(row.metadata and row.metadata.question_type) or "",
        model=model,
        prompt=UNKNOWN,
        temperature=0.0,
        messages=(Message(role="user", content=row.question), Message(role="assistant", content=text)),
        answer="" if row.output.error else answer,
        stop_reason=StopReason.MODEL_ERROR if row.output.error else said,
        error=row.output.error or None,
    )
