"""Upload of a bundle: its runs in an MLflow store.

    <profile> · ...             the report: settings, data sets, the whole F1 table, the report's files
    └── <profile>/<model> · ... one per model: scores, training curve, its rows of the table, predictions, traces,
                                and the logged model that scores and traces are linked to

Traces are in an experiment of their own, ``<experiment>-traces``. The best model of a report
becomes a version of the registered model ``<experiment>-<profile>``; the alias ``best`` is at the
version with the best in-domain F1.

The report's own run is finished last: its status proves that all is there. What a kill or a dead
server left unfinished is removed, with its traces and logged models, before the report is sent
again. The bundle of a report that no server took waits in the outbox, in a folder named by its
digest.
"""

import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from mlflow import entities
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient
from pydantic import JsonValue

from deepsearch_rl.agent.timing import kept_times, read_times, trajectory_digest
from deepsearch_rl.core.errors import ConfigError, DeepsearchError, EndpointDownError
from deepsearch_rl.core.files import atomic_directory, read_jsonl
from deepsearch_rl.evaluate.table_files import flat_rows, published_lines
from deepsearch_rl.track.bundle import (
    BUNDLE,
    FILES,
    PAGE,
    PREDICTIONS,
    QUESTION_F1,
    ROLLOUTS,
    TABLE,
    DatasetDigest,
    PredictionRow,
    ReportBundle,
    TracedRollout,
    read_bundle,
)
from deepsearch_rl.track.curves import CurveRun, line_digest, read_steps
from deepsearch_rl.track.live import LIVE, live_runs
from deepsearch_rl.track.outbox import waiting_reports
from deepsearch_rl.track.run_names import time_to_add
from deepsearch_rl.track.store import BATCH, batches, connected, experiment_id
from deepsearch_rl.track.traces import Owner, build_trace

DIGEST_TAG = "report.digest"
F1_TAG = "f1"
PARENT_TAG = "mlflow.parentRunId"
DESCRIPTION_TAG = "mlflow.note.content"
# Of a tag's value in MLflow
MAX_TAG_CHARACTERS = 8000
# Folder of the report's artifacts: the bundle's description, F1 of every question, and the
# attached files
REPORT = "report"
_SPACES = re.compile(" {2,}")
_NOT_IN_A_MODEL_NAME = re.compile(r"[/:.%\"']")


class Uploaded(NamedTuple):
    """A report that the store has: its name, and whether it arrived now or before."""

    name: str
    now: bool


class FailedUpload(NamedTuple):
    """A bundle that the store does not have: its folder, and why."""

    folder: Path
    error: DeepsearchError


def put_into_outbox(bundle: Path, outbox: Path) -> Path:
    """Copy a bundle into the outbox, and return its folder there; raises as :func:`read_bundle`."""
    copy = outbox / read_bundle(bundle).digest
    with atomic_directory(copy) as partial:
        shutil.copytree(bundle, partial, dirs_exist_ok=True)
    return copy


def upload_all(
    bundle: Path, outbox: Path, uri: str, timeout_s: float
) -> list[Uploaded | FailedUpload]:
    """Upload a bundle, and then those in the outbox; what has arrived leaves the outbox.

    Each is uploaded on its own: a malformed or refused bundle does not hold up another. After an
    address that cannot be read, or a store that does not answer, nothing more is tried.
    """
    outcomes: list[Uploaded | FailedUpload] = []
    waiting = waiting_reports(outbox)

    for folder in [bundle, *waiting] if bundle.exists() or not waiting else waiting:
        # It was the bundle itself, which has just arrived
        if folder in waiting and not folder.exists():
            continue
        try:
            report = read_bundle(folder)
            outcomes.append(Uploaded(report.name, upload(folder, uri, timeout_s)))
            shutil.rmtree(outbox / report.digest, ignore_errors=True)
        except DeepsearchError as error:
            outcomes.append(FailedUpload(folder, error))
            if isinstance(error, ConfigError | EndpointDownError):
                break

    return outcomes


def upload(folder: Path, uri: str, timeout_s: float) -> bool:
    """Upload the bundle in ``folder``; False where the store has it already.

    Raise ArtifactError or RecordError where the bundle is missing or malformed, and as
    :func:`connected`.
    """
    bundle = read_bundle(folder)
    with connected(uri, timeout_s) as client:
        experiment = experiment_id(client, bundle.experiment, uri)
        traces_of = experiment_id(client, f"{bundle.experiment}-traces", uri)
        of_report = f"tags.`{DIGEST_TAG}` = '{bundle.digest}'"
        runs = client.search_runs([experiment], of_report, entities.ViewType.ACTIVE_ONLY)

        # The runs of its models finish before the report's own, which alone proves that all is there
        for run in runs:
            if run.info.status == "FINISHED" and PARENT_TAG not in run.data.tags:
                return False
        for run in runs:
            _delete_run(client, experiment, traces_of, run.info.run_id)

        steps = read_steps(Path("work", bundle.table.profile))
        ending = time_to_add(client, experiment, bundle.name, int(time.time() * 1000))
        _Upload(
            client, TracingClient(uri), experiment, traces_of, folder, bundle, steps, ending
        ).report()

    return True


def _delete_run(client: MlflowClient, experiment: str, traces_of: str, run_id: str) -> None:
    """Delete a run with its traces, versions of registered models and logged models, the run last."""
    while traces := client.search_traces(
        locations=[experiment, traces_of],
        run_id=run_id,
        include_spans=False,
        max_results=BATCH,
    ):
        trace_ids = [trace.info.trace_id for trace in traces]
        client.delete_traces(traces_of, trace_ids=trace_ids)

    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        client.delete_model_version(version.name, version.version)
    for model in client.search_logged_models([experiment], f"source_run_id = '{run_id}'"):
        client.delete_logged_model(model.model_id)

    # Last: after a kill, the next upload finds what is left by this run
    client.delete_run(run_id)


@dataclass(frozen=True, slots=True)
class _Upload:
    """One bundle on its way into one experiment; the names of its runs have the same ``ending``."""

    client: MlflowClient
    tracing: TracingClient
    experiment: str
    traces_of: str
    folder: Path
    bundle: ReportBundle
    steps: Mapping[str, tuple[int, CurveRun]]
    ending: str

    def report(self) -> None:
        """Make the report's run and those below it."""
        run_id = self._run(self.bundle.name, {})
        for model in self.bundle.models:
            self._model(model, run_id)
        self.client.log_batch(run_id, metrics=self.bundle.headline())
        self.client.log_inputs(run_id, _inputs(self.bundle.datasets))
        lines = flat_rows(self.bundle.table.rows) + published_lines(self.bundle.table)
        self.client.log_table(run_id, pd.DataFrame(lines), "f1_table.json")
        files = [self.folder / BUNDLE, self.folder / QUESTION_F1]
        files += sorted((self.folder / FILES).iterdir())
        for path in files:
            self.client.log_artifact(run_id, str(path), artifact_path=REPORT)
        page = f"#/experiments/{self.experiment}/runs/{run_id}/artifacts/{REPORT}/{PAGE}"
        self.client.set_tag(run_id, DESCRIPTION_TAG, describe_report(self._table(), page))
        self.client.set_terminated(run_id)

    def _run(self, name: str, tags: Mapping[str, str]) -> str:
        tags = {**self.bundle.tags, DIGEST_TAG: self.bundle.digest, **tags}
        run_id = self.client.create_run(
            self.experiment, tags=tags, run_name=name + self.ending
        ).info.run_id

        for batch in batches(self.bundle.params.items(), BATCH):
            params = [entities.Param(key, value) for key, value in batch]
            self.client.log_batch(run_id, params=params)

        return run_id

    def _model(self, model: str, parent_id: str) -> None:
        """Make a model's run, and its page: its weights stay where they are, params and tags say where."""
        evaluated = self.bundle.models[model]
        run_tags = {**evaluated.tags, PARENT_TAG: parent_id, "model": model}
        run_id = self._run(self.bundle.name_of(model), run_tags)
        logged = self._logged_model(model, run_id)

        datasets = [
            *_inputs(self.bundle.datasets),
            *_inputs(evaluated.questions, context="evaluation"),
        ]
        self.client.log_inputs(run_id, datasets, [entities.LoggedModelInput(logged.model_id)])
        step_times = {digest: time_ms for digest, (time_ms, _) in self.steps.items()}
        metrics = self.bundle.metrics(model, logged.model_id, int(time.time() * 1000), step_times)
        # MLflow takes ten times as many metrics as params in one request
        for batch in batches(metrics, BATCH * 10):
            self.client.log_batch(run_id, metrics=batch)

        self._link_live_run(model, run_id)
        self._tables(model, run_id)
        self._traces(model, Owner(self.traces_of, run_id, logged.model_id))

        # A model at an endpoint has no digest of its weights, which may be others tomorrow
        if model == self.bundle.best_model and logged.tags.get("dvc.weights.md5"):
            self._register(run_id, logged)
        self.client.set_terminated(run_id)

    def _logged_model(self, model: str, run_id: str) -> entities.LoggedModel:
        """Make the logged model that a model's scores and traces are linked to."""
        evaluated = self.bundle.models[model]
        tags = {**self.bundle.tags, **evaluated.tags}
        tags[DIGEST_TAG] = self.bundle.digest
        tags["model"] = model
        logged = self.client.create_logged_model(
            self.experiment,
            name=_NOT_IN_A_MODEL_NAME.sub("-", model),
            source_run_id=run_id,
            tags=tags,
            params={"checkpoint": evaluated.checkpoint, "sha256": evaluated.sha256},
            model_type="search agent",
        )
        self.client.finalize_logged_model(logged.model_id, entities.LoggedModelStatus.READY)
        return logged

    def _tables(self, model: str, run_id: str) -> None:
        """Add a model's rows of the F1 table and its predictions to its run, as tables."""
        rows = [row for row in self.bundle.table.rows if row.model == model]
        self.client.log_table(run_id, pd.DataFrame(flat_rows(rows)), "f1_table.json")

        predictions: list[dict[str, JsonValue]] = []
        for prediction in read_jsonl(self.folder / PREDICTIONS, PredictionRow):
            if prediction.model == model:
                predictions.append(prediction.table_row())

        if predictions:
            self.client.log_table(run_id, pd.DataFrame(predictions), "predictions.json")

    def _traces(self, model: str, owner: Owner) -> None:
        """Make a trace of each of a model's rollouts in the bundle, with the times that were kept of it."""
        # Pairs: two runs of a model may hold equal rollouts
        rollouts: list[tuple[str, TracedRollout]] = []
        for rollout in read_jsonl(self.folder / ROLLOUTS, TracedRollout):
            if rollout.model == model:
                rollouts.append((trajectory_digest(rollout.trajectory), rollout))

        now_ns = time.time_ns()
        digests = {digest for digest, _ in rollouts}
        times = read_times(kept_times(self.bundle.table.profile, model), digests)
        for batch in batches(rollouts, BATCH):
            spans: list[entities.Span] = []
            for digest, rollout in batch:
                trace = build_trace(rollout, owner, times.get(digest), now_ns)
                self.tracing.start_trace(trace.info)
                spans += trace.data.spans
            self.tracing.log_spans(self.traces_of, spans)

    def _table(self) -> str:
        """Return the F1 table as Markdown."""
        return (self.folder / FILES / TABLE).read_text(encoding="utf-8")

    def _link_live_run(self, model: str, run_id: str) -> None:
        """Name the run in which the model's training was watched, and this one there, where the store has it."""
        curve = self.bundle.models[model].curve
        if not curve:
            return

        last_step = self.steps.get(line_digest(curve[-1].model_dump()))
        if last_step is None:
            return
        live = self.client.get_experiment_by_name(self.bundle.experiment + LIVE)
        if live is None:
            return

        _, run = last_step
        identity = f"{self.bundle.table.profile}/{run.identity}"
        for live_run in live_runs(self.client, live.experiment_id, identity):
            self.client.set_tag(run_id, "live.run", live_run.info.run_id)
            self.client.set_tag(live_run.info.run_id, "report.run", run_id)

    def _register(self, run_id: str, logged: entities.LoggedModel) -> None:
        """Make a logged model the newest version of the profile's registered model; ``best`` if none has more F1."""
        name = f"{self.bundle.experiment}-{self.bundle.table.profile}"
        table = self.bundle.table
        # An earlier report may have made it
        with suppress(MlflowException):
            self.client.create_registered_model(name)

        in_domain_rows = table.main_rows(table.datasets[0])
        f1 = next(row.f1 for row in in_domain_rows if row.model == logged.tags["model"])
        versions = self.client.search_model_versions(f"name = '{name}'")
        digests = {f"data.{name}": data.digest for name, data in self.bundle.datasets.items()}
        version = self.client.create_model_version(
            name,
            logged.artifact_location,
            run_id,
            tags={**logged.tags, **digests, F1_TAG: str(f1)},
            description=self._table(),
            model_id=logged.model_id,
        )
        # Of equals the newest: its code is the one at hand
        if all(float(before.tags[F1_TAG]) <= f1 for before in versions):
            self.client.set_registered_model_alias(name, "best", version.version)


def describe_report(table: str, page: str) -> str:
    """Return the description of a report's run: a link to its page, and the F1 table, as far as a tag can hold it.

    ``table`` is Markdown, of which whole paragraphs are left out from the end.
    """
    text = f"[The report: plots, tables and rollouts]({page})"
    for paragraph in table.split("\n\n"):
        longer = f"{text}\n\n{_SPACES.sub(' ', paragraph)}"
        if len(longer) > MAX_TAG_CHARACTERS:
            break
        text = longer

    return text


def _inputs(
    datasets: Mapping[str, DatasetDigest], context: str | None = None
) -> list[entities.DatasetInput]:
    tags = [entities.InputTag("mlflow.data.context", context)] if context else []
    inputs: list[entities.DatasetInput] = []
    for name, data in datasets.items():
        dataset = entities.Dataset(name, data.digest, "dvc", data.path)
        inputs.append(entities.DatasetInput(dataset, tags))

    return inputs
