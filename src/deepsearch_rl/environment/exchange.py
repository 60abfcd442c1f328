"""Files for other trainers (ms-swift, TRL, Search-R1, veRL, RLinf), each row checked before writing.

Field names are the trainers' (docs/contracts.md, section 2). Conversations come from trajectories,
RL rows from questions. What a trainer would refuse an hour into a run is refused here by pandera,
by row and column.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa
from pydantic import BaseModel, JsonValue, RootModel

from deepsearch_rl.chat.chat_messages import (
    RETRIEVE_TOOL,
    RETRIEVE_TOOL_NAME,
    chat_messages,
    has_unclosed_thought,
)
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.errors import CheckFailedError, ConfigError, UnknownNameError
from deepsearch_rl.core.files import atomic_file, check_frame, distinct, read_distinct, write_jsonl
from deepsearch_rl.core.records import UNKNOWN_PROMPT, Trajectory
from deepsearch_rl.data.flashrag import numbered_questions
from deepsearch_rl.train.swift_rows import row_targets, swift_row

ExportRow = RootModel[dict[str, Any]]


def _cells(name: str, check: Callable[[Any], bool]) -> pa.Column:
    return pa.Column(object, pa.Check(check, name=name, element_wise=True))


def _turns(name: str, *roles: str) -> pa.Column:
    """Return the column of a conversation whose messages have these roles."""
    return _cells(name, lambda turns: tuple(turn["role"] for turn in turns) == roles)


def _ends_in(name: str, *roles: str) -> pa.Column:
    return _cells(
        name,
        lambda turns: bool(turns) and turns[-1]["role"] in roles and turns[-1]["content"] != "",
    )


_TEXT = pa.Column(str, pa.Check(bool, name="not empty", element_wise=True))
_ANYTHING = pa.Column(object)
_CONVERSATION = _ends_in("ends in an assistant's answer", "assistant")
_RL = {
    "data_source": _TEXT,
    "ability": _TEXT,
    "reward_model": _cells(
        "has golden answers", lambda reward: bool(reward["ground_truth"]["target"])
    ),
    "extra_info": _ANYTHING,
}


def _schema(**columns: pa.Column) -> pa.DataFrameSchema:
    # Strict: a trainer that meets a column of another's may read it
    return pa.DataFrameSchema(columns, strict=True)


SCHEMAS: Mapping[str, pa.DataFrameSchema] = {
    "ms-swift": _schema(tools=_TEXT, messages=_CONVERSATION),
    "ms-swift-turns": _schema(
        tools=_TEXT,
        messages=_ends_in("ends in a turn of the model", "assistant", "tool_call"),
    ),
    "trl": _schema(tools=_ANYTHING, messages=_CONVERSATION),
    "search-r1": _schema(**_RL, prompt=_turns("one user message", "user")),
    "verl": _schema(**_RL, prompt=_turns("system, then user", "system", "user")),
    "rlinf": _schema(
        prompt=_turns("one user message", "user"),
        solutions=_cells("not empty", bool),
    ),
}
FORMATS = (*SCHEMAS, "trajectories")
PARQUET = ("search-r1", "verl")
# The prompt that fits how a trainer's model searches: by tags in its text, or by tool calls
PROMPTS: Mapping[str, str] = {
    "search-r1": "search_tags",
    "rlinf": "search_tags",
    "verl": "multihoprag_nothink",
}


# The question sets for which the trainers' own reward selectors have a reward, which is exact
# match for all of them.
#
# veRL knows them as ``searchR1_<set>`` (``default_compute_score`` of
# ``verl/utils/reward_score``), Search-R1 by these names (``_select_rm_score_fn`` of
# ``verl/trainer/main_ppo.py``). Both end with an error at the first reward of any other
# ``data_source``.
REWARDED_SETS = ("2wikimultihopqa", "bamboogle", "hotpotqa", "musique", "nq", "popqa", "triviaqa")


def export_rows(
    source: Path, out: Path, to: str, dataset: str | None, split: str, prompt: str | None
) -> int:
    """Write rows for another trainer and return how many there are.

    ms-swift, ms-swift-turns (a row per turn of the model, without the reasoning before it) and trl
    take a file of trajectories and leave out failed ones and those with a thought that was never
    closed; the others take a file of questions. search-r1 and verl are Parquet files, the others
    JSON Lines. ``dataset`` and ``split`` are those of the questions; search-r1 and verl need one of
    :data:`REWARDED_SETS`. No ``prompt`` is that of :data:`PROMPTS`.

    Raise UnknownNameError where there is no such format or prompt; ConfigError where the trainer
    has no reward for ``dataset``; ArtifactError or RecordError where the source is missing or
    malformed; CheckFailedError where it gives no rows, a trajectory cannot be a row of tool calls,
    or a row is not what the trainer reads.
    """
    if to not in SCHEMAS:
        raise UnknownNameError("format", to, FORMATS)
    data_source = _data_source(to, dataset) if to in PARQUET else ""
    rows: list[BaseModel] = []
    if to in ("ms-swift", "ms-swift-turns", "trl"):
        rows += _conversations(source, to)
    else:
        rows += _rl_rows(source, to, data_source, split, prompt)

    if not rows:
        raise CheckFailedError(f"{source} gives no rows for {to}.")
    records = [row.model_dump(mode="json") for row in rows]
    # Before anything is written: the trainer's own error would come hours later
    frame = check_frame(pd.DataFrame(records), SCHEMAS[to], out.name)
    if to not in PARQUET:
        return write_jsonl(out, rows)
    with atomic_file(out) as partial:
        frame.to_parquet(partial, index=False)
    return len(rows)


def _data_source(to: str, dataset: str | None) -> str:
    """Return the name by which a trainer chooses its reward."""
    if dataset not in REWARDED_SETS:
        problem = "is missing" if dataset is None else f"{dataset!r} has no reward there"
        raise ConfigError(
            f"--dataset {problem}: the reward of {to} is chosen by the question set of a row, and "
            f"its own selector knows {', '.join(REWARDED_SETS)} alone. All of them are scored by "
            "exact match with the golden answers, so name one of them for other questions as well "
            "(for example --dataset nq), or change `data_source` for a reward function of your own."
        )

    return f"searchR1_{dataset}" if to == "verl" else dataset


def _conversations(path: Path, to: str) -> Iterator[BaseModel]:
    for trajectory in read_distinct(path, Trajectory):
        if trajectory.failed or has_unclosed_thought(trajectory.messages):
            continue
        _require_tool_calls(trajectory, to)

        if to == "trl":
            yield _trl_row(trajectory)
        else:
            for target in row_targets(trajectory, flatten=to == "ms-swift-turns"):
                yield swift_row(trajectory, target)


def _require_tool_calls(trajectory: Trajectory, to: str) -> None:
    """Refuse a trajectory whose model did not search by tool calls that a row can hold."""
    if trajectory.protocol != "function_calling":
        raise CheckFailedError(
            f"trajectory {trajectory.id} is of the protocol {trajectory.protocol!r}, and rows for "
            f"{to} hold tool calls; collect with agent.protocol: function_calling, or leave such "
            "trajectories out."
        )

    if trajectory.prompt == UNKNOWN_PROMPT:
        raise CheckFailedError(
            f"trajectory {trajectory.id} is another system's result: it holds the last text alone, "
            f"and rows for {to} made of it would teach to answer without searching."
        )

    for message in trajectory.messages:
        for call in message.tool_calls:
            if call.parsed is None:
                raise CheckFailedError(
                    f"trajectory {trajectory.id}, {call.id}: its arguments are no JSON object, and "
                    f"a row for {to} needs one; leave this trajectory out."
                )


def _trl_row(trajectory: Trajectory) -> ExportRow:
    """Return the conversation of a trajectory as TRL's SFT trainer reads it.

    Arguments of a call are an object, not text. Every turn has its reasoning under both names that
    templates read.
    """
    messages = chat_messages(trajectory.messages, with_reasoning=True)
    for message, chat_message in zip(trajectory.messages, messages, strict=True):
        calls: list[JsonValue] = []
        for call in message.tool_calls:
            function: JsonValue = {"name": call.name, "arguments": call.parsed}
            calls.append({"id": call.id, "type": "function", "function": function})
        if calls:
            chat_message["tool_calls"] = calls

    return ExportRow({"messages": [*messages], "tools": [RETRIEVE_TOOL]})


def _rl_rows(
    path: Path, to: str, data_source: str, split: str, prompt: str | None
) -> Iterator[ExportRow]:
    instruction = load_prompt(prompt or PROMPTS[to])
    for index, question in enumerate(distinct(lambda: numbered_questions(path), path)):
        text = question.question
        ground_truth = {"target": [*question.golden_answers]}
        asking = [{"role": "user", "content": f"{instruction}\n\nQuestion: {text}"}]
        if to == "rlinf":
            yield ExportRow({"prompt": asking, "solutions": ground_truth["target"]})
            continue

        extra_info: dict[str, Any] = {"split": split, "index": index}

        if to == "search-r1":
            messages = asking
        else:
            # veRL calls its tool `search`, so the instruction does too, and the tool takes these
            # arguments
            renamed = instruction.replace(f"`{RETRIEVE_TOOL_NAME}`", "`search`")
            messages = [{"role": "system", "content": renamed}, {"role": "user", "content": text}]
            arguments = {"ground_truth": ground_truth, "question": text, "data_source": data_source}
            tools = {"search": {"create_kwargs": arguments}}
            extra_info |= {"need_tools_kwargs": True, "question": text, "tools_kwargs": tools}

        yield ExportRow(
            {
                "data_source": data_source,
                "prompt": messages,
                "ability": "fact-reasoning",
                "reward_model": {"style": "rule", "ground_truth": ground_truth},
                "extra_info": extra_info,
            }
        )
