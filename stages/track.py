"""A finished report with curves, predictions and rollouts to MLflow.

The store is SQLite under mlruns/ of the project; MLFLOW_TRACKING_URI names a server instead. A
server that is away fails no stage: the bundle waits in work/<profile>/outbox of the project, also
where this is a copy of it in which an experiment runs, and `deepsearch track <profile>` sends it.
"""

import logging
import os
from pathlib import Path

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.stage import Stage, run
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.track.build_bundle import Results, build_bundle
from deepsearch_rl.track.bundle import TrackConfig
from deepsearch_rl.track.live import LiveFigures, waiting
from deepsearch_rl.track.local_store import local_store
from deepsearch_rl.track.outbox import outbox_folder
from deepsearch_rl.track.upload import FailedUpload, put_into_outbox, upload_all
from stages.provenance import read_provenance

# Evaluated model -> folder below models/<profile> whose train_log.jsonl is its training curve
TRAIN_LOGS = {
    "base": "base",
    "sft": "sft_adapter",
    "rl": "rl_adapter/base",
    "sft_rl": "rl_adapter/sft",
}
_LOG = logging.getLogger(__name__)

STAGE = Stage(
    sections=("seed", "track", "evaluate"),
    packages=("core", "chat", "agent", "train", "evaluate", "track"),
    inputs=(
        "stages/provenance.py",
        "reports/{profile}/f1_table.json",
        "reports/{profile}/f1_table.md",
        "reports/{profile}/f1_table.csv",
        "reports/{profile}/metrics.json",
        "reports/{profile}/lost_points.json",
        "reports/{profile}/index.html",
        "data/{profile}/evaluate",
        "data/{profile}/questions",
        "models/{profile}/base",
        "models/{profile}/sft_adapter",
        "models/{profile}/rl_adapter",
    ),
)


def main(profile: Profile) -> None:
    """Build the report's bundle and upload it; one that cannot be uploaded now waits."""
    config = profile.section("track", TrackConfig)
    bundle = profile.data / "track"
    outbox = outbox_folder(Path(), profile.name)
    provenance = read_provenance(profile.path, "track")
    tracked = build_bundle(_results(profile), provenance, config, profile.value("seed"), bundle)
    write_json(profile.reports / "track.json", tracked.model_dump(mode="json"))
    uri = os.environ.get("MLFLOW_TRACKING_URI") or local_store(Path("mlruns"))

    try:
        # First, because a report's runs name them
        LiveFigures(profile.work, config.experiment, uri, config.timeout_s).send()
    except DeepsearchError as error:
        _LOG.warning(waiting(profile.work, str(error)))

    for outcome in upload_all(bundle, outbox, uri, config.timeout_s):
        if isinstance(outcome, FailedUpload):
            folder = put_into_outbox(bundle, outbox) if outcome.folder == bundle else outcome.folder
            _LOG.warning(
                "NOT SENT to MLflow: %s\nThe report waits in %s: `deepsearch track %s`.",
                outcome.error,
                folder,
                profile.name,
            )


def _results(profile: Profile) -> Results:
    table = read_record(profile.reports / "f1_table.json", F1Table)
    evaluations: dict[str, Path] = {}
    logs: dict[str, Path] = {}
    for model in sorted({row.model for row in table.rows}):
        evaluations[model] = profile.data / "evaluate" / model
        # Models of other profiles, and those behind endpoints, have no log here
        if model in TRAIN_LOGS:
            log = profile.models / TRAIN_LOGS[model] / "train_log.jsonl"
            if log.is_file():
                logs[model] = log

    variants = profile.value("evaluate")["variants"].values()
    prompts = sorted({variant["prompt"] for variant in variants if variant["prompt"]})
    return Results(
        reports=profile.reports,
        evaluations=evaluations,
        train_logs=logs,
        questions=profile.data / "questions",
        # A prompt that optimize_prompt made is a folder; one of prompts is a file
        prompts=[folder for folder in map(Path, prompts) if folder.is_dir()],
    )


if __name__ == "__main__":
    run(STAGE, main)
