"""From a profile's results to a report bundle."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, JsonValue

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
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.redaction import is_secret, mask_users
from deepsearch_rl.tracking.bundle import (
    BUNDLE,
    DIGEST_CHARACTERS,
    FILES,
    PREDICTIONS,
    ROLLOUTS,
    Bundle,
    DatasetDigest,
    EvaluatedModel,
)
from deepsearch_rl.tracking.metrics import CurvePoint
from deepsearch_rl.tracking.selection import ShownRollout, drawn, prediction, shown_rollouts

ATTACHED = ("f1_table.md", "f1_table.csv", "metrics.json")
"""Files of a report that MLflow keeps as they are."""
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
        predictions = write_jsonl(
            partial / PREDICTIONS, map(prediction, _rollouts(table, results, 1.0, config.predictions, seed))
        )
        traces = write_jsonl(partial / ROLLOUTS, _rollouts(table, results, config.traces, None, seed))
        (partial / FILES).mkdir()
        for name in ATTACHED:
            shutil.copyfile(results.reports / name, partial / FILES / name)
        bundle = Bundle(
            digest=_digest(table, ifeval, models, partial),
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
        metrics={name: len(bundle.scores(name)) + len(bundle.curve(name)) for name in models},
        predictions=predictions,
        traces=traces,
    )


def _model(name: str, results: Results, provenance: Provenance) -> EvaluatedModel:
    evaluation = read_record(results.evaluations[name] / "rows.json", ModelEvaluation)
    log = results.train_logs.get(name)
    return EvaluatedModel(
        checkpoint=evaluation.rows[0].checkpoint,
        sha256=evaluation.inputs.get("model", ""),
        questions=_question_files(evaluation, results.questions),
        curve=tuple(read_jsonl(log, CurvePoint)) if log else (),
        tags=provenance.model_tags.get(name, {}),
    )


def _question_files(evaluation: ModelEvaluation, questions: Path) -> dict[str, DatasetDigest]:
    """The file of every set that was answered; ``inputs`` names it ``questions/<dataset>/<split>``."""
    files: dict[str, DatasetDigest] = {}
    for name, digest in evaluation.inputs.items():
        kind, *parts = name.split("/")
        if kind == "questions" and len(parts) == 2:
            path = questions / parts[0] / f"{parts[1]}.jsonl"
            files[parts[0]] = DatasetDigest(path=path.as_posix(), digest=digest[:DIGEST_CHARACTERS])
    return files


def _rollouts(table: F1Table, results: Results, share: float, at_most: int | None, seed: int) -> Iterator[ShownRollout]:
    """Yield a share of every run's rollouts, at most so many of each."""
    for row in table.rows:
        path = results.evaluations[row.model] / row.rollouts_file
        run = ", ".join(filter(None, (row.dataset, row.kind)))
        yield from shown_rollouts(path, drawn(path, share, at_most, seed), row.model, run)


def _digest(
    table: F1Table, ifeval: Mapping[str, Mapping[str, float]], models: Mapping[str, EvaluatedModel], folder: Path
) -> str:
    curves = {name: [point.model_dump() for point in model.curve] for name, model in models.items()}
    files = [sha256_file(folder / name) for name in (PREDICTIONS, ROLLOUTS)]
    return sha256_json([table.model_dump(mode="json"), ifeval, curves, files])


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
