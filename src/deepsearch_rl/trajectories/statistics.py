"""What a file of trajectories looks like: lengths, searches and failures of all, of the successes and of the rest.

The figures are those of DeepSearch-RL's analysis (rounds, tool calls, tokens of the last turn and of all turns, and the
distributions of rounds and tool calls), each as mean and population standard deviation, and what explains a score: why
rollouts failed, how often a query was repeated, how much of the gold evidence was shown, and how often the model
answered although some was missing. Evidence needs the questions; white space apart, a fact is shown if a passage that
the model read contains it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from pydantic import Field

from deepsearch_rl.answers import INSUFFICIENT, METRICS, SUCCESS_F1, ZERO, normalise, score
from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import read_jsonl
from deepsearch_rl.records import Question, Record, Trajectory
from deepsearch_rl.trajectories.filters import shown_facts

Value = Callable[[Trajectory], float | None]
"""A figure of one rollout; None where it is not known, and the rollout is then left out of its mean."""


class Spread(Record):
    """Mean and population standard deviation over the rollouts that have the figure."""

    n: int
    mean: float
    std: float


class GroupStatistics(Record):
    """One column of the tables."""

    rollouts: int
    figures: dict[str, Spread] = Field(description="by name; a figure that no rollout of the group has is left out")
    rounds: dict[int, int] = Field(description="number of assistant turns -> rollouts")
    tool_calls: dict[int, int] = Field(description="number of tool calls -> rollouts")


class TrajectoryStatistics(Record):
    """``deepsearch trajectories stats --json``."""

    questions: int
    groups: dict[str, GroupStatistics] = Field(description="all, success (F1 of 0.8 or more) and failure")
    stop_reasons: dict[str, int]


def read_statistics(path: Path, questions: Path | None) -> TrajectoryStatistics:
    """The statistics of a file of trajectories; without ``questions`` those about evidence are left out.

    Raises:
        ArtifactError: a file is missing, or there are no trajectories.
        RecordError: a line does not fit; names file, line and field.
    """
    evidence = _evidence(read_jsonl(questions, Question)) if questions else {}
    trajectories = list(read_jsonl(path, Trajectory))
    if not trajectories:
        raise ArtifactError(f"{path} holds no trajectories.")
    return summarise(trajectories, evidence)


def summarise(trajectories: Sequence[Trajectory], facts: Mapping[str, Sequence[str]]) -> TrajectoryStatistics:
    """Statistics of at least one trajectory; ``facts`` are the gold facts by question id."""
    values = _values(facts)
    success = {one.id for one in trajectories if not one.failed and _f1(one) >= SUCCESS_F1}
    groups = {
        "all": list(trajectories),
        "success": [one for one in trajectories if one.id in success],
        "failure": [one for one in trajectories if one.id not in success],
    }
    return TrajectoryStatistics(
        questions=len({one.question_id for one in trajectories}),
        groups={name: _summarise_group(group, values) for name, group in groups.items()},
        stop_reasons=dict(Counter(str(one.stop_reason) for one in trajectories).most_common()),
    )


def _summarise_group(group: Sequence[Trajectory], values: Mapping[str, Value]) -> GroupStatistics:
    figures = {name: [found for one in group if (found := value(one)) is not None] for name, value in values.items()}
    return GroupStatistics(
        rollouts=len(group),
        figures={
            name: Spread(n=len(found), mean=fmean(found), std=pstdev(found)) for name, found in figures.items() if found
        },
        rounds=_distribution(one.rounds for one in group),
        tool_calls=_distribution(one.tool_calls for one in group),
    )


def _distribution(counts: Iterable[int]) -> dict[int, int]:
    return dict(sorted(Counter(counts).items()))


def _values(facts: Mapping[str, Sequence[str]]) -> dict[str, Value]:
    return {
        **{name: _metric(position) for position, name in enumerate(METRICS)},
        "rounds": lambda one: one.rounds,
        "tool_calls": lambda one: one.tool_calls,
        "executed_searches": lambda one: len(one.retrievals),
        "repeated_queries": _repeated_queries,
        "reasoning_characters": _reasoning_characters,
        "last_prompt_tokens": lambda one: one.usage[-1].prompt_tokens if one.usage else None,
        "last_completion_tokens": lambda one: one.usage[-1].completion_tokens if one.usage else None,
        "prompt_tokens": lambda one: one.prompt_tokens if one.usage else None,
        "completion_tokens": lambda one: one.completion_tokens if one.usage else None,
        "evidence_shown": lambda one: _evidence_shown(one, facts),
        "answered_without_evidence": lambda one: _answered_without_evidence(one, facts),
    }


def _metric(position: int) -> Value:
    return lambda one: (ZERO if one.failed else score(one.answer, one.golden_answers))[position]


def _f1(one: Trajectory) -> float:
    return score(one.answer, one.golden_answers).f1


def _repeated_queries(one: Trajectory) -> int:
    queries = [normalise(retrieval.query) for retrieval in one.retrievals]
    return len(queries) - len(set(queries))


def _reasoning_characters(one: Trajectory) -> int:
    return sum(len(message.reasoning or "") for message in one.messages)


def _evidence(questions: Iterable[Question]) -> dict[str, tuple[str, ...]]:
    return {
        question.id: tuple(evidence.fact for evidence in question.metadata.evidence_list)
        for question in questions
        if question.metadata.evidence_list
    }


def _evidence_shown(one: Trajectory, facts: Mapping[str, Sequence[str]]) -> float | None:
    """Share of the question's facts that the model was shown; None where they are not known or there are none."""
    if one.question_id not in facts:
        return None
    return fmean(shown_facts(one, facts[one.question_id]))


def _answered_without_evidence(one: Trajectory, facts: Mapping[str, Sequence[str]]) -> float | None:
    """1 if the model gave an answer, other than that there is none, and had not been shown all of the evidence."""
    shown = _evidence_shown(one, facts)
    if shown is None:
        return None
    answered = not one.failed and normalise(one.answer) != normalise(INSUFFICIENT)
    return float(answered and shown < 1)
