"""Answers to score, whoever made them: prediction rows of any system, or our own trajectories.

A prediction row is ``{"id", "question", "golden_answers", "pred"}``, with ``sample`` where a question was answered
several times and ``question_type`` (its own or its metadata's) where types are known; other keys are ignored.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deepsearch_rl import answers
from deepsearch_rl.errors import ArtifactError, RecordError
from deepsearch_rl.evaluation.score import QuestionScores
from deepsearch_rl.files import numbered_records
from deepsearch_rl.records import NonEmpty, Trajectory
from deepsearch_rl.trajectories.results import ForeignMetadata


class Prediction(BaseModel):
    """One answer to one question."""

    model_config = ConfigDict(frozen=True, extra="ignore", coerce_numbers_to_str=True)

    id: NonEmpty
    question: str
    golden_answers: tuple[str, ...] = Field(min_length=1)
    pred: str
    sample: int = Field(default=0, ge=0)
    question_type: str | None = None
    metadata: ForeignMetadata | None = None
    failed: bool = Field(default=False, description="the rollout ended without an answer, so it scores zero")

    @property
    def kind(self) -> str:
        """The question's type, empty where it is not known."""
        return self.question_type or (self.metadata and self.metadata.question_type) or ""


@dataclass(frozen=True, slots=True)
class ScoredFile:
    """The predictions of one file: scores and golden answers per question, in the order of the ids."""

    path: Path
    rows: int
    scores: QuestionScores
    golden_answers: tuple[tuple[str, ...], ...]


def read_predictions(path: Path) -> Iterator[tuple[int, Prediction]]:
    """Yield the line numbers, from 1, and rows of a file of predictions or trajectories.

    Raises:
        ArtifactError: the file does not exist.
        RecordError: a row does not fit; names file, line and field.
    """
    if not _holds_trajectories(path):
        yield from numbered_records(path, Prediction)
        return
    for number, trajectory in numbered_records(path, Trajectory):
        if not trajectory.golden_answers:
            raise RecordError(path, number, "golden_answers", "there is none, so the answer cannot be scored")
        yield number, _from_trajectory(trajectory)


def _holds_trajectories(path: Path) -> bool:
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist; give a JSON Lines file of predictions or trajectories.")
    with path.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"{}")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return False  # the reader of predictions names the line
    return isinstance(row, dict) and "stop_reason" in row and "pred" not in row


def _from_trajectory(trajectory: Trajectory) -> Prediction:
    return Prediction(
        id=trajectory.question_id,
        question=trajectory.question,
        golden_answers=trajectory.golden_answers,
        pred=trajectory.answer,
        sample=trajectory.sample,
        question_type=trajectory.question_type,
        failed=trajectory.failed,
    )


def score_predictions(path: Path) -> ScoredFile:
    """Score a file; a question that was answered several times counts once, with the mean of its answers' scores.

    Raises:
        ArtifactError: the file is missing or empty.
        RecordError: a row does not fit, repeats another's id and sample, or has other golden answers than an earlier
            answer to the same question.
    """
    places: dict[str, int] = {}
    firsts: list[Prediction] = []
    seen: set[tuple[str, int]] = set()
    rows: list[tuple[int, answers.AnswerScores]] = []
    for number, row in read_predictions(path):
        place = places.setdefault(row.id, len(places))
        if place == len(firsts):
            firsts.append(row)
        _check_repeats(path, number, row, firsts[place], seen)
        rows.append((place, answers.ZERO if row.failed else answers.score(row.pred, row.golden_answers)))
    if not rows:
        raise ArtifactError(f"{path} holds no predictions.")
    return ScoredFile(path, len(rows), *_by_question(firsts, rows))


def _check_repeats(path: Path, number: int, row: Prediction, first: Prediction, seen: set[tuple[str, int]]) -> None:
    if (row.id, row.sample) in seen:
        raise RecordError(path, number, "id", f"{row.id!r} is answered twice; several answers need different `sample`s")
    seen.add((row.id, row.sample))
    if row.golden_answers != first.golden_answers:
        raise RecordError(path, number, "golden_answers", f"{row.id!r} has other golden answers further up")


def _by_question(
    firsts: Sequence[Prediction], rows: Sequence[tuple[int, answers.AnswerScores]]
) -> tuple[QuestionScores, tuple[tuple[str, ...], ...]]:
    places_N = np.array([place for place, _ in rows])
    values_NM = np.array([scored for _, scored in rows])
    order_Q = sorted(range(len(firsts)), key=lambda place: firsts[place].id)
    answered_Q = np.bincount(places_N)
    metrics = {
        name: (np.bincount(places_N, values_NM[:, column]) / answered_Q)[order_Q]
        for column, name in enumerate(answers.METRICS)
    }
    ordered = [firsts[place] for place in order_Q]
    kinds = tuple(row.kind for row in ordered)
    scores = QuestionScores(tuple(row.id for row in ordered), kinds, metrics)
    return scores, tuple(row.golden_answers for row in ordered)
