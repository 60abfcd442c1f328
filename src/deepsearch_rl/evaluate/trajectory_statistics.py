"""Lengths, searches and outcomes of a file of trajectories.

The figures are those of DeepSearch-RL's analysis, and some that explain a score, each as mean and
population standard deviation, for all rollouts, the successes and the rest. Trajectories are read
one by one: of a rollout, only its question's id stays in memory. Means and deviations are updated
as B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
Technometrics 4 (1962), which keeps its precision where a sum of squares loses it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field

from deepsearch_rl.chat.chat_messages import split_thought
from deepsearch_rl.core.answers import SUCCESS_F1, is_refusal, score_rollout
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import distinct, read_distinct
from deepsearch_rl.core.records import UNKNOWN_PROMPT, Question, Record, Trajectory
from deepsearch_rl.data.flashrag import numbered_questions
from deepsearch_rl.search.gold import Gold, gold_evidence
from deepsearch_rl.train.filters import evidence_shown, repeated_queries

# Outcomes of answered rollouts; a failed one has its stop reason
CORRECT = "correct"
WRONG = "wrong"
# Width of the bins of conversation lengths, in tokens
TOKENS_BIN = 100


class Spread(Record):
    """Mean and population standard deviation over the ``n`` rollouts that have the figure."""

    n: int
    mean: float
    std: float


class GroupStatistics(Record):
    """One column of the tables."""

    rollouts: int
    figures: dict[str, Spread] = Field(
        description="by name; a figure that no rollout of the group has is left out"
    )
    rounds: dict[int, int] = Field(
        description="number of assistant turns -> rollouts, of those that hold their turns"
    )
    tool_calls: dict[int, int] = Field(description="number of tool calls -> rollouts, likewise")
    tokens: dict[int, int] = Field(
        description="tokens of the whole conversation (prompt and completion of the last turn), rounded down to "
        "hundreds -> rollouts, of those whose tokens were counted"
    )


class TrajectoryStatistics(Record):
    """``deepsearch trajectories stats --json``."""

    questions: int
    groups: dict[str, GroupStatistics] = Field(
        description="all, success (F1 of 0.8 or more) and failure"
    )
    outcomes: dict[str, int] = Field(
        description="correct, wrong, or why a rollout failed -> rollouts, most first"
    )


def read_statistics(path: Path, questions: Path | None) -> TrajectoryStatistics:
    """Return the statistics of a file of trajectories; without ``questions`` those about evidence are left out.

    Raise ArtifactError where there are no trajectories, and as :func:`read_distinct`.
    """
    gold: dict[str, Gold] = {}
    if questions:
        gold = gold_by_question(distinct(lambda: numbered_questions(questions), questions))

    tally = Tally(gold)
    for trajectory in read_distinct(path, Trajectory):
        tally.add(trajectory)
    if not tally.outcomes:
        raise ArtifactError(f"{path} holds no trajectories.")
    return tally.statistics()


def gold_by_question(questions: Iterable[Question]) -> dict[str, Gold]:
    """Return the gold evidence of every question that has some, by its id."""
    result: dict[str, Gold] = {}
    for question in questions:
        gold = gold_evidence(question)
        if gold is not None:
            result[question.id] = gold

    return result


def has_turns(trajectory: Trajectory) -> bool:
    """Return whether a trajectory holds its turns and searches; another system's result is its last text alone."""
    return trajectory.prompt != UNKNOWN_PROMPT


def outcome(trajectory: Trajectory) -> str:
    """Return ``correct`` (F1 of 0.8 or more), ``wrong``, or the stop reason of a failed rollout."""
    if trajectory.failed:
        return str(trajectory.stop_reason)
    return CORRECT if score_rollout(trajectory).f1 >= SUCCESS_F1 else WRONG


class Tally:
    """Statistics that grow rollout by rollout; ``gold`` is the evidence by question id."""

    def __init__(self, gold: Mapping[str, Gold]) -> None:
        self.outcomes: Counter[str] = Counter()
        self._gold = gold
        self._questions: set[str] = set()
        self._groups = {name: _Group() for name in ("all", "success", "failure")}

    def add(self, trajectory: Trajectory) -> None:
        """Count one more rollout."""
        result = outcome(trajectory)
        figures = _figures(trajectory, self._gold.get(trajectory.question_id))
        self.outcomes[result] += 1
        self._questions.add(trajectory.question_id)
        for name in ("all", "success" if result == CORRECT else "failure"):
            self._groups[name].add(trajectory, figures)

    def statistics(self) -> TrajectoryStatistics:
        """Return what was counted so far; equally frequent outcomes are sorted by name."""
        outcomes = sorted(self.outcomes.items(), key=lambda entry: (-entry[1], entry[0]))
        groups = {name: group.statistics() for name, group in self._groups.items()}
        return TrajectoryStatistics(
            questions=len(self._questions), groups=groups, outcomes=dict(outcomes)
        )


class _Group:
    """Running figures of a group: by name their number, mean and sum of squared deviations (Welford)."""

    def __init__(self) -> None:
        self._rollouts = 0
        self._figures: dict[str, tuple[int, float, float]] = {}
        self._counts = {name: Counter[int]() for name in ("rounds", "tool_calls", "tokens")}

    def add(self, trajectory: Trajectory, figures: Mapping[str, float | None]) -> None:
        """Count a rollout; a figure that is None is not counted for it."""
        self._rollouts += 1
        if has_turns(trajectory):
            self._counts["rounds"][trajectory.rounds] += 1
            self._counts["tool_calls"][trajectory.tool_calls] += 1

        # The last turn has read all before it: its tokens are those of the conversation
        if trajectory.usage:
            last = trajectory.usage[-1]
            tokens = last.prompt_tokens + last.completion_tokens
            self._counts["tokens"][tokens // TOKENS_BIN * TOKENS_BIN] += 1

        for name, value in figures.items():
            if value is not None:
                n, mean, squares = self._figures.get(name, (0, 0.0, 0.0))
                new_mean = mean + (value - mean) / (n + 1)
                # Welford's: the deviations from the mean before and after the value
                new_squares = squares + (value - mean) * (value - new_mean)
                self._figures[name] = (n + 1, new_mean, new_squares)

    def statistics(self) -> GroupStatistics:
        """Return what was counted so far; counts are sorted by what they count."""
        figures: dict[str, Spread] = {}
        for name, (n, mean, squares) in self._figures.items():
            figures[name] = Spread(n=n, mean=mean, std=(squares / n) ** 0.5)

        return GroupStatistics(
            rollouts=self._rollouts,
            figures=figures,
            rounds=dict(sorted(self._counts["rounds"].items())),
            tool_calls=dict(sorted(self._counts["tool_calls"].items())),
            tokens=dict(sorted(self._counts["tokens"].items())),
        )


def _figures(trajectory: Trajectory, gold: Gold | None) -> dict[str, float | None]:
    """Return the figures of one rollout by name; one that is None counts in no mean."""
    last = trajectory.usage[-1] if trajectory.usage else None
    # Results of other systems are the last text alone: nothing can be counted in them
    if not has_turns(trajectory):
        return dict(score_rollout(trajectory)._asdict())
    evidence_share = evidence_shown(trajectory, gold) if gold else None
    answered = not trajectory.failed and not is_refusal(trajectory.answer)
    without_evidence = None
    if evidence_share is not None:
        without_evidence = float(answered and evidence_share < 1)

    thoughts = [split_thought(message).reasoning or "" for message in trajectory.messages]
    return {
        **score_rollout(trajectory)._asdict(),
        "rounds": trajectory.rounds,
        "tool_calls": trajectory.tool_calls,
        "executed_searches": len(trajectory.retrievals),
        "repeated_queries": repeated_queries(trajectory),
        "reasoning_characters": sum(map(len, thoughts)),
        "last_prompt_tokens": last and last.prompt_tokens,
        "last_completion_tokens": last and last.completion_tokens,
        "prompt_tokens": trajectory.prompt_tokens if last else None,
        "completion_tokens": trajectory.completion_tokens if last else None,
        "evidence_shown": evidence_share,
        "answered_without_evidence": without_evidence,
    }
