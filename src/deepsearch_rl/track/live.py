"""Curves of training runs in MLflow and TensorBoard, while training appends to them and afterwards.

    <experiment>-live                            MLflow's experiment: a run per training run, ``train/<metric>`` by step
    work/<profile>/tensorboard/<name>/<time>/    TensorBoard's event file

Training waits for nobody: this is another process, and what it reads is a file. A run is found by
its tag ``curve``, so a resumed training goes on in it. Beside a curve stands how many of its lines
each store has (:class:`CurveState`). Where a kill comes between a request and that note, the same
metrics are sent again, with the same times: MLflow keeps one of equal metrics.
"""

import io
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from mlflow.entities import Metric, Run, RunTag
from mlflow.tracking import MlflowClient
from pydantic import Field
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.records import Record
from deepsearch_rl.track.curves import CurveRun, read_runs
from deepsearch_rl.track.run_names import run_name, time_to_add
from deepsearch_rl.track.store import BATCH, batches, connected, experiment_id, held, public_uri
from deepsearch_rl.train.curves import CURVES, CurveLine

LIVE = "-live"
TENSORBOARD = "tensorboard"
TRAIN = "train/"
CURVE_TAG = "curve"
STAGE_TAG = "dvc.stage"
EVENT_FORMAT = "brain.Event:2"
POLL_S = 2.0
# Seconds between two attempts at a server that failed
RETRY_S = 30.0


class CurveState(Record):
    """``<name>.json`` beside a curve: what is known of it that training does not write."""

    sent: dict[str, int] = Field(
        default={}, description="lines of the curve that a store has, by its public address"
    )
    tags: dict[str, dict[str, str]] = Field(
        default={}, description="of each of its runs, by when it began"
    )


@dataclass(slots=True)
class LiveFigures:
    """The curves of a profile, and the store that they go to.

    ``stage`` (``sft``, ``rl-base``, ...) restricts them to those that this stage writes; ``tags``
    are its own.
    """

    work: Path
    experiment: str
    uri: str
    timeout_s: float
    stage: str = ""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    # Sizes of curves when they were last written as events, and sent.
    _written: dict[Path, int] = field(default_factory=dict[Path, int])
    _sent: dict[Path, int] = field(default_factory=dict[Path, int])

    # Curves that grew meanwhile.
    _followed: set[Path] = field(default_factory=set[Path])

    def write_events(self) -> None:
        """Bring TensorBoard's files up to date; RecordError for a curve that cannot be read."""
        for path in self._grown(self._written):
            # Held, because two processes would make two runs of it.
            with held(path, self.timeout_s, f"the curve {path}"):
                size = path.stat().st_size
                for run in read_runs(path):
                    _write_events(self._event_file(run), run.steps())

            self._written[path] = size

    def _event_file(self, run: CurveRun) -> Path:
        began = datetime.fromtimestamp(run.began_ms / 1000, UTC)
        folder = self.work / TENSORBOARD / run.name / f"{began:%Y%m%dT%H%M%S}"
        return folder / f"events.out.tfevents.{run.began_ms // 1000}"

    def send(self, is_last: bool = False) -> dict[str, int]:
        """Send what the store does not have; return the number of lines sent, by curve.

        ``is_last``: training has ended, and what it wrote without an end was killed. Raises
        RecordError for a curve that cannot be read, EndpointDownError where another process sends
        the same one, and as :func:`connected`.
        """
        counts: dict[str, int] = {}
        for path in self._grown({} if is_last else self._sent):
            # Held, because two processes would make two runs of it.
            with held(path, self.timeout_s, f"the curve {path}"):
                size = path.stat().st_size
                counts[path.stem] = self._send_curve(path, is_last)

            self._sent[path] = size

        return counts

    def _grown(self, sizes: Mapping[Path, int]) -> list[Path]:
        """Return the curves whose size is not that in ``sizes``."""
        grown: list[Path] = []
        for path in sorted((self.work / CURVES).glob("*.jsonl")):
            stage, _, _key = path.stem.rpartition("-")
            is_own = self.stage in ("", stage)
            if is_own and path.stat().st_size != sizes.get(path):
                grown.append(path)

        return grown

    def _send_curve(self, path: Path, is_last: bool) -> int:
        """Send what the store does not have of a curve, note that, and return the number of lines."""
        runs = read_runs(path)
        state = self._tagged_state(path, runs)
        store = public_uri(self.uri)
        sent = state.sent.get(store, 0)
        total = runs[-1].last if runs else 0

        # A run without an end when training has ended; its new lines may have been sent before.
        is_killed = is_last and total > 0 and runs[-1].end is None
        is_killed = is_killed and (total > sent or path in self._followed)
        if total <= sent and not is_killed:
            return 0

        with connected(self.uri, self.timeout_s) as client:
            experiment = experiment_id(client, self.experiment + LIVE, self.uri)
            for run in runs:
                is_newest = run is runs[-1]
                if run.last <= sent and not (is_killed and is_newest):
                    continue

                is_running = is_newest and not is_killed
                status = run.end or ("RUNNING" if is_running else "KILLED")
                tags = {"profile": self.work.name, **state.tags.get(str(run.began_ms), {})}
                _send_run(client, experiment, run, sent, tags, status)

        state = state.model_copy(update={"sent": {**state.sent, store: total}})
        write_json(_state_path(path), state.model_dump(mode="json"))
        self._followed.add(path)
        return total - sent

    def _tagged_state(self, path: Path, runs: Sequence[CurveRun]) -> CurveState:
        """Return what is known of a curve, after noting the tags of its newest run."""
        state_path = _state_path(path)
        state = read_record(state_path, CurveState) if state_path.is_file() else CurveState()

        if self.tags and runs and str(runs[-1].began_ms) not in state.tags:
            tags = {**state.tags, str(runs[-1].began_ms): dict(self.tags)}
            state = state.model_copy(update={"tags": tags})
            write_json(state_path, state.model_dump(mode="json"))

        return state


def _state_path(curve: Path) -> Path:
    return curve.with_suffix(".json")


def _write_events(path: Path, steps: Iterable[CurveLine]) -> None:
    """Append what the event file of a run's steps does not have: after the format, an event per step.

    Equal steps have equal bytes, so a file is the beginning of what it shall hold, wherever a kill
    cut it off.
    """
    content = io.BytesIO()
    writer = RecordWriter(content)
    writer.write(Event(file_version=EVENT_FORMAT).SerializeToString())

    for line in steps:
        values: list[Summary.Value] = []
        for name, value in line.metrics.items():
            if value is not None:
                values.append(Summary.Value(tag=f"{TRAIN}{name}", simple_value=value))

        summary = Summary(value=values)
        event = Event(wall_time=line.time_ms / 1000, step=line.step, summary=summary)
        writer.write(event.SerializeToString())

    path.parent.mkdir(parents=True, exist_ok=True)
    # Where it ends is how much of the content it has
    with path.open("ab") as file:
        file.write(content.getvalue()[file.tell() :])


def live_runs(client: MlflowClient, experiment: str, curve: str) -> list[Run]:
    """Return the run of a curve, if there is one.

    There may be another, made by a request that was carried out too late.
    """
    return list(client.search_runs([experiment], f"tags.`{CURVE_TAG}` = '{curve}'"))


def _send_run(
    client: MlflowClient,
    experiment: str,
    run: CurveRun,
    sent: int,
    tags: Mapping[str, str],
    status: str,
) -> None:
    """Send the steps behind the first ``sent`` lines of the file.

    All of them if the store has no such run, or two.
    """
    profile = tags["profile"]
    curve = f"{profile}/{run.identity}"

    targets = live_runs(client, experiment, curve)
    sent = sent if len(targets) == 1 else 0
    for other in targets[1:]:
        client.delete_run(other.info.run_id)

    if not targets:
        name = run_name(f"{profile}/{tags.get(STAGE_TAG) or run.stage}", tags)
        name += time_to_add(client, experiment, name, run.began_ms)
        targets = [client.create_run(experiment, run.began_ms, {**tags, CURVE_TAG: curve}, name)]

    run_id = targets[0].info.run_id
    client.log_batch(run_id, tags=_alarm_tags(run, sent))
    # Ten times as many as of other things, which is what MLflow takes of metrics
    for batch in batches(_metrics(run, sent), BATCH * 10):
        client.log_batch(run_id, metrics=batch)

    if status == "RUNNING":
        client.update_run(run_id, status)
    else:
        client.set_terminated(run_id, status, run.lines[-1].time_ms)


def _metrics(run: CurveRun, sent: int) -> Iterator[Metric]:
    """Yield the metrics of a run's steps behind the first ``sent`` lines of the file."""
    for line in run.steps(sent):
        for name, value in line.metrics.items():
            if value is not None:
                yield Metric(f"{TRAIN}{name}", value, line.time_ms, line.step or 0)


def _alarm_tags(run: CurveRun, sent: int) -> list[RunTag]:
    """Return a tag with the reason of every alarm behind the first ``sent`` lines; the newest of one name."""
    tags: dict[str, str] = {}
    for line in run.lines[max(0, sent - run.first) :]:
        tags.update(alarm.tag for alarm in line.alarms)
    return [RunTag(name, value) for name, value in tags.items()]


def follow(figures: LiveFigures, ending: threading.Event, notify: Callable[[str], None]) -> None:
    """Send what training appends until ``ending``, and then what is left.

    ``notify`` of a failure, and try again.
    """
    next_attempt = 0.0
    while True:
        # Once more after the end: the last steps were written since the last look
        is_last = ending.wait(POLL_S)

        try:
            figures.write_events()
            if is_last or time.monotonic() >= next_attempt:
                figures.send(is_last)
        except (DeepsearchError, OSError) as error:
            next_attempt = time.monotonic() + RETRY_S
            notify(waiting(figures.work, str(error)))

        if is_last:
            return


def waiting(work: Path, problem: str) -> str:
    """Return the notice of a problem for which the curves of a profile wait in its folder of ``work/``."""
    return f"LIVE FIGURES WAIT: {problem}\nThey are kept in {work / CURVES}: `deepsearch live {work.name}`."
