"""Scores of prediction files of any system, and of trajectories.

A prediction row is ``{"id", "question", "golden_answers", "pred"}``, with ``sample`` where a
question was answered several times and ``question_type`` (its own or its metadata's) where types
are known; other keys are ignored. A row without a ``pred`` (it scores as the empty answer), with an
``error`` or with ``failed`` (they score zero) is a failure, counted by its kind.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core import answers
from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.core.files import numbered_records
from deepsearch_rl.core.records import OptionalText, StopReason, Text, Trajectory
from deepsearch_rl.data.flashrag import numbered_rows
from deepsearch_rl.evaluate.overlap import GoldenAnswers, number_golds, score_rows
from deepsearch_rl.evaluate.published import ErrorText, ForeignRow
from deepsearch_rl.evaluate.score import QuestionScores


class Prediction(ForeignRow):
    """One answer to one question."""

    question: Text = ""
    pred: Text = ""
    sample: int = Field(default=0, ge=0)
    question_type: OptionalText = None
    failed: bool = Field(
        default=False, description="the rollout ended without an answer, so it scores zero"
    )
    error: ErrorText = None

    @property
    def failure(self) -> str | None:
        """Why there is no answer: a stop reason, or ``failed`` where the file says no more; None: there is one."""
        if self.error is not None:
            return StopReason.MODEL_ERROR.value
        if self.failed:
            return "failed"
        return None if self.pred else StopReason.NO_ANSWER_TAG.value


class ScoredFile(NamedTuple):
    """The predictions of one file: scores and golden answers per question, in the order of the ids."""

    path: Path
    rows: int
    scores: QuestionScores
    golds: GoldenAnswers
    # Rows without an answer, by kind
    failures: dict[str, int]


def score_predictions(path: Path) -> ScoredFile:
    """Score a file; a question that was answered several times counts once, with the mean of its answers' scores.

    Raise ArtifactError where the file is missing, a folder or empty, or no row has a ``pred``; RecordError
    where a row does not fit, repeats another's id and sample, or has other golden answers than an
    earlier answer to the same question.
    """
    # Id -> type and golden answers
    questions: dict[str, tuple[str, tuple[str, ...]]] = {}
    # Id and sample -> answer, and whether it failed
    answered: dict[tuple[str, int], tuple[str, bool]] = {}
    failures = Counter[str]()
    has_answers = False

    for number, row, failure in _read_predictions(path):
        kind = row.question_type or row.type_in_metadata
        _, golden_answers = questions.setdefault(row.id, (kind, row.golden_answers))
        if (row.id, row.sample) in answered:
            problem = f"{row.id!r} is answered twice; several answers need different `sample`s"
            raise RecordError(path, number, "id", problem)

        if row.golden_answers != golden_answers:
            raise RecordError(
                path, number, "golden_answers", f"{row.id!r} has other golden answers further up"
            )

        answered[row.id, row.sample] = row.pred, row.failed or row.error is not None
        has_answers |= failure in (None, StopReason.MODEL_ERROR) or "pred" in row.model_fields_set
        if failure is not None:
            failures[failure] += 1

    if not answered:
        raise ArtifactError(f"{path} holds no predictions.")
    if not has_answers:
        raise ArtifactError(
            f"no row of {path} has the key `pred`; name the key that holds the answer so."
        )

    scores, golds = _score_questions(questions, answered)
    return ScoredFile(path, len(answered), scores, golds, dict(sorted(failures.items())))


def _score_questions(
    questions: Mapping[str, tuple[str, tuple[str, ...]]],
    answered: Mapping[tuple[str, int], tuple[str, bool]],
) -> tuple[QuestionScores, GoldenAnswers]:
    """Return the mean scores of each question's answers, and the golden answers, in the order of the ids."""
    ids = sorted(questions)
    place_of: dict[str, int] = {}
    types: list[str] = []
    golden_answers_Q: list[tuple[str, ...]] = []
    for place, question_id in enumerate(ids):
        kind, golden_answers = questions[question_id]
        place_of[question_id] = place
        types.append(kind)
        golden_answers_Q.append(golden_answers)

    golds = number_golds(golden_answers_Q)
    question_N = np.array([place_of[question_id] for question_id, _ in answered])
    preds, is_failed = zip(*answered.values(), strict=True)
    values_NM = score_rows(golds, question_N, preds)
    # A failed answer stays in the denominator, whatever its text would score
    values_NM[np.array(is_failed)] = answers.ZERO

    count_Q = np.bincount(question_N)
    metrics: dict[str, NDArray[np.float64]] = {}
    for column, name in enumerate(answers.METRICS):
        metrics[name] = np.bincount(question_N, values_NM[:, column]) / count_Q

    return QuestionScores(tuple(ids), tuple(types), metrics), golds


def first_line(path: Path) -> bytes:
    """Return the first line of a file that is not blank, which tells what its rows are; empty if there is none."""
    with path.open("rb") as lines:
        return next((line for line in lines if line.strip()), b"")


def _is_of_trajectories(path: Path) -> bool:
    line = first_line(path)
    return b'"stop_reason"' in line and b'"pred"' not in line


def _read_predictions(path: Path) -> Iterator[tuple[int, Prediction, str | None]]:
    """Yield line numbers, from 1, rows and failures of a file of predictions or trajectories."""
    if path.is_dir():
        raise ArtifactError(f"{path} is a folder; name a file in it.")
    if not path.is_file():
        raise ArtifactError(
            f"{path} does not exist; give a JSON Lines file of predictions or trajectories."
        )

    if not _is_of_trajectories(path):
        for number, row in numbered_rows(path, Prediction):
            yield number, row, row.failure
        return

    for number, trajectory in numbered_records(path, Trajectory):
        if not trajectory.golden_answers:
            raise RecordError(
                path, number, "golden_answers", "there is none, so the answer cannot be scored"
            )

        same = trajectory.model_dump(
            include={"question", "golden_answers", "sample", "question_type"}
        )
        row = Prediction(
            id=trajectory.question_id, pred=trajectory.answer, failed=trajectory.failed, **same
        )
        yield number, row, trajectory.stop_reason.value if trajectory.failed else None
