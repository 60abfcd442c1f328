"""A finished report as runs of MLflow.

    <profile> · ...             the report: settings, the whole F1 table, the report's files
    └── <profile>/<model> · ... one per model: scores, training curve, its rows of the table, predictions, traces,
                                and the logged model that scores and traces are linked to

Traces are in an experiment of their own, ``<experiment>-traces``, because MLflow shows the runs of an
experiment with traces in another way. The best model of a report becomes a version of the registered
model ``<experiment>-<profile>``; the alias ``best`` is at the version with the highest in-domain F1.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import mlflow
import pandas as pd
from mlflow import entities
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from deepsearch_rl.agent.timing import kept_times, read_times, trajectory_digest
from deepsearch_rl.evaluate.table_files import flat_rows, published_lines
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.track.contents import (
    Results,
    SampledRollout,
    TrackConfig,
    TrackedReport,
    best_model,
    flatten,
    headline,
    row_scores,
)
from deepsearch_rl.track.store import mlflow_client, run_name, source_tags
from deepsearch_rl.track.traces import Owner, build_trace

PAGE = "index.html"
TABLE = "f1_table.md"
FILES = (TABLE, "f1_table.csv", "metrics.json", "lost_points.json", PAGE)
# Folder of the report's files among its artifacts
REPORT = "report"
F1_TAG = "f1"
MAX_TAG_CHARACTERS = 8000
TRACES_AT_ONCE = 100
_SPACES = re.compile(" {2,}")
_NOT_IN_A_MODEL_NAME = re.compile(r"[/:.%\"']")


def log_report(results: Results, config: TrackConfig, seed: int) -> TrackedReport:
    """Log a finished report as a run with a run per model below it, and return how much that was.

    Raise EndpointError where MLflow does not answer or refuses: the runs that were begun are then
    marked FAILED. Raise ArtifactError or RecordError where a result is missing or malformed.
    """
    with mlflow_client(config.timeout_s) as client:
        traces_of = mlflow.set_experiment(f"{config.experiment}-traces").experiment_id
        experiment = mlflow.set_experiment(config.experiment).experiment_id
        return _Logging(
            client, experiment, traces_of, results, config, seed, results.table
        ).report()


@dataclass(frozen=True, slots=True)
class _Logging:
    """One report on its way into one experiment."""

    client: MlflowClient
    experiment: str
    traces_of: str
    results: Results
    config: TrackConfig
    seed: int
    table: F1Table

    def report(self) -> TrackedReport:
        """Log the report's run and those below it."""
        results = self.results
        tags = source_tags(results.profile)
        models = sorted({row.model for row in self.table.rows})
        metrics: dict[str, int] = {}
        predictions = 0
        traces = 0

        with mlflow.start_run(run_name=run_name(results.profile, tags), tags=tags) as run:
            run_id = run.info.run_id
            mlflow.log_params(dict(flatten(results.params)))
            for model in models:
                metrics[model], model_predictions, model_traces = self._model(model, tags)
                predictions += model_predictions
                traces += model_traces

            mlflow.log_metrics(headline(self.table))
            lines = flat_rows(self.table.rows) + published_lines(self.table)
            self.client.log_table(run_id, pd.DataFrame(lines), "f1_table.json")
            self._files(run_id)

        return TrackedReport(
            experiment=self.config.experiment,
            models=tuple(models),
            metrics=metrics,
            predictions=predictions,
            traces=traces,
        )

    def _files(self, run_id: str) -> None:
        """Attach the report's files, all settings, and a description with a link to the report's page."""
        for name in FILES:
            mlflow.log_artifact(str(self.results.reports / name), REPORT)
        for path in self.results.attached:
            mlflow.log_artifact(str(path), f"{REPORT}/{path.parent.name}")

        page = f"#/experiments/{self.experiment}/runs/{run_id}/artifacts/{REPORT}/{PAGE}"
        mlflow.set_tag("mlflow.note.content", describe_report(self._markdown(), page))

    def _model(self, model: str, tags: Mapping[str, str]) -> tuple[int, int, int]:
        """Log a model's run; return the numbers of its metric values, predictions and traces."""
        results = self.results
        evaluation = results.evaluation(model)
        tags = {
            **tags,
            "model": model,
            "trained_with_other": evaluation.rows[0].flat_trained_with_other,
            **results.alarms(model),
        }
        if model in results.weights:
            tags["weights"] = results.weights[model]

        name = run_name(f"{results.profile}/{model}", dict(tags))
        with mlflow.start_run(run_name=name, tags=dict(tags), nested=True) as run:
            run_id = run.info.run_id
            mlflow.log_params(dict(flatten(results.params)))
            logged = self.client.create_logged_model(
                self.experiment,
                name=_NOT_IN_A_MODEL_NAME.sub("-", model),
                source_run_id=run_id,
                tags=dict(tags),
                params={
                    "checkpoint": evaluation.rows[0].checkpoint,
                    "sha256": evaluation.inputs.get("model", ""),
                },
                model_type="search agent",
            )
            # The weights stay with DVC
            self.client.finalize_logged_model(logged.model_id, entities.LoggedModelStatus.READY)

            self.client.log_inputs(
                run_id, self._questions(model), [entities.LoggedModelInput(logged.model_id)]
            )
            metrics = list(self._metrics(model, logged.model_id))
            self.client.log_batch(run_id, metrics=metrics)
            predictions = self._tables(model, run_id)
            traces = self._traces(model, Owner(self.traces_of, run_id, logged.model_id))
            # A model behind an endpoint may be another one tomorrow
            if model == best_model(self.table) and model in results.weights:
                self._register(run_id, logged)

        return len(metrics), predictions, traces

    def _questions(self, model: str) -> list[entities.DatasetInput]:
        context = [entities.InputTag("mlflow.data.context", "evaluation")]
        inputs: list[entities.DatasetInput] = []
        for name, digest in self.results.question_digests(model).items():
            source = f"data/{self.results.profile}/questions/{name}"
            inputs.append(
                entities.DatasetInput(entities.Dataset(name, digest, "dvc", source), context)
            )

        return inputs

    def _metrics(self, model: str, model_id: str) -> Iterator[Metric]:
        """Yield a model's scores, the in-domain F1 first (MLflow's compare page opens on it), and its training curve.

        Scores are linked to the logged model and to the questions asked.
        """
        now_ms = int(time.time() * 1000)
        digests = self.results.question_digests(model)

        for row in self.table.reading_order:
            if row.model == model:
                digest = digests.get(row.dataset)
                source = (row.dataset, digest) if digest else (None, None)
                for name, value in row_scores(row).items():
                    yield Metric(name, value, now_ms, 0, model_id, *source)

        for name, value in self.results.figures(model).items():
            yield Metric(name, value, now_ms, 0, model_id)
        for point in self.results.curve(model):
            for name, value in sorted(point.metrics.items()):
                yield Metric(f"train/{name}", value, now_ms, point.step)

    def _tables(self, model: str, run_id: str) -> int:
        """Log a model's rows of the F1 table and its predictions as tables; return the number of predictions."""
        rows = [row for row in self.table.rows if row.model == model]
        self.client.log_table(run_id, pd.DataFrame(flat_rows(rows)), "f1_table.json")

        sampled = self.results.sample(model, self.seed, at_most=self.config.predictions)
        predictions = [rollout.prediction for rollout in sampled]
        if predictions:
            self.client.log_table(run_id, pd.DataFrame(predictions), "predictions.json")
        return len(predictions)

    def _traces(self, model: str, owner: Owner) -> int:
        """Log traces of a share of a model's rollouts, with the times that were kept of them; return their number."""
        # Pairs: two runs of a model may hold equal rollouts
        rollouts: list[tuple[str, SampledRollout]] = []
        for rollout in self.results.sample(model, self.seed, self.config.traces):
            rollouts.append((trajectory_digest(rollout.trajectory), rollout))

        tracing = TracingClient(mlflow.get_tracking_uri())
        digests = {digest for digest, _ in rollouts}
        times = read_times(kept_times(self.results.profile, model), digests)
        now_ns = time.time_ns()
        for first in range(0, len(rollouts), TRACES_AT_ONCE):
            spans: list[entities.Span] = []
            for digest, rollout in rollouts[first : first + TRACES_AT_ONCE]:
                trace = build_trace(rollout, owner, times.get(digest), now_ns)
                tracing.start_trace(trace.info)
                spans += trace.data.spans

            tracing.log_spans(self.traces_of, spans)

        return len(rollouts)

    def _register(self, run_id: str, logged: entities.LoggedModel) -> None:
        """Make a logged model the newest version of the profile's registered model; ``best`` if none has more F1."""
        name = f"{self.config.experiment}-{self.results.profile}"
        # An earlier report may have made it
        with suppress(MlflowException):
            self.client.create_registered_model(name)

        f1 = headline(self.table)[f"{logged.tags['model']}/f1"]
        earlier = self.client.search_model_versions(f"name = '{name}'")
        version = self.client.create_model_version(
            name,
            logged.artifact_location,
            run_id,
            tags={**logged.tags, F1_TAG: str(f1)},
            description=self._markdown(),
            model_id=logged.model_id,
        )
        # Of equals the newest. Versions that users registered themselves have no F1.
        if all(float(before.tags.get(F1_TAG, 0)) <= f1 for before in earlier):
            self.client.set_registered_model_alias(name, "best", version.version)

    def _markdown(self) -> str:
        return (self.results.reports / TABLE).read_text(encoding="utf-8")


def describe_report(table: str, page: str) -> str:
    """Return a link to a report's page and its F1 table in Markdown, as many paragraphs as MLflow's tag can hold."""
    text = f"[The report: plots, tables and rollouts]({page})"
    for paragraph in table.split("\n\n"):
        longer = f"{text}\n\n{_SPACES.sub(' ', paragraph)}"
        if len(longer) > MAX_TAG_CHARACTERS:
            break
        text = longer

    return text
