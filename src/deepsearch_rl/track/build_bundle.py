"""A report's bundle made from a profile's results: the F1 table, evaluations, training logs and their rollouts."""

import hashlib
import heapq
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.files import (
    atomic_directory,
    read_jsonl,
    read_record,
    sha256_file,
    sha256_json,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.records import ForeignRecord, Trajectory
from deepsearch_rl.evaluate.explain.records import ExplainReport
from deepsearch_rl.evaluate.f1_row import ModelEvaluation
from deepsearch_rl.evaluate.score import score_questions
from deepsearch_rl.evaluate.tables import F1Table, Figures
from deepsearch_rl.track.bundle import (
    BUNDLE,
    DIGEST_CHARACTERS,
    FILES,
    LOST_POINTS,
    PAGE,
    PARAMS,
    PREDICTIONS,
    QUESTION_F1,
    ROLLOUTS,
    TABLE,
    DatasetDigest,
    EvaluatedModel,
    PredictionRow,
    Provenance,
    ReportBundle,
    TracedRollout,
    TrackConfig,
    TrackedReport,
)
from deepsearch_rl.track.run_names import changed_settings, flatten
from deepsearch_rl.train.curves import Alarm, TrainingStep


class Results(NamedTuple):
    """Where a profile's results lie: its report, every model's evaluation, and the training logs that there are.

    ``prompts`` are folders with what `optimize_prompt` found for a model.
    """

    reports: Path
    evaluations: Mapping[str, Path]
    train_logs: Mapping[str, Path]
    questions: Path
    prompts: Sequence[Path]


class ModelManifest(ForeignRecord):
    """The fields of a trained model's ``manifest.json`` that become tags of its run."""

    alarms: tuple[Alarm, ...] = ()


def build_bundle(
    results: Results, provenance: Provenance, config: TrackConfig, seed: int, out: Path
) -> TrackedReport:
    """Write the bundle of a report into the folder ``out`` and return what it holds.

    Raise ArtifactError or RecordError where a result is missing or malformed.
    """
    table = read_record(results.reports / "f1_table.json", F1Table)
    ifeval = read_record(results.reports / "metrics.json", Figures).root.get("ifeval", {})
    explained = read_record(results.reports / LOST_POINTS, ExplainReport)
    lost = explained.metrics(table.datasets[0])
    names = sorted({row.model for row in table.rows})
    models = {name: _model(name, results, provenance) for name in names}

    with atomic_directory(out) as partial:
        rows = map(_prediction, _rollouts(table, results, 1.0, config.predictions, seed))
        predictions = write_jsonl(partial / PREDICTIONS, rows)
        traces = write_jsonl(
            partial / ROLLOUTS, _rollouts(table, results, config.traces, None, seed)
        )
        write_json(partial / QUESTION_F1, _question_f1(table, results))
        (partial / FILES).mkdir()
        for name in (TABLE, "f1_table.csv", "metrics.json", LOST_POINTS, PAGE):
            shutil.copyfile(results.reports / name, partial / FILES / name)
        for folder in results.prompts:
            for path in sorted(folder.glob("*.json")):
                # All in one folder: of each prompt search the files have the same names
                shutil.copyfile(path, partial / FILES / f"prompts-{folder.name}-{path.name}")

        write_json(partial / FILES / PARAMS, dict(flatten(provenance.params)))
        curves: dict[str, list[JsonValue]] = {}
        for name, model in models.items():
            curves[name] = [point.model_dump() for point in model.curve]

        file_digests = [sha256_file(partial / name) for name in (PREDICTIONS, ROLLOUTS)]
        bundle = ReportBundle(
            # Of results alone: a report that was sent before is recognised under other settings
            digest=sha256_json([table.model_dump(mode="json"), ifeval, lost, curves, file_digests]),
            experiment=config.experiment,
            table=table,
            ifeval=ifeval,
            lost=lost,
            models=models,
            tags={**provenance.tags, "profile": table.profile},
            params=changed_settings(provenance.params, provenance.defaults),
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
        # questions/<set>/<split>
        kind, *parts = artifact.split("/")
        if kind == "questions" and len(parts) == 2:
            dataset, split = parts
            path = results.questions / dataset / f"{split}.jsonl"
            questions[dataset] = DatasetDigest(
                path=path.as_posix(), digest=digest[:DIGEST_CHARACTERS]
            )

    return EvaluatedModel(
        checkpoint=evaluation.rows[0].checkpoint,
        sha256=evaluation.inputs.get("model", ""),
        questions=questions,
        curve=tuple(read_jsonl(log, TrainingStep)) if log else (),
        tags={
            **provenance.model_tags.get(name, {}),
            **(_alarm_tags(log.parent) if log else {}),
            "trained_with_other": evaluation.rows[0].flat_trained_with_other,
        },
    )


def _alarm_tags(trained: Path) -> dict[str, str]:
    """Return a tag with the reason of every alarm of a training run; the newest of one name."""
    manifest = trained / "manifest.json"
    if not manifest.is_file():
        return {}
    return dict(alarm.tag for alarm in read_record(manifest, ModelManifest).alarms)


def _rollouts(
    table: F1Table, results: Results, share: float, at_most: int | None, seed: int
) -> Iterator[TracedRollout]:
    """Yield a share of every run's rollouts (rounded up), at most so many of each, in the order of their files."""

    # By a hash, so that every model's run over the same questions shows the same ones
    def rank(rollout_id: str) -> bytes:
        return hashlib.sha256(f"{seed}/{rollout_id}".encode()).digest()

    for row in table.rows:
        path = results.evaluations[row.model] / row.rollouts_file
        ids = [rollout.id for rollout in read_jsonl(path, Trajectory)]
        count = math.ceil(share * len(ids))
        if at_most is not None:
            count = min(count, at_most)
        chosen_ids = set(heapq.nsmallest(count, ids, key=rank))

        # Read again, so that of a large evaluation only the ids are in memory
        for rollout in read_jsonl(path, Trajectory):
            if rollout.id in chosen_ids:
                yield TracedRollout(model=row.model, run=row.run_name, trajectory=rollout)


def _question_f1(table: F1Table, results: Results) -> dict[str, dict[str, dict[str, float]]]:
    f1: dict[str, dict[str, dict[str, float]]] = {}
    for row in table.rows:
        rollouts = read_jsonl(results.evaluations[row.model] / row.rollouts_file, Trajectory)
        scores = score_questions(rollouts, row.samples)
        of_run = dict(zip(scores.question_ids, scores.metrics["f1"].tolist(), strict=True))
        f1.setdefault(row.model, {})[row.run_name] = of_run

    return f1


def _prediction(shown: TracedRollout) -> PredictionRow:
    rollout = shown.trajectory
    scores = score_rollout(rollout)
    same = rollout.model_dump(
        include={"question", "answer", "golden_answers", "stop_reason", "question_type"}
    )
    return PredictionRow(
        **same,
        f1=scores.f1,
        em=scores.em,
        run=shown.run,
        rollout=rollout.id,
        searches=len(rollout.retrievals),
        completion_tokens=rollout.completion_tokens,
        model=shown.model,
    )
