"""What of a finished report goes to MLflow: its scores by name, its settings, its answers, and a sample of rollouts.

``f1/multihoprag`` is the main figure of a question set, ``f1_greedy/multihoprag`` the one of greedy
answers, and ``f1/multihoprag.top5`` the one of the variant ``top5``. ``lost/<cause>`` are the points
that a model lost to a cause on the in-domain set. Names consist of letters, digits and ``_ - . /``.
"""

import hashlib
import heapq
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, JsonValue

from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.files import read_jsonl, read_record
from deepsearch_rl.core.records import ForeignRecord, NonEmpty, Record, Trajectory
from deepsearch_rl.core.redaction import is_secret, mask_users
from deepsearch_rl.evaluate.explain.records import ExplainReport
from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation
from deepsearch_rl.evaluate.tables import F1Table, Figures
from deepsearch_rl.train.curves import Alarm, TrainingStep

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
# MLflow refuses longer values
MAX_PARAM_CHARACTERS = 6000
MAX_DIGEST_CHARACTERS = 36
_NOT_IN_A_NAME = re.compile(r"[^\w.\-]", re.ASCII)


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


class TrackedReport(Record):
    """``track.json``: how much the stage logged."""

    experiment: NonEmpty
    models: tuple[str, ...]
    metrics: dict[str, int] = Field(description="number of metric values, by model")
    predictions: int = Field(ge=0, description="rows of all models' tables")
    traces: int = Field(ge=0, description="rollouts that became traces")


class ModelManifest(ForeignRecord):
    """The fields of a trained model's ``manifest.json`` that become tags of its run."""

    alarms: tuple[Alarm, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledRollout:
    """A rollout of a model, and the run of the F1 table that it belongs to."""

    model: str
    run: str
    trajectory: Trajectory

    @property
    def prediction(self) -> dict[str, JsonValue]:
        """The answer as a row of MLflow's table, which groups by the first field and shows the second."""
        rollout = self.trajectory
        scores = score_rollout(rollout)
        return {
            "question": rollout.question,
            "answer": rollout.answer,
            "golden_answers": " | ".join(rollout.golden_answers),
            "f1": round(scores.f1, 6),
            "em": round(scores.em, 6),
            "stop_reason": str(rollout.stop_reason),
            "run": self.run,
            "rollout": rollout.id,
            "question_type": rollout.question_type,
            "searches": len(rollout.retrievals),
            "completion_tokens": rollout.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class Results:
    """A profile's finished results.

    ``evaluations`` are folders by model, ``train_logs`` the logs of models that were trained here,
    ``weights`` the folders of models that are not behind an endpoint. ``attached`` are files that go
    beside the report's own.
    """

    profile: str
    reports: Path
    evaluations: Mapping[str, Path]
    train_logs: Mapping[str, Path]
    weights: Mapping[str, str]
    params: Mapping[str, JsonValue]
    attached: tuple[Path, ...] = ()

    @property
    def table(self) -> F1Table:
        """The F1 table."""
        return read_record(self.reports / "f1_table.json", F1Table)

    def evaluation(self, model: str) -> ModelEvaluation:
        """Return what a model was evaluated on."""
        return read_record(self.evaluations[model] / "rows.json", ModelEvaluation)

    def curve(self, model: str) -> list[TrainingStep]:
        """Return the steps of a model's training, empty where it was not trained here."""
        log = self.train_logs.get(model)
        return list(read_jsonl(log, TrainingStep)) if log else []

    def alarms(self, model: str) -> dict[str, str]:
        """Return a tag with the reason of every alarm of a model's training; the newest of each name."""
        log = self.train_logs.get(model)
        manifest = log.with_name("manifest.json") if log else None
        if manifest is None or not manifest.is_file():
            return {}
        return dict(alarm.tag for alarm in read_record(manifest, ModelManifest).alarms)

    def question_digests(self, model: str) -> dict[str, str]:
        """Return the digest of every question set that a model was asked, shortened to what MLflow takes."""
        digests: dict[str, str] = {}
        for artifact, digest in self.evaluation(model).inputs.items():
            # questions/<set>/<split>
            kind, *parts = artifact.split("/")
            if kind == "questions" and len(parts) == 2:
                digests[parts[0]] = digest[:MAX_DIGEST_CHARACTERS]

        return digests

    def figures(self, model: str) -> dict[str, float]:
        """Return a model's IFEval accuracies and lost points by their names in MLflow."""
        ifeval = read_record(self.reports / "metrics.json", Figures).root.get("ifeval", {})
        figures = {
            f"ifeval/{name}": scores[model] for name, scores in ifeval.items() if model in scores
        }
        explained = read_record(self.reports / "lost_points.json", ExplainReport)
        return figures | explained.metrics(self.table.datasets[0]).get(model, {})

    def sample(
        self, model: str, seed: int, share: float = 1.0, at_most: int | None = None
    ) -> Iterator[SampledRollout]:
        """Yield a share of the rollouts of each of a model's runs, rounded up, in the order of their files.

        A hash of seed and id chooses them, so that runs of all models over the same questions show
        the same ones.
        """

        def rank(rollout_id: str) -> bytes:
            return hashlib.sha256(f"{seed}/{rollout_id}".encode()).digest()

        for row in self.table.rows:
            if row.model != model:
                continue

            path = self.evaluations[model] / row.rollouts_file
            ids = [rollout.id for rollout in read_jsonl(path, Trajectory)]
            count = math.ceil(share * len(ids))
            chosen = set(heapq.nsmallest(count if at_most is None else at_most, ids, key=rank))
            # Read again: only the ids of a large evaluation fit into memory
            for rollout in read_jsonl(path, Trajectory):
                if rollout.id in chosen:
                    yield SampledRollout(model, row.run_name, rollout)


def best_model(table: F1Table) -> str:
    """Return the model with the best main F1 on the in-domain set; of equals the earliest in training order."""
    return max(table.main_rows(table.datasets[0]), key=lambda row: row.f1).model


def headline(table: F1Table) -> dict[str, float]:
    """Return the report's own figures: the best model's main F1 on every set, and every model's in domain."""
    rows = [row for row in table.reading_order if not row.kind]
    best = best_model(table)
    figures = {f"f1/{row.dataset}": row.f1 for row in rows if row.model == best}
    in_domain = {f"{row.model}/f1": row.f1 for row in rows if row.dataset == rows[0].dataset}
    return figures | in_domain


def row_scores(row: F1TableRow) -> dict[str, float]:
    """Return every score of a row of the F1 table, and how many rollouts failed, by its name in MLflow."""
    suffix = "" if row.main else "_greedy"
    run = _NOT_IN_A_NAME.sub("_", f"{row.dataset}.{row.variant}" if row.variant else row.dataset)
    failed = float(sum(row.failures.values()))
    scores = {name: getattr(row, name) for name in SCORES} | row.pass_scores | {"failed": failed}
    return {f"{name}{suffix}/{run}": value for name, value in scores.items()}


def flatten(params: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as (dotted name, text), without secrets.

    Settings that are named like a secret are left out; user and password of an address are masked.
    """
    for name, value in sorted(params.items()):
        if is_secret(name):
            continue
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            text = mask_users(str(_without_secrets(value)))
            yield f"{prefix}{name}", text[:MAX_PARAM_CHARACTERS]


def _without_secrets(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_without_secrets(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _without_secrets(own) for name, own in value.items() if not is_secret(name)}
    return value
