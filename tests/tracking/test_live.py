"""Curves that reach MLflow and TensorBoard while training runs, through kills of either side and of the server."""

from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from deepsearch_rl.files import AppendLog
from deepsearch_rl.tracking.curves import line_digest, read_runs, read_steps
from deepsearch_rl.tracking.live import LiveFigures
from deepsearch_rl.tracking.local_store import local_store
from deepsearch_rl.training.curves import CurveLine, curve_path

WORK, NAME = Path("work", "tiny"), "sft-0123456789ab"
TRAINER = """
import sys, time
from pathlib import Path
from deepsearch_rl.training.curves import record_step, recorded_curve
with recorded_curve(Path(sys.argv[1])):
    for step in range(int(sys.argv[2]), int(sys.argv[3])):
        record_step({"step": step, "loss": 1 / step, "reward": None if step % 2 else 0.5})
    while sys.argv[4] == "stay":
        time.sleep(60)
"""
START_S = 120


@pytest.fixture
def curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a curve in a project of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return curve_path(WORK, NAME)


def steps(*numbers: int, time_ms: int = 1000) -> list[CurveLine]:
    return [CurveLine(time_ms=time_ms + step, step=step, metrics={"loss": 1 / step}) for step in numbers]


def append(path: Path, lines: list[CurveLine]) -> None:
    with AppendLog(path) as log:
        for line in lines:
            log.append(line)


def figures(uri: str, stage: str = "", timeout_s: float = 5) -> LiveFigures:
    return LiveFigures(WORK, "tests", uri, timeout_s, stage, {"git.commit": "abc"} if stage else {})


def live_runs(uri: str) -> list[Run]:
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("tests-live")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def points(uri: str, run: Run, metric: str = "train/loss") -> list[tuple[int, float, int]]:
    history = MlflowClient(tracking_uri=uri).get_metric_history(run.info.run_id, metric)
    return [(point.step, point.value, point.timestamp) for point in history]


def written(folder: Path = WORK / "tensorboard") -> list[tuple[str, int, float]]:
    """Folder, step and time of every event that TensorBoard's own loader reads."""
    files = sorted(folder.rglob("*tfevents*"))
    events = ((path.parent.name, event) for path in files for event in EventFileLoader(str(path)).Load())
    return [(name, event.step, event.wall_time) for name, event in events if event.HasField("summary")]


def test_steps_repeated_by_a_resume_count_once_and_a_step_after_the_end_begins_another_run(curve: Path) -> None:
    failed, finished = (CurveLine(time_ms=50, end=end) for end in ("FAILED", "FINISHED"))
    evaluated = CurveLine(time_ms=70, step=3, metrics={"eval_loss": 0.5})
    append(curve, [*steps(1, 2, 3), failed, *steps(2, 3, 4, time_ms=2000), evaluated, finished])
    append(curve, steps(1, 2, time_ms=9000))
    with curve.open("a") as file:
        file.write('{"time_ms": 5, "st')
    first, second = read_runs(curve)
    assert [line.step for line in first.steps()] == [1, 2, 3, 4, 3]
    assert [line.time_ms for line in first.steps()] == [1001, 1002, 1003, 2004, 70]
    assert [line.step for line in first.steps(sent=6)] == [4, 3]
    assert (first.end, first.last, second.end, second.last) == ("FINISHED", 9, None, 11)
    assert (first.identity, second.identity) == (f"{NAME}/1001", f"{NAME}/9001")


def test_a_line_of_a_training_log_has_the_latest_time_at_which_it_was_written(curve: Path) -> None:
    assert read_steps(WORK) == {}
    append(curve, [*steps(1, 2), *steps(2, time_ms=5000)])
    times = {digest: time_ms for digest, (time_ms, _) in read_steps(WORK).items()}
    log: list[dict[str, float | None]] = [{"step": 1.0, "loss": 1.0, "kl": None}, {"step": 2, "loss": 0.5}]
    assert times == dict(zip(map(line_digest, log), (1001, 5002), strict=True))


def test_event_files_have_every_step_once_whatever_a_kill_left_of_them(curve: Path) -> None:
    append(curve, steps(1, 2))
    figures("sqlite:///none.db").write_events()
    (events,) = WORK.rglob("*tfevents*")
    whole = events.read_bytes()
    for size in range(len(whole)):
        events.write_bytes(whole[:size])
        figures("sqlite:///none.db").write_events()
        assert events.read_bytes() == whole
    append(curve, steps(2, 3))
    figures("sqlite:///none.db").write_events()
    assert written() == [("19700101T000001", step, pytest.approx(1 + step / 1000)) for step in (1, 2, 3)]


@pytest.mark.slow
def test_a_resumed_training_goes_on_in_its_run_and_no_step_is_sent_twice(curve: Path) -> None:
    store = local_store(Path("mlruns"))
    append(curve, steps(1, 2))
    assert figures(store, "sft").send() == {NAME: 2}
    (run,) = live_runs(store)
    assert (run.info.run_name, run.info.status, run.info.start_time) == (f"tiny {NAME}", "RUNNING", 1001)
    assert (run.data.tags["profile"], run.data.tags["git.commit"]) == ("tiny", "abc")
    assert figures(store, "rl-base").send() == {}, "another stage's"
    curve.with_suffix(".json").unlink()  # as if the note had not been written before a kill
    append(curve, [*steps(2, 3, time_ms=5000), CurveLine(time_ms=9000, end="FINISHED")])
    assert figures(store).send() == {NAME: 5}
    assert figures(store).send() == {NAME: 0}
    (run,) = live_runs(store)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 9000)
    assert points(store, run) == [(1, 1.0, 1001), (2, 0.5, 1002), (3, pytest.approx(1 / 3), 5003)]
    append(curve, steps(1, time_ms=20000))
    figures(store).send()
    assert len(live_runs(store)) == 2, "training from the start again"
