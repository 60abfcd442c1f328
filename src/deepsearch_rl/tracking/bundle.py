"""Everything that the upload of a report needs, in one folder.

    bundle.json        the F1 table, IFEval, every model with its training curve and digests, settings, tags
    predictions.jsonl  answers of every model, as many as ``track.predictions`` says of each run
    rollouts.jsonl     whole rollouts, the share ``track.traces`` of each run
    files/             the table and figures as files, attached as they are

A bundle is recognised by the digest of its results: settings and provenance are no part of its identity.

In MLflow ``f1/multihoprag`` is the main figure of a set, ``f1_greedy/multihoprag`` that of greedy answers, and
``f1/multihoprag.top5`` that of the variant ``top5``. Names keep to what every MLflow store takes: letters, digits,
``_ - . /`` and spaces.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mlflow.entities import Metric
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from deepsearch_rl.evaluation.report.tables import CSV_COLUMNS, F1Table, failures_text
from deepsearch_rl.evaluation.scoring.f1_row import F1TableRow
from deepsearch_rl.files import read_record
from deepsearch_rl.records import NonEmpty, Record, StopReason, Trajectory

BUNDLE, PREDICTIONS, ROLLOUTS, FILES = "bundle.json", "predictions.jsonl", "rollouts.jsonl", "files"
DIGEST_CHARACTERS = 36
"""Of a data set's digest; MLflow refuses longer ones."""
SCORES = ("f1", "f1_low", "f1_high", "em", "acc", "precision", "recall", "mean_rounds", "mean_tool_calls")
_NOT_IN_A_NAME = re.compile(r"[^\w.\-]", re.ASCII)


class CurvePoint(BaseModel):
    """One line of a ``train_log.jsonl``: a step and its metrics by name; null where a step has no such value."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, float | None]  # pyright: ignore[reportIncompatibleVariableOverride]

    step: int = Field(ge=0)


class Prediction(Record):
    """One answer of one model, as a row of its table; MLflow's page groups by the first field and shows the second."""

    question: NonEmpty
    answer: str
    golden_answers: tuple[str, ...]
    f1: float = Field(ge=0, le=1)
    em: float = Field(ge=0, le=1)
    stop_reason: StopReason
    run: NonEmpty = Field(description="question set, and what sets the run apart from the main one, e.g. greedy")
    rollout: NonEmpty = Field(description="<question id>#<sample>")
    question_type: str
    searches: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    model: NonEmpty


class ShownRollout(Record):
    """A rollout that becomes a trace, and the run that it is of."""

    model: NonEmpty
    run: NonEmpty
    trajectory: Trajectory


class DatasetDigest(Record):
    """A data set by its content: where it lies and the digest, of at most 36 characters."""

    path: NonEmpty
    digest: NonEmpty = Field(max_length=DIGEST_CHARACTERS)


class EvaluatedModel(Record):
    """A model of the table: what it is, what it answered, how it was trained."""

    checkpoint: NonEmpty = Field(description="weights, or the name at an endpoint")
    sha256: str = Field(description="of the model's files, or of what names it")
    questions: dict[str, DatasetDigest] = Field(description="question set -> file")
    curve: tuple[CurvePoint, ...]
    tags: dict[str, str]


class Bundle(Record):
    """``bundle.json``."""

    schema_version: Literal[1] = 1
    digest: NonEmpty = Field(description="hex SHA-256 of the results: table, IFEval, curves, predictions, rollouts")
    experiment: NonEmpty
    table: F1Table
    ifeval: dict[str, dict[str, float]] = Field(description="accuracy by metric and model")
    models: dict[str, EvaluatedModel]
    tags: dict[str, str]
    params: dict[str, str] = Field(description="settings by dotted name, nothing named like a secret")
    datasets: dict[str, DatasetDigest]

    @property
    def name(self) -> str:
        """What people call it: profile and digest."""
        return f"{self.table.profile} {self.digest[:12]}"

    def metrics(self, model: str, model_id: str = "", now_ms: int = 0) -> list[Metric]:
        """Return a model's scores by question set, its IFEval accuracies and its training curve, ``train/<metric>``.

        Scores are linked to the logged model ``model_id`` and to the questions asked, the curve to the run alone.
        """
        evaluated = self.models[model]
        metrics: list[Metric] = []
        for row in (row for row in self.table.rows if row.model == model):
            questions = evaluated.questions.get(row.dataset)
            source = (row.dataset, questions.digest) if questions else (None, None)
            scores = row_scores(row).items()
            metrics += [Metric(name, value, now_ms, 0, model_id, *source) for name, value in scores]
        for name, accuracies in self.ifeval.items():
            if model in accuracies:
                metrics.append(Metric(f"ifeval/{name}", accuracies[model], now_ms, 0, model_id))
        for point in evaluated.curve:
            values = sorted((point.__pydantic_extra__ or {}).items())
            metrics += [
                Metric(f"train/{name}", value, now_ms, point.step) for name, value in values if value is not None
            ]
        return metrics


def row_scores(row: F1TableRow) -> dict[str, float]:
    """Return every score of a row of the F1 table, and how many rollouts failed, by its name in MLflow."""
    suffix = "" if row.main else "_greedy"
    run = _NOT_IN_A_NAME.sub("_", f"{row.dataset}.{row.variant}" if row.variant else row.dataset)
    failed = float(sum(row.failures.values()))
    return {f"{name}{suffix}/{run}": getattr(row, name) for name in SCORES} | {f"failed{suffix}/{run}": failed}


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle's description; :class:`ArtifactError` if it is missing or does not fit."""
    return read_record(folder / BUNDLE, Bundle)


def columns(records: Sequence[Record]) -> dict[str, list[JsonValue]]:
    """Return records by column, as MLflow's table artifacts want them; a list becomes a text of its entries."""
    rows = [record.model_dump(mode="json") for record in records]
    return {
        name: [" | ".join(map(str, row[name])) if isinstance(row[name], list) else row[name] for row in rows]
        for name in (rows[0] if rows else ())
    }


def table_columns(rows: Sequence[F1TableRow]) -> dict[str, list[JsonValue]]:
    """Return the F1 table by column: its key and figures as in ``f1_table.csv``, failures as ``kind=count``."""
    table = {name: [getattr(row, name) for row in rows] for name in CSV_COLUMNS}
    table["failures"] = [failures_text(row.failures) for row in rows]
    return table
