"""Files of other systems: rows written for their trainers, and their results read back as our trajectories.

Every frame is checked with pandera before it gets its name: what a trainer would refuse an hour into a run is refused
here, by column.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaError, SchemaErrors
from pydantic import BaseModel, ConfigDict, Field

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.answers import extract_answer
from deepsearch_rl.errors import CheckFailedError, RecordError, UnknownNameError
from deepsearch_rl.files import atomic_file, numbered_records, parse_record, read_json, read_jsonl, write_jsonl
from deepsearch_rl.records import Message, NonEmpty, Question, Record, StopReason, Trajectory
from deepsearch_rl.trajectories.convert import swift_row
from deepsearch_rl.trajectories.exports import rlinf_row, search_r1_row, trl_row, verl_row

UNKNOWN = "unknown"
"""The prompt of results that do not name theirs."""


@dataclass(frozen=True, slots=True)
class Source:
    """Of RL rows: which set and split the questions are, and the prompt that stands before them."""

    dataset: str
    split: str
    prompt: str


def _filled(values: pd.Series) -> pd.Series:
    return values.map(lambda value: len(value) > 0)


def _roles_begin(*roles: str) -> Callable[[pd.Series], pd.Series]:
    return lambda prompts: prompts.map(lambda turns: tuple(turn["role"] for turn in turns) == roles)


def _has_targets(rewards: pd.Series) -> pd.Series:
    return rewards.map(lambda reward: len(reward["ground_truth"]["target"]) > 0)


def _answered(conversations: pd.Series) -> pd.Series:
    return conversations.map(lambda turns: turns[-1]["role"] == "assistant" and bool(turns[-1]["content"]))


_TEXT = pa.Column(str, pa.Check(_filled, name="not empty"))
_CONVERSATION = pa.Column(object, pa.Check(_answered, name="ends in an assistant's answer"))
_RL = {
    "data_source": _TEXT,
    "ability": _TEXT,
    "reward_model": pa.Column(object, pa.Check(_has_targets, name="has golden answers")),
    "extra_info": pa.Column(object),
}
SCHEMAS: Mapping[str, pa.DataFrameSchema] = {
    "ms-swift": pa.DataFrameSchema({"tools": _TEXT, "messages": _CONVERSATION}, strict=True),
    "trl": pa.DataFrameSchema({"tools": pa.Column(object), "messages": _CONVERSATION}, strict=True),
    "search-r1": pa.DataFrameSchema(
        {**_RL, "prompt": pa.Column(object, pa.Check(_roles_begin("user"), name="one user message"))}, strict=True
    ),
    "verl": pa.DataFrameSchema(
        {**_RL, "prompt": pa.Column(object, pa.Check(_roles_begin("system", "user"), name="system, then user"))},
        strict=True,
    ),
    "rlinf": pa.DataFrameSchema(
        {"prompt": _TEXT, "solutions": pa.Column(object, pa.Check(_filled, name="not empty"))}, strict=True
    ),
}
CONVERSATIONS: Mapping[str, Callable[[Trajectory], Record]] = {"ms-swift": swift_row, "trl": trl_row}
FORMATS = (*SCHEMAS, "trajectories")
PARQUET = ("search-r1", "verl")


def export_rows(source_path: Path, out: Path, to: str, source: Source) -> int:
    """Write rows for another trainer and return how many there are.

    ms-swift and trl take a file of trajectories, of which those that failed are left out; the others take a file of
    questions. search-r1 and verl write Parquet, the others JSON Lines.

    Raises:
        UnknownNameError: no such format or prompt.
        ArtifactError, RecordError: the source is missing or malformed.
        CheckFailedError: there is nothing to write, or a column is not what the trainer reads.
    """
    if to not in SCHEMAS:
        raise UnknownNameError("format", to, FORMATS)
    rows = list(_convert(source_path, to, source))
    if not rows:
        raise CheckFailedError(f"{source_path} gives no rows for {to}.")
    _check(out, to, rows)
    if to in PARQUET:
        _write_parquet(out, rows)
    else:
        write_jsonl(out, rows)
    return len(rows)


def _convert(path: Path, to: str, source: Source) -> Iterator[Record]:
    if to in CONVERSATIONS:
        answered = (one for one in read_jsonl(path, Trajectory) if not one.failed)
        return map(CONVERSATIONS[to], answered)
    questions = read_jsonl(path, Question)
    if to == "rlinf":
        return map(rlinf_row, questions)
    instruction, row = load_prompt(source.prompt), {"search-r1": search_r1_row, "verl": verl_row}[to]
    return (row(one, source.dataset, source.split, index, instruction) for index, one in enumerate(questions))


def _check(out: Path, to: str, rows: Sequence[Record]) -> None:
    frame = pd.DataFrame([row.model_dump(mode="json") for row in rows])
    try:
        SCHEMAS[to].validate(frame)
    except (SchemaError, SchemaErrors) as error:
        raise CheckFailedError(f"{out.name} is not what {to} reads: {error}.") from error


def _write_parquet(out: Path, rows: Sequence[Record]) -> None:
    with atomic_file(out) as partial:
        pd.DataFrame([row.model_dump(mode="json") for row in rows]).to_parquet(partial, index=False)


class Output(BaseModel):
    """What FlashRAG and DeepSearch-RL keep of an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pred: str | None = None
    answer: str = Field(default="", description="the model's last text, answer tags and all")
    error: str | None = None


class ResultMetadata(BaseModel):
    """What of a row's metadata is kept."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    question_type: str | None = None


class ResultRow(BaseModel):
    """A row of FlashRAG's ``intermediate_data.json`` or of DeepSearch-RL's ``results.jsonl``."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    id: NonEmpty
    question: NonEmpty
    golden_answers: tuple[str, ...] = Field(min_length=1)
    metadata: ResultMetadata | None = None
    output: Output


def import_results(path: Path, out: Path, model: str) -> int:
    """Read another system's results as trajectories of one sample, and return how many there are.

    They hold the question and the last text, which is all that was kept; prompt and temperature are not known. A row
    with an error, which that system counts as an empty answer, becomes a failed rollout.

    Raises:
        ArtifactError, RecordError: the file is missing or malformed, or names a question twice; FlashRAG's array counts
            entries as lines.
        CheckFailedError: it holds no results.
    """
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
        answer=answer,
        stop_reason=StopReason.MODEL_ERROR if row.output.error else said,
        error=row.output.error or None,
    )
