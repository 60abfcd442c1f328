"""Scores of prediction files of any system, and of trajectories.

A prediction row is ``{"id", "question", "golden_answers", "pred"}``, with ``sample`` where a question was answered
several times and ``question_type`` (its own or its metadata's) where types are known; other keys are ignored.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from deepsearch_rl import answers
from deepsearch_rl.errors import ArtifactError, RecordError
from deepsearch_rl.evaluation.scoring.overlap import GoldenAnswers, number_golds, score_rows
from deepsearch_rl.evaluation.scoring.score import QuestionScores
from deepsearch_rl.files import numbered_records
from deepsearch_rl.records import Trajectory
from deepsearch_rl.trajectories.results import ForeignRow


class Prediction(ForeignRow):
    """One answer to one question."""

    pred: str
    sample: int = Field(default=0, ge=0)
    question_type: str | None = None
    failed: bool = Field(default=False, description="the rollout ended without an answer, so it scores zero")


class ScoredFile(NamedTuple):
    """The predictions of one file: scores and golden answers per question, in the order of the ids."""

    path: Path
    rows: int
    scores: QuestionScores
    golds: GoldenAnswers


def score_predictions(path: Path) -> ScoredFile:
    """Score a file; a question that was answered several times counts once, with the mean of its answers' scores.

    Raise ArtifactError where the file is missing or empty; RecordError where a row does not fit, repeats another's id
    and sample, or has other golden answers than an earlier answer to the same question.
    """
    questions: dict[str, tuple[str, tuple[str, ...]]] = {}  # id -> type and golden answers
    answered: dict[tuple[str, int], tuple[str, bool]] = {}  # id and sample -> answer, and whether it failed
    for number, row in _read_predictions(path):
        kind = row.question_type or row.type_in_metadata
        _, golden_answers = questions.setdefault(row.id, (kind, row.golden_answers))
        if (row.id, row.sample) in answered:
            problem = f"{row.id!r} is answered twice; several answers need different `sample`s"
            raise RecordError(path, number, "id", problem)
        if row.golden_answers != golden_answers:
            raise RecordError(path, number, "golden_answers", f"{row.id!r} has other golden answers further up")
        answered[row.id, row.sample] = row.pred, row.failed
    if not answered:
        raise ArtifactError(f"{path} holds no predictions.")
    ids = sorted(questions)
    places = {name: place for place, name in enumerate(ids)}
    golds = number_golds([questions[name][1] for name in ids])
    question_N = np.array([places[name] for name, _ in answered])
    values_NM = score_rows(golds, question_N, [pred for pred, _ in answered.values()])
    values_NM[np.array([failed for _, failed in answered.values()])] = answers.ZERO
    count_Q = np.bincount(question_N)
    metrics = {
        name: np.bincount(question_N, values_NM[:, column]) / count_Q for column, name in enumerate(answers.METRICS)
    }
    scores = QuestionScores(tuple(ids), tuple(questions[name][0] for name in ids), metrics)
    return ScoredFile(path, len(answered), scores, golds)


def _read_predictions(path: Path) -> Iterator[tuple[int, Prediction]]:
    """Yield the line numbers, from 1, and rows of a file of predictions or trajectories."""
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist; give a JSON Lines file of predictions or trajectories.")
    with path.open("rb") as lines:
        first_line = next((line for line in lines if line.strip()), b"")
    if b'"stop_reason"' not in first_line or b'"pred"' in first_line:
        yield from numbered_records(path, Prediction)
        return
    for number, trajectory in numbered_records(path, Trajectory):
        if not trajectory.golden_answers:
            raise RecordError(path, number, "golden_answers", "there is none, so the answer cannot be scored")
        same = trajectory.model_dump(include={"question", "golden_answers", "sample", "question_type"})
        yield number, Prediction(id=trajectory.question_id, pred=trajectory.answer, failed=trajectory.failed, **same)
