"""From a profile's results to a report bundle.

Rollouts are drawn by a hash of seed and id: every model's run over the same questions shows the same ones, so that
tables and traces can be compared across models, and a longer run keeps those that a shorter one showed.
"""

import hashlib
import heapq
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, JsonValue

from deepsearch_rl.answers import score_rollout
from deepsearch_rl.evaluation.report.tables import F1Table, Metrics
from deepsearch_rl.evaluation.scoring.f1_row import ModelEvaluation
from deepsearch_rl.files import (
    atomic_directory,
    read_jsonl,
    read_record,
    sha256_file,
    sha256_json,
    write_json,
    write_jsonl,
)
from deepsearch_rl.records import NonEmpty, Record, Trajectory
from deepsearch_rl.redaction import is_secret, mask_users
from deepsearch_rl.tracking.bundle import (
    BUNDLE,
    DIGEST_CHARACTERS,
    FILES,
    PREDICTIONS,
    ROLLOUTS,
    Bundle,
    CurvePoint,
    DatasetDigest,
    EvaluatedModel,
    Prediction,
    ShownRollout,
)

MAX_PARAM_CHARACTERS = 6000


class TrackConfig(Record):
    """Section ``track``: what of a report goes to MLflow, and how long a server may take."""

    experiment: NonEmpty = Field(description="MLflow experiment that all profiles' reports go to")
    predictions: int | None = Field(ge=0, description="answers of every run in its model's table; null: all")
    traces: float = Field(ge=0, le=1, description="share of every run's rollouts that become traces, rounded up")
    timeout_s: float = Field(gt=0, description="seconds for one request to a server")


class Provenance(Record):
    """Where a report comes from; no part of its identity.

    ``params`` are nested settings by section; ``tags`` go to every run, ``model_tags`` to that of the named model.
    """

    tags: dict[str, str]
    model_tags: dict[str, dict[str, str]]
    params: dict[str, JsonValue]
    datasets: dict[str, DatasetDigest]


class TrackedReport(Record):
    """``track.json``: what the bundle holds. Whether it arrived is the server's to know, not an artifact's."""

    digest: NonEmpty
    experiment: NonEmpty
    models: tuple[str, ...]
    metrics: dict[str, int] = Field(description="number of metric values, by model")
    predictions: int = Field(ge=0, description="rows of all models' tables")
    traces: int = Field(ge=0, description="rollouts that become traces")


@dataclass(frozen=True, slots=True)
class Results:
    """Where a profile's results lie: its report, every model's evaluation, and the training logs that there are."""

    reports: Path
    evaluations: Mapping[str, Path]
    train_logs: Mapping[str, Path]
    questions: Path


def build_bundle(results: Results, provenance: Provenance, config: TrackConfig, seed: int, out: Path) -> TrackedReport:
    """Write the bundle of a report into the folder ``out`` and return what it holds.

    Raises:
        ArtifactError, RecordError: a result is missing or malformed.
    """
    table = read_record(results.reports / "f1_table.json", F1Table)
    ifeval = read_record(results.reports / "metrics.json", Metrics).root.get("ifeval", {})
    models = {name: _model(name, results, provenance) for name in sorted({row.model for row in table.rows})}
    with atomic_directory(out) as partial:
        rows = map(_prediction, _rollouts(table, results, 1.0, config.predictions, seed))
        predictions = write_jsonl(partial / PREDICTIONS, rows)
        traces = write_jsonl(partial / ROLLOUTS, _rollouts(table, results, config.traces, None, seed))
        (partial / FILES).mkdir()
        for name in ("f1_table.md", "f1_table.csv", "metrics.json"):
            shutil.copyfile(results.reports / name, partial / FILES / name)
        curves = {name: [point.model_dump() for point in model.curve] for name, model in models.items()}
        files = [sha256_file(partial / name) for name in (PREDICTIONS, ROLLOUTS)]
        bundle = Bundle(
            digest=sha256_json([table.model_dump(mode="json"), ifeval, curves, files]),
            experiment=config.experiment,
            table=table,
            ifeval=ifeval,
            models=models,
            tags={**provenance.tags, "profile": table.profile},
            params=dict(flatten(provenance.params)),
            datasets=provenance.datasets,
        )
        write_json(partial / BUNDLE, bundle.model_dump(mode="json"))
    return TrackedReport(
        digest=bundle.digest,
        experiment=bundle.experiment,
        models=tuple(models),
        metrics={name: len(bundle.metrics(name)) for name in models},
        predictions=predictions,
        traces=traces,
    )


def _model(name: str, results: Results, provenance: Provenance) -> EvaluatedModel:
    evaluation = read_record(results.evaluations[name] / "rows.json", ModelEvaluation)
    log = results.train_logs.get(name)
    questions: dict[str, DatasetDigest] = {}
    for artifact, digest in evaluation.inputs.items():
        kind, *parts = artifact.split("/")
        if kind == "questions" and len(parts) == 2:  # set and split
            path = results.questions / parts[0] / f"{parts[1]}.jsonl"
            questions[parts[0]] = DatasetDigest(path=path.as_posix(), digest=digest[:DIGEST_CHARACTERS])
    return EvaluatedModel(
        checkpoint=evaluation.rows[0].checkpoint,
        sha256=evaluation.inputs.get("model", ""),
        questions=questions,
        curve=tuple(read_jsonl(log, CurvePoint)) if log else (),
        tags=provenance.model_tags.get(name, {}),
    )


def _rollouts(table: F1Table, results: Results, share: float, at_most: int | None, seed: int) -> Iterator[ShownRollout]:
    """Yield a share of every run's rollouts (rounded up), at most so many of each, in the order of their files."""
    for row in table.rows:
        path = results.evaluations[row.model] / row.rollouts_file
        ids = [rollout.id for rollout in read_jsonl(path, Trajectory)]
        count = math.ceil(share * len(ids))
        count = count if at_most is None else min(count, at_most)
        drawn = set(heapq.nsmallest(count, ids, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest()))
        for rollout in read_jsonl(path, Trajectory):
            if rollout.id in drawn:
                yield ShownRollout(model=row.model, run=row.run_name, trajectory=rollout)


def _prediction(shown: ShownRollout) -> Prediction:
    rollout = shown.trajectory
    scores = score_rollout(rollout)
    return Prediction(
        question=rollout.question,
        answer=rollout.answer,
        golden_answers=rollout.golden_answers,
        f1=round(scores.f1, 6),
        em=round(scores.em, 6),
        stop_reason=rollout.stop_reason,
        run=shown.run,
        rollout=rollout.id,
        question_type=rollout.question_type,
        searches=len(rollout.retrievals),
        completion_tokens=rollout.completion_tokens,
        model=shown.model,
    )


def flatten(params: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, text), in order, without secrets.

    A setting that is named like a secret is left out, and so are user and password of an address in any text.
    """
    for name, value in sorted(params.items()):
        dotted = f"{prefix}{name}"
        if is_secret(name):
            continue
        if isinstance(value, dict):
            yield from flatten(value, f"{dotted}.")
        else:
            yield dotted, str(_public(value))[:MAX_PARAM_CHARACTERS]


def _public(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return mask_users(value)
    if isinstance(value, list):
        return [_public(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _public(entry) for name, entry in value.items() if not is_secret(name)}
    return value
