"""Live curves: a small program that logs the steps of a training run to MLflow while training appends them.

    <experiment>-live    MLflow's experiment: a run per training run, ``train/<metric>`` by step

A training stage starts it as a child (:mod:`deepsearch_rl.train.curves`), because the environments
that train on GPUs have no MLflow. It ends when its stdin does, so a killed stage ends it too. A server
that is away costs one warning: the steps are tried again while training goes on, and the report's run
has the whole curve in any case.
"""

import logging
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import mlflow
from mlflow.entities import Metric, RunTag
from mlflow.tracking import MlflowClient

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.files import parse_record
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.track.contents import TrackConfig
from deepsearch_rl.track.store import mlflow_client, run_name, source_tags
from deepsearch_rl.train.curves import CurveLine

CURVE_TAG = "curve"
POLL_S = 2.0
# Seconds between two attempts at a server that failed
RETRY_S = 30.0
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveCurve:
    """A curve file, of which the first ``offset`` bytes are logged, and the run of MLflow that shows it."""

    path: Path
    offset: int
    profile: str
    stage: str
    experiment: str
    run_id: str = field(default="", init=False)
    is_running: bool = field(default=False, init=False)

    def appended(self) -> bytes:
        """Return the lines that are not logged yet, without one that is still being written."""
        if not self.path.is_file():
            return b""
        appended = self.path.read_bytes()[self.offset :]
        return appended[: appended.rfind(b"\n") + 1]

    def send(self, client: MlflowClient) -> None:
        """Log what was appended; lines are sent again after a failure, and MLflow keeps one of equal metrics."""
        appended = self.appended()
        if appended and not self.run_id:
            self.run_id = self._find_run(client)
            self.is_running = True

        for number, text in enumerate(appended.splitlines(), 1):
            line = parse_record(CurveLine, text, self.path, number)
            if line.end is not None:
                client.set_terminated(self.run_id, line.end, line.time_ms)
                self.is_running = False
                continue

            metrics: list[Metric] = []
            for name, value in line.metrics.items():
                if value is not None:
                    metrics.append(Metric(f"train/{name}", value, line.time_ms, line.step or 0))
            tags = [RunTag(*alarm.tag) for alarm in line.alarms]
            client.log_batch(self.run_id, metrics=metrics, tags=tags)

        self.offset += len(appended)

    def _find_run(self, client: MlflowClient) -> str:
        """Return the unfinished run of this curve, which a resumed training goes on with, or a new one."""
        experiment = mlflow.set_experiment(self.experiment).experiment_id
        curve = f"{self.profile}/{self.path.stem}"
        for run in client.search_runs([experiment], f"tags.{CURVE_TAG} = '{curve}'"):
            if run.info.status != "FINISHED":
                client.update_run(run.info.run_id, "RUNNING")
                return run.info.run_id

        tags = {**source_tags(self.profile), "dvc.stage": self.stage, CURVE_TAG: curve}
        name = run_name(f"{self.profile}/{self.stage}", tags)
        return client.create_run(experiment, tags=tags, run_name=name).info.run_id


def follow(curve: LiveCurve, timeout_s: float) -> None:
    """Send a curve until stdin ends, and then what is left; a run whose training did not say how it ended is KILLED."""
    next_attempt = 0.0
    is_warned = False
    is_last = False

    while not is_last:
        # Nothing is ever written to it: readable means that the stage has ended
        is_last = bool(select.select([sys.stdin], [], [], POLL_S)[0])
        if not curve.appended() and not (is_last and curve.is_running):
            continue
        if time.monotonic() < next_attempt and not is_last:
            continue

        try:
            with mlflow_client(timeout_s) as client:
                curve.send(client)
                if is_last and curve.is_running:
                    client.set_terminated(curve.run_id, "KILLED")
        except (DeepsearchError, OSError) as error:
            next_attempt = time.monotonic() + RETRY_S
            if not is_warned:
                _LOG.warning("training goes on, but MLflow does not show its curve: %s", error)
            is_warned = True


def main(params: str, stage: str, curve: str, offset: str) -> None:
    """Follow the curve of a stage of the profile with these ``params``, from a byte of its file on."""
    logging.basicConfig(format="%(message)s")
    profile = load_profile(Path(params))
    config = profile.section("track", TrackConfig)
    experiment = f"{config.experiment}-live"
    follow(LiveCurve(Path(curve), int(offset), profile.name, stage, experiment), config.timeout_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
