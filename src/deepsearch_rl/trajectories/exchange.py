"""Files for other trainers.

Every frame is checked with pandera before it gets its name: what a trainer would refuse an hour into a run is refused
here, by row and column.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pandera.pandas as pa

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.errors import CheckFailedError, UnknownNameError
from deepsearch_rl.files import atomic_file, read_distinct, write_jsonl
from deepsearch_rl.frames import check_frame
from deepsearch_rl.records import Question, Record, Trajectory
from deepsearch_rl.trajectories.convert import swift_row
from deepsearch_rl.trajectories.exports import rlinf_row, search_r1_row, trl_row, verl_row


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
        CheckFailedError: there is nothing to write, or a row is not what the trainer reads; names row and field.
    """
    if to not in SCHEMAS:
        raise UnknownNameError("format", to, FORMATS)
    rows = list(_convert(source_path, to, source))
    if not rows:
        raise CheckFailedError(f"{source_path} gives no rows for {to}.")
    frame = _checked_frame(out, to, rows)
    if to not in PARQUET:
        return write_jsonl(out, rows)
    with atomic_file(out) as partial:
        frame.to_parquet(partial, index=False)
    return len(rows)


def _convert(path: Path, to: str, source: Source) -> Iterator[Record]:
    if to in CONVERSATIONS:
        answered = (one for one in read_distinct(path, Trajectory) if not one.failed)
        return map(CONVERSATIONS[to], answered)
    questions = read_distinct(path, Question)
    if to == "rlinf":
        return map(rlinf_row, questions)
    instruction, row = load_prompt(source.prompt), {"search-r1": search_r1_row, "verl": verl_row}[to]
    return (row(one, source.dataset, source.split, index, instruction) for index, one in enumerate(questions))


def _checked_frame(out: Path, to: str, rows: Sequence[Record]) -> pd.DataFrame:
    frame = pd.DataFrame([row.model_dump(mode="json") for row in rows])
    return check_frame(frame, SCHEMAS[to], out.name)
