"""Everything that the upload of a report needs, in one folder.

    bundle.json        the F1 table, IFEval, every model with its training curve and digests, settings, tags
    predictions.jsonl  answers of every model, as many as ``track.predictions`` says of each run
    rollouts.jsonl     whole rollouts, the share ``track.traces`` of each run
    question_f1.json   mean F1 of every question's answers, by model, run and id: two reports are compared by it
    files/             the table, figures, the page and all settings as files, attached as they are

A bundle is recognised by the digest of its results: settings and provenance are no part of its
identity. Its rollouts are drawn by a hash of seed and id, so that every model's run over the same
questions shows the same ones.

In MLflow ``f1/multihoprag`` is the main figure of a set, ``f1_greedy/multihoprag`` that of greedy
answers, and ``f1/multihoprag.top5`` that of the variant ``top5``. ``lost/<cause>`` are the points of
the in-domain set that a model lost to a cause. Names keep to letters, digits and ``_ - . /``.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from mlflow.entities import Metric
from pydantic import Field, JsonValue

from deepsearch_rl.core.files import (
    read_record,
)
from deepsearch_rl.core.records import NonEmpty, Record, StopReason, Trajectory
from deepsearch_rl.evaluate.f1_row import F1TableRow, Share
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.track.curves import line_digest
from deepsearch_rl.track.run_names import run_name
from deepsearch_rl.train.curves import TrainingStep

BUNDLE = "bundle.json"
PREDICTIONS = "predictions.jsonl"
ROLLOUTS = "rollouts.jsonl"
FILES = "files"
TABLE = "f1_table.md"
PAGE = "index.html"
LOST_POINTS = "lost_points.json"
PARAMS = "params.json"
QUESTION_F1 = "question_f1.json"
# Of a data set's digest; MLflow refuses longer ones
DIGEST_CHARACTERS = 36
SCORES = (
    "f1",
    "f1_low",
    "f1_high",
    "em",
    "acc",
    "precision",
    "recall",
    "mean_rounds",
    "mean_tool_calls",
)
_NOT_IN_A_NAME = re.compile(r"[^\w.\-]", re.ASCII)


class DatasetDigest(Record):
    """A data set by its content: where it lies and the digest, of at most 36 characters."""

    path: NonEmpty
    digest: NonEmpty = Field(max_length=DIGEST_CHARACTERS)


class TrackConfig(Record):
    """Section ``track``: what of a report goes to MLflow, and how long a server may take."""

    experiment: NonEmpty = Field(description="MLflow experiment that all profiles' reports go to")
    predictions: int | None = Field(
        ge=0, description="answers of every run in its model's table; null: all"
    )
    traces: float = Field(
        ge=0, le=1, description="share of every run's rollouts that become traces, rounded up"
    )
    timeout_s: float = Field(gt=0, description="seconds for one request to a server")


class Provenance(Record):
    """Where a report comes from; no part of its identity.

    ``params`` are nested settings by section, ``defaults`` those of the default profile, for runs
    show what differs. ``tags`` go to every run, ``model_tags`` to that of the named model.
    """

    tags: dict[str, str]
    model_tags: dict[str, dict[str, str]]
    params: dict[str, JsonValue]
    defaults: dict[str, JsonValue]
    datasets: dict[str, DatasetDigest]


class TrackedReport(Record):
    """``track.json``: what the bundle holds. Whether it arrived is the server's to know, not an artifact's."""

    digest: NonEmpty
    experiment: NonEmpty
    models: tuple[str, ...]
    metrics: dict[str, int] = Field(description="number of metric values, by model")
    predictions: int = Field(ge=0, description="rows of all models' tables")
    traces: int = Field(ge=0, description="rollouts that become traces")


class PredictionRow(Record):
    """One answer of one model, as a row of its table; MLflow's page groups by the first field and shows the second."""

    question: NonEmpty
    answer: str
    golden_answers: tuple[str, ...]
    f1: Share
    em: Share
    stop_reason: StopReason
    run: NonEmpty = Field(
        description="question set, and what sets the run apart from the main one, e.g. greedy"
    )
    rollout: NonEmpty = Field(description="<question id>#<sample>")
    question_type: str
    searches: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    model: NonEmpty

    def table_row(self) -> dict[str, JsonValue]:
        """Return the row as MLflow's table artifacts want it, with the golden answers as one text."""
        return self.model_dump(mode="json") | {"golden_answers": " | ".join(self.golden_answers)}


class TracedRollout(Record):
    """A rollout that becomes a trace, and the run that it is of."""

    model: NonEmpty
    run: NonEmpty
    trajectory: Trajectory


class EvaluatedModel(Record):
    """A model of the table: what it is, what it answered, how it was trained."""

    checkpoint: NonEmpty = Field(description="weights, or the name at an endpoint")
    sha256: str = Field(description="of the model's files, or of what names it")
    questions: dict[str, DatasetDigest] = Field(description="question set -> file")
    curve: tuple[TrainingStep, ...]
    tags: dict[str, str]


class ReportBundle(Record):
    """``bundle.json``."""

    schema_version: Literal[1] = 1
    digest: NonEmpty = Field(
        description="hex SHA-256 of the results: table, IFEval, lost points, curves, predictions, rollouts"
    )
    experiment: NonEmpty
    table: F1Table
    ifeval: dict[str, dict[str, float]] = Field(description="accuracy by metric and model")
    lost: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="lost points of the in-domain set, by model and metric"
    )
    models: dict[str, EvaluatedModel]
    tags: dict[str, str]
    params: dict[str, str] = Field(
        description="settings that differ from the default profile's, by dotted name"
    )
    datasets: dict[str, DatasetDigest]

    @property
    def name(self) -> str:
        """What people call it: profile, what differs from the committed settings, commit."""
        return run_name(self.table.profile, self.tags)

    def name_of(self, model: str) -> str:
        """What people call a model of the report."""
        return run_name(f"{self.table.profile}/{model}", self.tags)

    @property
    def best_model(self) -> str:
        """The model with the best main F1 on the in-domain set, the earliest in training order of equals."""
        return max(self.table.main_rows(self.table.datasets[0]), key=lambda row: row.f1).model

    def headline(self) -> list[Metric]:
        """Return the report's own figures: the best model's main F1 on every set, and every model's in domain."""
        rows = [row for row in self.table.reading_order if not row.kind]
        best: dict[str, float] = {}
        in_domain: dict[str, float] = {}
        for row in rows:
            if row.model == self.best_model:
                best[f"f1/{row.dataset}"] = row.f1
            # The in-domain set is the first in reading order
            if row.dataset == rows[0].dataset:
                in_domain[f"{row.model}/f1"] = row.f1

        now_ms = int(time.time() * 1000)
        return [Metric(name, value, now_ms, 0) for name, value in (best | in_domain).items()]

    def metrics(
        self,
        model: str,
        model_id: str = "",
        now_ms: int = 0,
        step_times: Mapping[str, int] | None = None,
    ) -> list[Metric]:
        """Return a model's scores by set, IFEval accuracies, lost points and training curve, ``train/<metric>``.

        The in-domain F1 is the first, which MLflow's compare page then opens on. Scores are linked
        to the logged model ``model_id`` and to the questions asked, the curve to the run alone.
        Scores are of ``now_ms``, a step of the curve is of its own time in ``step_times``, or else
        of the next step's.
        """
        evaluated = self.models[model]
        metrics: list[Metric] = []

        for row in self.table.reading_order:
            if row.model != model:
                continue
            questions = evaluated.questions.get(row.dataset)
            source = (row.dataset, questions.digest) if questions else (None, None)
            for name, value in row_scores(row).items():
                metrics.append(Metric(name, value, now_ms, 0, model_id, *source))

        for name, accuracies in self.ifeval.items():
            if model in accuracies:
                metrics.append(Metric(f"ifeval/{name}", accuracies[model], now_ms, 0, model_id))

        for name, value in self.lost.get(model, {}).items():
            metrics.append(Metric(name, value, now_ms, 0, model_id))

        # From the end, because a step whose time nobody noted takes that of the step after it
        curve: list[Metric] = []
        time_ms = now_ms

        for point in reversed(evaluated.curve):
            time_ms = (step_times or {}).get(line_digest(point.model_dump()), time_ms)
            # Backwards, too: the list is turned round as a whole
            for name, value in sorted(point.metrics.items(), reverse=True):
                curve.append(Metric(f"train/{name}", value, time_ms, point.step))

        return metrics + curve[::-1]


def row_scores(row: F1TableRow) -> dict[str, float]:
    """Return every score of a row of the F1 table, and how many rollouts failed, by its name in MLflow."""
    suffix = "" if row.main else "_greedy"
    run = _NOT_IN_A_NAME.sub("_", f"{row.dataset}.{row.variant}" if row.variant else row.dataset)
    failed = float(sum(row.failures.values()))
    scores = {name: getattr(row, name) for name in SCORES} | row.pass_scores | {"failed": failed}
    return {f"{name}{suffix}/{run}": value for name, value in scores.items()}


def read_bundle(folder: Path) -> ReportBundle:
    """Read a bundle's description; :class:`ArtifactError` if it is missing or does not fit."""
    return read_record(folder / BUNDLE, ReportBundle)
