"""Upload of a bundle: its runs in an MLflow store.

    <profile> <digest>      the report: settings, data sets, the whole F1 table, the report's files
    └── <model>             one per model: scores, training curve, its rows of the table, predictions, traces,
                            and the logged model that scores and traces are linked to

The report's own run is finished last: its status proves that all is there. What a kill or a dead server left unfinished
is removed, with its traces and logged models, before the report is sent again.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelInput,
    LoggedModelStatus,
    Metric,
    Param,
    Run,
    ViewType,
)
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from deepsearch_rl.agent.timing import trajectory_digest
from deepsearch_rl.tracking.bundle import (
    FILES,
    Bundle,
    DatasetDigest,
    columns,
    read_bundle,
    read_predictions,
    read_rollouts,
    table_columns,
)
from deepsearch_rl.tracking.metrics import Figure
from deepsearch_rl.tracking.store import SQLITE, connected
from deepsearch_rl.tracking.traces import Owner, build_trace
from deepsearch_rl.trajectories.collect import evaluation_logs, read_times

BATCH = 100
"""Params, tags, metrics, traces of one request; MLflow refuses more than 100 params or traces, or 1,000 metrics."""
DIGEST_TAG = "report.digest"
_PARENT_TAG = "mlflow.parentRunId"
_NOT_IN_A_MODEL_NAME = re.compile(r"[/:.%\"']")
ItemT = TypeVar("ItemT")


def upload(folder: Path, uri: str, timeout_s: float) -> bool:
    """Upload the bundle in ``folder``; False where the store has it already.

    Raises:
        ArtifactError, RecordError: the bundle is missing or malformed.
        EndpointError: the store does not answer, refuses or breaks off.
    """
    bundle = read_bundle(folder)
    with connected(uri, timeout_s) as client:
        experiment = _experiment_id(client, bundle.experiment, uri)
        runs = client.search_runs([experiment], f"tags.`{DIGEST_TAG}` = '{bundle.digest}'", ViewType.ACTIVE_ONLY)
        if any(run.info.status == "FINISHED" and _PARENT_TAG not in run.data.tags for run in runs):
            return False
        for unfinished in runs:
            _remove(client, experiment, unfinished.info.run_id)
        _Upload(client, TracingClient(uri), experiment, folder, bundle).report()
    return True


def _experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """The experiment of that name, made where there is none; a local store keeps artifacts beside its database."""
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return experiment.experiment_id
    beside = Path(uri.removeprefix(SQLITE)).resolve().with_name("artifacts")
    try:
        return client.create_experiment(name, beside.as_uri() if uri.startswith(SQLITE) else None)
    except MlflowException:
        experiment = client.get_experiment_by_name(name)  # somebody else may have made it meanwhile
        if experiment is None:
            raise
        return experiment.experiment_id


def _remove(client: MlflowClient, experiment: str, run_id: str) -> None:
    """Delete a run with its traces and logged models."""
    while traces := client.search_traces(locations=[experiment], run_id=run_id, include_spans=False, max_results=BATCH):
        client.delete_traces(experiment, trace_ids=[trace.info.trace_id for trace in traces])
    for model in client.search_logged_models([experiment], f"source_run_id = '{run_id}'"):
        client.delete_logged_model(model.model_id)
    client.delete_run(run_id)


@dataclass(frozen=True, slots=True)
class _Upload:
    """One bundle on its way into one experiment."""

    client: MlflowClient
    tracing: TracingClient
    experiment: str
    folder: Path
    bundle: Bundle

    def report(self) -> None:
        """Make the report's run and those below it."""
        parent = self._run(self.bundle.name, {})
        for model in self.bundle.models:
            self._model(model, parent.info.run_id)
        run_id = parent.info.run_id
        self.client.log_inputs(run_id, _inputs(self.bundle.datasets))
        self.client.log_table(run_id, table_columns(self.bundle.table.rows), "f1_table.json")
        for path in sorted((self.folder / FILES).iterdir()):
            self.client.log_artifact(run_id, str(path), artifact_path="report")
        self.client.set_terminated(run_id)

    def _run(self, name: str, tags: Mapping[str, str]) -> Run:
        tags = {**self.bundle.tags, DIGEST_TAG: self.bundle.digest, **tags}
        run = self.client.create_run(self.experiment, tags=tags, run_name=name)
        for some in _batches(self.bundle.params.items(), BATCH):
            self.client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in some])
        return run

    def _model(self, model: str, parent_id: str) -> None:
        evaluated = self.bundle.models[model]
        run_id = self._run(model, {**evaluated.tags, _PARENT_TAG: parent_id, "model": model}).info.run_id
        model_id = self._logged_model(model, run_id)
        datasets = [*_inputs(self.bundle.datasets), *_inputs(evaluated.questions, context="evaluation")]
        self.client.log_inputs(run_id, datasets, [LoggedModelInput(model_id)])
        self._metrics(model, run_id, model_id)
        rows = [row for row in self.bundle.table.rows if row.model == model]
        self.client.log_table(run_id, table_columns(rows), "f1_table.json")
        if predictions := read_predictions(self.folder, model):
            self.client.log_table(run_id, columns(predictions), "predictions.json")
        self._traces(model, Owner(self.experiment, run_id, model_id))
        self.client.set_terminated(run_id)

    def _logged_model(self, model: str, run_id: str) -> str:
        """A model's page in MLflow. Its weights stay where they are: params and tags say where, and their digest."""
        evaluated = self.bundle.models[model]
        logged = self.client.create_logged_model(
            self.experiment,
            name=_NOT_IN_A_MODEL_NAME.sub("-", model),
            source_run_id=run_id,
            tags={**self.bundle.tags, **evaluated.tags, DIGEST_TAG: self.bundle.digest, "model": model},
            params={"checkpoint": evaluated.checkpoint, "sha256": evaluated.sha256},
            model_type="search agent",
        )
        self.client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
        return logged.model_id

    def _metrics(self, model: str, run_id: str, model_id: str) -> None:
        """Scores, linked to the logged model and to the questions asked, and the training curve, to the run alone."""
        now = int(time.time() * 1000)
        scores = [self._score(model, figure, now, model_id) for figure in self.bundle.scores(model)]
        curve = [Metric(figure.name, figure.value, now, figure.step) for figure in self.bundle.curve(model)]
        for some in _batches([*scores, *curve], BATCH * 10):
            self.client.log_batch(run_id, metrics=some)

    def _score(self, model: str, figure: Figure, now: int, model_id: str) -> Metric:
        questions = self.bundle.models[model].questions.get(figure.dataset or "")
        return Metric(
            figure.name,
            figure.value,
            now,
            figure.step,
            model_id=model_id,
            dataset_name=figure.dataset if questions else None,
            dataset_digest=questions.digest if questions else None,
        )

    def _traces(self, model: str, owner: Owner) -> None:
        digests = {trajectory_digest(rollout.trajectory) for rollout in read_rollouts(self.folder, model)}
        times = read_times(evaluation_logs(self.bundle.table.profile, model), digests)
        now_ns = time.time_ns()
        traces = (
            build_trace(rollout, owner, times.get(trajectory_digest(rollout.trajectory)), now_ns)
            for rollout in read_rollouts(self.folder, model)
        )
        for some in _batches(traces, BATCH):
            for trace in some:
                self.tracing.start_trace(trace.info)
            self.tracing.log_spans(self.experiment, [span for trace in some for span in trace.data.spans])


def _inputs(datasets: Mapping[str, DatasetDigest], context: str | None = None) -> list[DatasetInput]:
    tags = [InputTag("mlflow.data.context", context)] if context else []
    return [
        DatasetInput(Dataset(name=name, digest=dataset.digest, source_type="dvc", source=dataset.path), tags)
        for name, dataset in datasets.items()
    ]


def _batches(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
