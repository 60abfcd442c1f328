"""Teacher trajectories -> training rows: filtered by name, converted, and every row proved against the model folder."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pydantic import Field, field_validator

from deepsearch_rl.answers import f1
from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.files import read_jsonl, write_json, write_jsonl
from deepsearch_rl.progress import track
from deepsearch_rl.records import FilterReport, NonEmpty, Question, Record, TokenCounts, Trajectory
from deepsearch_rl.trajectories.collect import read_trajectories
from deepsearch_rl.trajectories.convert import SwiftRow, swift_row
from deepsearch_rl.trajectories.filters import apply_predicates, find_predicates
from deepsearch_rl.trajectories.proof import TokenProof

TOO_LONG = "too_long"


class FilterConfig(Record):
    """Section ``filter``.

    Raises:
        UnknownNameError: a predicate does not exist.
    """

    dataset: NonEmpty = Field(description="the question set that the teacher answered")
    split: NonEmpty
    predicates: tuple[str, ...] = Field(description="which trajectories are kept; applied in this order")
    max_tokens: int = Field(ge=1, description="longer rows are dropped")
    template: NonEmpty = Field(description="ms-swift's chat template, the one that sft names")
    agent_template: NonEmpty = Field(description="ms-swift's rendering of tools")

    @field_validator("predicates")
    @classmethod
    def _known_predicates(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        find_predicates(names)
        return names


@dataclass(frozen=True, slots=True)
class Paths:
    """What a training set is made from and where it goes."""

    trajectories: Path
    questions: Path
    model: Path
    rows: Path
    report: Path


def build_training_set(config: FilterConfig, paths: Paths) -> int:
    """Write the training rows and the report of what was dropped; return the number of rows.

    Raises:
        ArtifactError: an input is missing.
        CheckFailedError: nothing was left to train on, or a row's tokens are not the server's.
    """
    trajectories = read_trajectories(paths.trajectories)
    filtered = apply_predicates(trajectories, read_jsonl(paths.questions, Question), find_predicates(config.predicates))
    proved = _prove(config, paths.model, filtered.kept)
    kept = [one for one in proved if one.tokens <= config.max_tokens]
    dropped = {**filtered.dropped, TOO_LONG: len(proved) - len(kept)}
    if not kept:
        raise CheckFailedError(f"no trajectory is left to train on; dropped were {dropped}.")
    write_jsonl(paths.rows, (one.row for one in kept))
    write_json(paths.report, _report(trajectories, dropped, kept).model_dump(mode="json"))
    return len(kept)


class _Proved(NamedTuple):
    trajectory: Trajectory
    row: SwiftRow
    tokens: int


def _prove(config: FilterConfig, model: Path, kept: list[Trajectory]) -> list[_Proved]:
    proof = TokenProof(model, config.template, config.agent_template)
    rows = ((trajectory, swift_row(trajectory)) for trajectory in kept)
    return [_Proved(*pair, proof.check(*pair)) for pair in track(rows, "filter", len(kept), "rows")]


def _report(trajectories: list[Trajectory], dropped: dict[str, int], kept: list[_Proved]) -> FilterReport:
    types = sorted({trajectory.question_type for trajectory in trajectories})
    mean_tokens = round(fmean(one.tokens for one in kept), 1)
    return FilterReport(
        trajectories=len(trajectories),
        f1=round(fmean(f1(trajectory.answer, trajectory.golden_answers) for trajectory in trajectories), 4),
        dropped=dropped,
        rows=len(kept),
        rows_by_type={name: sum(one.trajectory.question_type == name for one in kept) for name in types},
        tokens=TokenCounts(mean=mean_tokens, max=max(one.tokens for one in kept)),
        searches=round(fmean(len(one.trajectory.retrievals) for one in kept), 3),
    )
