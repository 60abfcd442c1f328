"""Files for other trainers.

Every frame is checked with pandera before it gets its name: what a trainer would refuse an hour into a run is refused
here, by row and column.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pandera.pandas as pa

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.errors import CheckFailedError, UnknownNameError
from deepsearch_rl.files import atomic_file, read_distinct, write_jsonl
from deepsearch_rl.frames import check_frame
from deepsearch_rl.records import Question, Record, Trajectory
from deepsearch_rl.trajectories.convert import row_targets, swift_row
from deepsearch_rl.trajectories.exports import rlinf_row, search_r1_row, trl_row, verl_row
from deepsearch_rl.trajectories.results import UNKNOWN


@dataclass(frozen=True, slots=True)
class Source:
    """Of RL rows: which set and split the questions are, and the prompt that stands before them.

    Without a prompt it is that of :data:`PROMPTS`.
    """

    dataset: str
    split: str
    prompt: str | None


def _filled(values: pd.Series) -> pd.Series:
    return values.map(lambda value: len(value) > 0)


def _roles_begin(*roles: str) -> Callable[[pd.Series], pd.Series]:
    return lambda prompts: prompts.map(lambda turns: tuple(turn["role"] for turn in turns) == roles)


def _has_targets(rewards: pd.Series) -> pd.Series:
    return rewards.map(lambda reward: len(reward["ground_truth"]["target"]) > 0)


def _ends_in(*roles: str) -> Callable[[pd.Series], pd.Series]:
    return lambda conversations: conversations.map(
        lambda turns: bool(turns) and turns[-1]["role"] in roles and turns[-1]["content"] != ""
    )


_TEXT = pa.Column(str, pa.Check(_filled, name="not empty"))
_CONVERSATION = pa.Column(object, pa.Check(_ends_in("assistant"), name="ends in an assistant's answer"))
_TURN = pa.Column(object, pa.Check(_ends_in("assistant", "tool_call"), name="ends in a turn of the model"))
_RL = {
    "data_source": _TEXT,
    "ability": _TEXT,
    "reward_model": pa.Column(object, pa.Check(_has_targets, name="has golden answers")),
    "extra_info": pa.Column(object),
}
SCHEMAS: Mapping[str, pa.DataFrameSchema] = {
    "ms-swift": pa.DataFrameSchema({"tools": _TEXT, "messages": _CONVERSATION}, strict=True),
    "ms-swift-turns": pa.DataFrameSchema({"tools": _TEXT, "messages": _TURN}, strict=True),
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
CONVERSATIONS: Mapping[str, Callable[[Trajectory], Iterable[Record]]] = {
    "ms-swift": lambda one: [swift_row(one)],
    "ms-swift-turns": lambda one: [swift_row(one, target) for target in row_targets(one, flatten=True)],
    "trl": lambda one: [trl_row(one)],
}
"""Formats of conversations; ms-swift-turns has a row per turn of the model, without the reasoning before it."""
FORMATS = (*SCHEMAS, "trajectories")
PARQUET = ("search-r1", "verl")
PROMPTS: Mapping[str, str] = {"search-r1": "search_tags", "verl": "multihoprag_nothink"}
"""The prompt that fits how a trainer's model searches: by tags in its text, or by calls of a tool."""


def export_rows(source_path: Path, out: Path, to: str, source: Source) -> int:
    """Write rows for another trainer and return how many there are.

    The formats of :data:`CONVERSATIONS` take a file of trajectories, of which those that failed are left out; the
    others take a file of questions. search-r1 and verl write Parquet, the others JSON Lines.

    Raises:
        UnknownNameError: no such format or prompt.
        ArtifactError, RecordError: the source is missing or malformed.
        CheckFailedError: there is nothing to write, a trajectory is of the tag protocol or another system's result or
            holds a call that is no JSON, or a row is not what the trainer reads; names what does not fit.
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
        return (row for one in answered for row in CONVERSATIONS[to](_of_tool_calls(one, to)))
    questions = read_distinct(path, Question)
    if to == "rlinf":
        return map(rlinf_row, questions)
    instruction, row = load_prompt(source.prompt or PROMPTS[to]), {"search-r1": search_r1_row, "verl": verl_row}[to]
    return (row(one, source.dataset, source.split, index, instruction) for index, one in enumerate(questions))


def _of_tool_calls(one: Trajectory, to: str) -> Trajectory:
    """The trajectory, if its model searched by tool calls that can be written as such.

    A rollout of the tag protocol is one text that model and search engine wrote in turns; as messages it would be
    another prompt than the model ever sees, and nobody would know which part of it carries no loss.
    """
    if one.protocol != "function_calling":
        raise CheckFailedError(
            f"trajectory {one.id} is of the protocol {one.protocol!r}, and rows for {to} hold tool calls; collect with "
            "agent.protocol: function_calling, or leave such trajectories out."
        )
    if one.prompt == UNKNOWN:
        raise CheckFailedError(
            f"trajectory {one.id} is another system's result: it holds the last text alone, and rows for {to} made of "
            "it would teach to answer without searching."
        )
    for call in (call for message in one.messages for call in message.tool_calls):
        if not _is_object(call.arguments):
            raise CheckFailedError(
                f"trajectory {one.id}, {call.id}: its arguments are no JSON object, and a row for {to} needs one; "
                "leave this trajectory out."
            )
    return one


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _checked_frame(out: Path, to: str, rows: Sequence[Record]) -> pd.DataFrame:
    frame = pd.DataFrame([row.model_dump(mode="json") for row in rows])
    return check_frame(frame, SCHEMAS[to], out.name)
