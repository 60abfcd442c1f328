"""What the report reads beside the F1 table: the rollouts behind its rows, and the learning curves of RL runs.

Rollouts give statistics over all of them, and the ones that the page shows. Their files are read line by line, so that
memory does not grow with the run.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from deepsearch_rl.evaluation.scoring.f1_row import F1TableRow
from deepsearch_rl.files import read_distinct, read_jsonl, read_record
from deepsearch_rl.records import Question, Trajectory
from deepsearch_rl.trajectories.statistics import (
    GroupStatistics,
    Tally,
    TrajectoryStatistics,
    gold_by_question,
    outcome,
)

OF_EACH_OUTCOME = 5
"""Rollouts of every outcome to show at least, where a run has as many: readers look for the rare failures."""


@dataclass(frozen=True, slots=True)
class RunRollouts:
    """The run behind a row: statistics over all its rollouts, and the rollouts to show."""

    row: F1TableRow
    statistics: TrajectoryStatistics
    samples: tuple[Trajectory, ...]

    @property
    def figures(self) -> GroupStatistics:
        """The figures of all rollouts together."""
        return self.statistics.groups["all"]


class CurvePoint(BaseModel):
    """One step of ``train_log.jsonl``; step 0 is the policy before training. Other fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int = Field(ge=0)
    reward: float | None = Field(default=None, description="mean over the step's rollouts")
    f1: float | None = Field(default=None, description="mean over the step's rollouts, sampled on training questions")
    dev_f1: float | None = Field(default=None, description="on the dev questions, where it was measured")
    tool_calls: float | None = Field(default=None, description="searches asked for, mean over the step's rollouts")


class RlManifest(BaseModel):
    """The fields of an RL run's ``manifest.json`` that the report shows."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: int
    best_step: int
    best_dev_f1: float
    sampled_f1_at_start: float | None = None
    below_gate: bool
    backend: str = ""
    device: str = ""
    dtype: str = ""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class RlRun:
    """One RL run: its curve by step, and which checkpoint was kept."""

    manifest: RlManifest
    points: tuple[CurvePoint, ...]


def read_questions(paths: Mapping[str, Path]) -> dict[str, dict[str, Question]]:
    """Return the questions of every set, by id."""
    return {name: {question.id: question for question in read_distinct(path, Question)} for name, path in paths.items()}


def read_rl_run(folder: Path) -> RlRun:
    """Read log and manifest of one RL run; :class:`ArtifactError` or :class:`RecordError` if one does not fit."""
    points = tuple(read_jsonl(folder / "train_log.jsonl", CurvePoint))
    return RlRun(read_record(folder / "manifest.json", RlManifest), points)


def read_runs(
    folders: Mapping[str, Path], rows: Iterable[F1TableRow], questions: Mapping[str, Mapping[str, Question]], count: int
) -> list[RunRollouts]:
    """Read the run of every row; of each, ``count`` rollouts are to be shown (:func:`positions_to_show`).

    ``folders`` holds every model's evaluation, ``questions`` the questions by set and id, for their gold evidence.

    Raises:
        ArtifactError, RecordError: a file is missing or malformed.
    """
    gold = {name: gold_by_question(of_set.values()) for name, of_set in questions.items()}
    runs: list[RunRollouts] = []
    for row in rows:
        path, tally, outcomes = folders[row.model] / row.rollouts_file, Tally(gold.get(row.dataset, {})), []
        for rollout in read_distinct(path, Trajectory):
            tally.add(rollout)
            outcomes.append(outcome(rollout))
        positions = positions_to_show(outcomes, count)
        rollouts = enumerate(read_jsonl(path, Trajectory)) if positions else ()
        samples = tuple(rollout for position, rollout in rollouts if position in positions)
        runs.append(RunRollouts(row, tally.statistics(), samples))
    return runs


def positions_to_show(outcomes: Sequence[str], count: int) -> frozenset[int]:
    """Return the positions of ``count`` rollouts spread evenly, so that nobody picks the good ones.

    Where an outcome occurs fewer than :data:`OF_EACH_OUTCOME` times among these, as many rollouts with it are added,
    spread evenly over all that have it. There are no positions if ``count`` is 0.
    """
    if not count:
        return frozenset()
    by_outcome: defaultdict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(outcomes):
        by_outcome[name].append(position)
    positions = set(_spread(range(len(outcomes)), count))
    for candidates in by_outcome.values():
        if len(positions.intersection(candidates)) < OF_EACH_OUTCOME:
            positions.update(_spread(candidates, OF_EACH_OUTCOME))
    return frozenset(positions)


def _spread(positions: Sequence[int], count: int) -> list[int]:
    total = min(count, len(positions))
    return [positions[step * len(positions) // total] for step in range(total)]
