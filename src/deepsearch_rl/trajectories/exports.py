"""Training rows for other trainers: TRL's conversations, and the RL questions of Search-R1, veRL and RLinf.

Field names are theirs (docs/contracts.md, section 2). Conversations come from trajectories, RL rows from questions.
"""

import json
from typing import Generic, Literal, TypeVar

from pydantic import JsonValue

from deepsearch_rl.agent.chat_messages import chat_messages
from deepsearch_rl.agent.tool import RETRIEVE_TOOL, RETRIEVE_TOOL_NAME
from deepsearch_rl.records import Message, Question, Record, Trajectory


class TrlRow(Record):
    """A conversation as TRL's SFT trainer reads it; a call's arguments are an object, not text."""

    messages: tuple[dict[str, JsonValue], ...]
    tools: tuple[dict[str, JsonValue], ...]


class ChatTurn(Record):
    """A message of a prompt."""

    role: Literal["system", "user"]
    content: str


class GroundTruth(Record):
    """The golden answers."""

    target: tuple[str, ...]


class RewardModel(Record):
    """How an answer is rewarded: by the rule that knows the golden answers."""

    style: Literal["rule"] = "rule"
    ground_truth: GroundTruth


class ExtraInfo(Record):
    """Where a row comes from."""

    split: str
    index: int


InfoT = TypeVar("InfoT", bound=ExtraInfo)


class SearchArguments(Record):
    """What veRL's search tool is created with."""

    ground_truth: GroundTruth
    question: str
    data_source: str


class CreateArguments(Record):
    """veRL's wrapping of it."""

    create_kwargs: SearchArguments


class ToolsArguments(Record):
    """By tool name."""

    search: CreateArguments


class VerlExtraInfo(ExtraInfo):
    """veRL's additions for its search tool."""

    need_tools_kwargs: Literal[True] = True
    question: str
    tools_kwargs: ToolsArguments


class RlRow(Record, Generic[InfoT]):
    """A row of a parquet file that an RL trainer reads."""

    data_source: str
    prompt: tuple[ChatTurn, ...]
    ability: Literal["fact-reasoning"] = "fact-reasoning"
    reward_model: RewardModel
    extra_info: InfoT


SearchR1Row = RlRow[ExtraInfo]
"""Search-R1's: one user message."""
VerlRow = RlRow[VerlExtraInfo]
"""veRL's: a system message first, and arguments for its search tool."""


class RlinfRow(Record):
    """A line of RLinf's question files."""

    prompt: str
    solutions: tuple[str, ...]


def trl_row(trajectory: Trajectory) -> TrlRow:
    """The conversation of a trajectory, whose calls are valid (an answered one's are).

    Every turn has its reasoning, under both names that chat templates read it by.
    """
    sent = chat_messages(trajectory.messages, with_reasoning=True)
    messages = [_with_object_arguments(message, form) for message, form in zip(trajectory.messages, sent, strict=True)]
    return TrlRow(messages=tuple(messages), tools=(RETRIEVE_TOOL,))


def _with_object_arguments(message: Message, sent: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not message.tool_calls:
        return sent
    calls: list[JsonValue] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for call in message.tool_calls
    ]
    return {**sent, "tool_calls": calls}


def search_r1_row(question: Question, dataset: str, split: str, index: int, instruction: str) -> SearchR1Row:
    """A question as one user message, the instruction before it."""
    return SearchR1Row(
        data_source=dataset,
        prompt=(ChatTurn(role="user", content=f"{instruction}\n\nQuestion: {question.question}"),),
        reward_model=_reward(question),
        extra_info=ExtraInfo(split=split, index=index),
    )


def verl_row(question: Question, dataset: str, split: str, index: int, instruction: str) -> VerlRow:
    """A question behind a system message, with what veRL's search tool is created with.

    That tool is called ``search`` there, which is what the instruction then says too.
    """
    source, called = f"searchR1_{dataset}", instruction.replace(f"`{RETRIEVE_TOOL_NAME}`", "`search`")
    created = SearchArguments(ground_truth=_golds(question), question=question.question, data_source=source)
    turns = (ChatTurn(role="system", content=called), ChatTurn(role="user", content=question.question))
    return VerlRow(
        data_source=source,
        prompt=turns,
        reward_model=_reward(question),
        extra_info=VerlExtraInfo(
            split=split,
            index=index,
            question=question.question,
            tools_kwargs=ToolsArguments(search=CreateArguments(create_kwargs=created)),
        ),
    )


def rlinf_row(question: Question) -> RlinfRow:
    """A question and its answers."""
    return RlinfRow(prompt=question.question, solutions=question.golden_answers)


def _golds(question: Question) -> GroundTruth:
    return GroundTruth(target=question.golden_answers)


def _reward(question: Question) -> RewardModel:
    return RewardModel(ground_truth=_golds(question))
