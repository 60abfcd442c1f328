"""The reports of a run to MLflow: those that wait, and one whose stage `track` did not run here."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from deepsearch_rl.core.files import read_json
from deepsearch_rl.track.local_store import database_file, has_report, local_store
from deepsearch_rl.track.outbox import outbox_folder, waiting_reports
from flows.stage_run import COMPLETED, AnyLogger, StageFailedError, Workplace, stream

# The stage that sends a report when it runs
TRACK = "track"


def send_reports(
    place: Workplace, profile: str, outcomes: Mapping[str, str | None], log: AnyLogger
) -> None:
    """Send what MLflow does not have, by `deepsearch track`; a server that is away fails no run.

    DVC restores the stage `track` without running it where it has its outputs: from another
    machine, an experiment, a commit. ``outcomes`` says how each stage ended
    (:mod:`flows.stage_run`), None where it failed.
    """
    waits = bool(waiting_reports(outbox_folder(place.root, profile)))
    if not waits and not _may_be_unsent(place.root, profile, outcomes):
        return
    try:
        stream([str(Path(sys.executable).with_name("deepsearch")), "track", profile], place, log)
    except StageFailedError as error:
        log.warning("NOT SENT to MLflow: %s", error)


def _may_be_unsent(root: Path, profile: str, outcomes: Mapping[str, str | None]) -> bool:
    """Return whether there is a report that the stage did not send in this run, and the store may not have."""
    bundle = root / "data" / profile / "track" / "bundle.json"
    if outcomes.get(TRACK) in (None, COMPLETED) or not bundle.is_file():
        return False
    database = database_file(os.environ.get("MLFLOW_TRACKING_URI") or local_store(root / "mlruns"))
    # A server is asked by the command itself, which takes seconds to load MLflow's client.
    return database is None or not has_report(database, str(read_json(bundle).get("digest")))
