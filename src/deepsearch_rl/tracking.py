"""Finished reports go to MLflow: one run per report, and under it one run per evaluated model.

A model's run carries its scores (``f1/multihoprag``; greedy answers as ``f1_greedy/multihoprag``) and its training
curves (``train/loss``, ``train/reward``, ...), so that MLflow's compare view needs no preparation. A report is
recognised by the digest of its results, so that sending it twice adds nothing; a run that a kill left unfinished is
replaced. This is the only module that knows MLflow.
"""

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from mlflow.entities import Dataset, DatasetInput, Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.evaluation.rows import F1TableRow
from deepsearch_rl.evaluation.tables import F1Table, failures_text
from deepsearch_rl.files import sha256_json
from deepsearch_rl.records import NonEmpty, Record

SCORES = ("f1", "f1_low", "f1_high", "em", "acc", "precision", "recall", "mean_rounds", "mean_tool_calls")
SETTINGS = ("model", "checkpoint", "dataset", "corpus", "prompt", "top_k", "chunk_size", "temperature", "samples", "n")
BATCH = 100
"""Params, tags or metrics of one request; MLflow refuses more than 100 params or 1,000 metrics."""
MAX_PARAM_CHARACTERS = 6000
HEALTH_TIMEOUT_S = 10.0
DIGEST_TAG = "report.digest"
_SECRET_WORDS = ("api_key", "secret", "password", "credential", "auth_token", "access_token")
ItemT = TypeVar("ItemT")


class TrackConfig(Record):
    """Section ``track``: where in MLflow the runs go."""

    experiment: NonEmpty = Field(description="MLflow experiment that all profiles' reports go to")


class CurvePoint(BaseModel):
    """One line of a ``train_log.jsonl``: a step and its metrics by name; null where a step has no such value."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, float | None]  # pyright: ignore[reportIncompatibleVariableOverride]

    step: int = Field(ge=0)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a report comes from, as tags, params and dataset digests; no part of its identity.

    ``params`` are nested settings by section; ``datasets`` maps a name to (path, digest of at most 36 characters).
    """

    tags: Mapping[str, str]
    params: Mapping[str, JsonValue]
    datasets: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FinishedReport:
    """What is sent: the F1 table, IFEval accuracies by metric and model, training curves by model, files to attach."""

    table: F1Table
    ifeval: Mapping[str, Mapping[str, float]]
    curves: Mapping[str, Sequence[CurvePoint]]
    files: Sequence[Path]

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the results: table, IFEval and curves."""
        curves = {model: [point.model_dump() for point in points] for model, points in self.curves.items()}
        return sha256_json([self.table.model_dump(mode="json"), dict(self.ifeval), curves])

    @property
    def models(self) -> list[str]:
        """Names of the evaluated models, sorted."""
        return sorted({row.model for row in self.table.rows})


class TrackedReport(Record):
    """What was sent, without anything that differs from one sending to the next."""

    digest: NonEmpty
    experiment: NonEmpty
    models: tuple[str, ...]
    metrics: dict[str, int] = Field(description="number of metric values sent, by model")


def local_store(folder: Path) -> str:
    """URI of the SQLite store in ``folder`` (absolute, so that no working directory changes it)."""
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def track(report: FinishedReport, provenance: Provenance, uri: str, config: TrackConfig) -> TrackedReport:
    """Send a report to the store or server at ``uri``, unless it is there already.

    Raises:
        EndpointError: the server does not answer or refuses.
    """
    metrics = {model: model_metrics(report, model) for model in report.models}
    _check_server(uri)
    with _translated(uri):
        client = MlflowClient(tracking_uri=uri)
        experiment = _experiment_id(client, config.experiment, uri)
        found = client.search_runs([experiment], f"tags.`{DIGEST_TAG}` = '{report.digest}'")
        if not any(run.info.status == "FINISHED" and "mlflow.parentRunId" not in run.data.tags for run in found):
            for unfinished in found:
                client.delete_run(unfinished.info.run_id)
            _send(client, experiment, report, provenance, metrics)
    counts = {model: len(values) for model, values in metrics.items()}
    return TrackedReport(
        digest=report.digest, experiment=config.experiment, models=tuple(report.models), metrics=counts
    )


def _check_server(uri: str) -> None:
    """Ask a server for its health first: MLflow itself would retry for minutes."""
    if not uri.startswith(("http://", "https://")):
        return
    address = urlsplit(uri)
    shown = f"{address.scheme}://{address.hostname}{f':{address.port}' if address.port else ''}"  # no user, no password
    try:
        with urllib.request.urlopen(f"{shown}{address.path.rstrip('/')}/health", timeout=HEALTH_TIMEOUT_S):
            return
    except (urllib.error.URLError, OSError) as error:
        mend = "Start it, or unset MLFLOW_TRACKING_URI to use the local store."
        raise EndpointError(f"no MLflow server answers at {shown} ({error}). {mend}") from error


@contextlib.contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        kind = urlsplit(uri).scheme
        raise EndpointError(f"MLflow ({kind} store) refused the report: {error.message}") from error


def _experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """The experiment of that name, made where there is none; a local store keeps artifacts beside its database."""
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return experiment.experiment_id
    database = Path(urlsplit(uri).path)
    location = (database.parent / "artifacts").as_uri() if uri.startswith("sqlite:") else None
    return client.create_experiment(name, artifact_location=location)


def model_metrics(report: FinishedReport, model: str) -> list[Metric]:
    """Every metric of a model's run: scores by question set, IFEval, and its training curve."""
    now = int(time.time() * 1000)
    values = [(name, value, 0) for row in report.table.rows if row.model == model for name, value in _row_metrics(row)]
    values += [(f"ifeval/{name}", scores[model], 0) for name, scores in report.ifeval.items() if model in scores]
    for point in report.curves.get(model, ()):
        extra = point.__pydantic_extra__ or {}
        values += [(f"train/{name}", value, point.step) for name, value in sorted(extra.items()) if value is not None]
    return [Metric(name, float(value), now, step) for name, value, step in values]


def _row_metrics(row: F1TableRow) -> Iterator[tuple[str, float]]:
    suffix = "" if row.main else "_greedy"
    for name in SCORES:
        yield f"{name}{suffix}/{row.dataset}", getattr(row, name)
    yield f"failed{suffix}/{row.dataset}", float(sum(row.failures.values()))


def _send(
    client: MlflowClient,
    experiment: str,
    report: FinishedReport,
    provenance: Provenance,
    metrics: Mapping[str, Sequence[Metric]],
) -> None:
    """Make the runs; the report's own is finished last, so that its status proves that all is there."""
    tags = {**provenance.tags, DIGEST_TAG: report.digest, "profile": report.table.profile}
    name = f"{report.table.profile} {report.digest[:12]}"
    parent = client.create_run(experiment, tags=tags, run_name=name)
    params = [Param(key, value) for key, value in flatten(provenance.params)]
    datasets = [
        DatasetInput(Dataset(name=name, digest=digest, source_type="dvc", source=path))
        for name, (path, digest) in provenance.datasets.items()
    ]
    for model, values in metrics.items():
        child_tags = {**tags, "mlflow.parentRunId": parent.info.run_id, "model": model}
        run = client.create_run(experiment, tags=child_tags, run_name=model)
        _log(client, run, params, values)
        client.log_inputs(run.info.run_id, datasets)
        client.set_terminated(run.info.run_id)
    _log(client, parent, params, ())
    client.log_inputs(parent.info.run_id, datasets)
    client.log_table(parent.info.run_id, table_columns(report.table.rows), "f1_table.json")
    for path in report.files:
        client.log_artifact(parent.info.run_id, str(path), artifact_path="report")
    client.set_terminated(parent.info.run_id)


def _log(client: MlflowClient, run: Run, params: Sequence[Param], metrics: Sequence[Metric]) -> None:
    for some in _batches(params, BATCH):
        client.log_batch(run.info.run_id, params=some)
    for some in _batches(metrics, BATCH * 10):
        client.log_batch(run.info.run_id, metrics=some)


def _batches(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def table_columns(rows: Sequence[F1TableRow]) -> dict[str, list[str | float | int]]:
    """The F1 table by column, as MLflow's table artifact wants it."""
    columns: dict[str, list[str | float | int]] = {
        name: [getattr(row, name) for row in rows] for name in (*SETTINGS, *SCORES)
    }
    columns["failures"] = [failures_text(row.failures) for row in rows]
    return columns


def flatten(params: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, text), in order; a setting that is named like a secret is left out."""
    for name, value in sorted(params.items()):
        dotted = f"{prefix}{name}"
        if any(word in name.lower() for word in _SECRET_WORDS):
            continue
        if isinstance(value, dict):
            yield from flatten(value, f"{dotted}.")
        else:
            yield dotted, str(value)[:MAX_PARAM_CHARACTERS]
