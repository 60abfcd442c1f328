"""Curves that reach MLflow and TensorBoard while training runs, through kills of either side and of the server."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest
import yaml
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.core.files import AppendLog, read_record
from deepsearch_rl.core.processes import running_server
from deepsearch_rl.track import live
from deepsearch_rl.track.build_bundle import build_bundle
from deepsearch_rl.track.bundle import BUNDLE, ReportBundle
from deepsearch_rl.track.curves import line_digest, read_runs, read_steps
from deepsearch_rl.track.live import LiveFigures, follow
from deepsearch_rl.track.store import held
from deepsearch_rl.train.curves import Alarm, CurveLine, curve_path
from tests.conftest import ROOT
from tests.ports import free_port
from tests.track.conftest import CONFIG, PROVENANCE, SEED, make_results, new_store

WORK, NAME = Path("work", "tiny"), "sft-0123456789ab"
WAIT_S = 120
STAGE = """
import os, time
from deepsearch_rl.train.curves import record_step, recorded_curve
from deepsearch_rl.core.stage import run
from deepsearch_rl.train.followed import followed

def main(profile, item, scratch):
    first, last, then = os.environ["STEPS"].split()
    with recorded_curve(scratch.curve):
        for step in range(int(first), int(last) + 1):
            record_step({"step": step, "loss": 1 / step})
        print("recorded", flush=True)
        while then == "stay" and not os.path.exists("end"):
            time.sleep(0.1)

run(followed(main))
"""
"""A stage that records steps, and then ends, or stays until it is killed or there is a file `end`."""


@pytest.fixture
def curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a curve in a project of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    return curve_path(WORK, NAME)


def steps(*numbers: int, time_ms: int = 1000) -> list[CurveLine]:
    return [
        CurveLine(time_ms=time_ms + step, step=step, metrics={"loss": 1 / step}) for step in numbers
    ]


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
    return sorted((point.step, point.value, point.timestamp) for point in history)


def written(folder: Path = WORK / "tensorboard") -> list[tuple[str, int, float]]:
    """Folder, step and time of every event that TensorBoard's own loader reads."""
    files = sorted(folder.rglob("*tfevents*"))
    events = (
        (path.parent.name, event) for path in files for event in EventFileLoader(str(path)).Load()
    )
    return [
        (name, event.step, event.wall_time) for name, event in events if event.HasField("summary")
    ]


def test_steps_repeated_by_a_resume_count_once_and_a_step_after_the_end_begins_another_run(
    curve: Path,
) -> None:
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
    assert [line.step for line in first.steps(sent=7)] == [3], "step 4 is in line 7"
    assert (first.end, first.last, second.end, second.last) == ("FINISHED", 9, None, 11)
    assert (first.identity, second.identity) == (f"{NAME}/1001", f"{NAME}/9001")


@pytest.mark.parametrize("end", [None, "FAILED", "FINISHED"])
def test_training_from_the_first_step_again_is_another_run(
    curve: Path, end: Literal["FINISHED", "FAILED"] | None
) -> None:
    evaluated = CurveLine(time_ms=60, step=1, metrics={"eval_loss": 0.5})
    append(curve, [*steps(1), evaluated, *steps(2, 3)])
    append(curve, [CurveLine(time_ms=70, end=end)] if end else [])
    # Its scratch folder was removed, or it had finished
    append(curve, steps(1, 2, time_ms=9000))
    first, second = read_runs(curve)
    assert ([line.step for line in first.steps()], first.end) == ([1, 1, 2, 3], end)
    assert ([line.step for line in second.steps()], second.identity) == ([1, 2], f"{NAME}/9001")


@pytest.mark.slow
def test_the_run_of_a_removed_scratch_folder_is_killed_and_its_successor_is_running(
    curve: Path,
) -> None:
    store = new_store(Path("mlruns"))
    append(curve, [*steps(1, 2), *steps(1, time_ms=9000)])
    figures(store).send()
    assert sorted((run.info.start_time, run.info.status) for run in live_runs(store)) == [
        (1001, "KILLED"),
        (9001, "RUNNING"),
    ]


def test_a_line_of_a_training_log_has_the_latest_time_at_which_it_was_written(curve: Path) -> None:
    assert read_steps(WORK) == {}
    append(curve, [*steps(1, 2), *steps(2, time_ms=5000)])
    times = {digest: time_ms for digest, (time_ms, _) in read_steps(WORK).items()}
    log: list[dict[str, float | None]] = [
        {"step": 1.0, "loss": 1.0, "kl": None},
        {"step": 2, "loss": 0.5},
    ]
    assert times == dict(zip(map(line_digest, log), (1001, 5002), strict=True))


def test_a_reports_curve_has_the_times_of_its_steps_and_a_step_without_one_that_of_the_next(
    curve: Path,
) -> None:
    results = make_results(Path.cwd())
    lines = [{"step": step, "loss": 1 / step} for step in (1, 2, 3, 4)]
    results.train_logs["sft"].write_text("".join(json.dumps(line) + "\n" for line in lines))
    build_bundle(results, PROVENANCE, CONFIG, SEED, Path("bundle"))
    append(curve, steps(1, 3))
    times = {digest: time_ms for digest, (time_ms, _) in read_steps(WORK).items()}
    metrics = read_record(Path("bundle", BUNDLE), ReportBundle).metrics("sft", "", 9000, times)
    points = [(metric.step, metric.timestamp) for metric in metrics if metric.key == "train/loss"]
    assert points == [(1, 1001), (2, 1003), (3, 1003), (4, 9000)]


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
    assert written() == [
        ("19700101T000001", step, pytest.approx(1 + step / 1000)) for step in (1, 2, 3)
    ]


@pytest.mark.slow
def test_a_resumed_training_goes_on_in_its_run_and_no_step_is_sent_twice(curve: Path) -> None:
    store = new_store(Path("mlruns"))
    append(curve, steps(1, 2))
    assert figures(store, "sft").send() == {NAME: 2}
    (run,) = live_runs(store)
    assert (run.info.run_name, run.info.status, run.info.start_time) == (
        "tiny/sft · abc",
        "RUNNING",
        1001,
    )
    assert (run.data.tags["profile"], run.data.tags["git.commit"]) == ("tiny", "abc")
    append(curve_path(WORK, "sft-x-0123456789ab"), steps(1))
    assert figures(store, "rl-base").send() == {}, "another stage's"
    assert figures(store, "sft").send() == {NAME: 0}, (
        "that of an item with a longer name is another's"
    )
    curve_path(WORK, "sft-x-0123456789ab").unlink()
    # As if the note had not been written before a kill
    curve.with_suffix(".json").unlink()
    append(curve, [*steps(2, 3, time_ms=5000), CurveLine(time_ms=9000, end="FINISHED")])
    assert figures(store).send() == {NAME: 5}
    assert figures(store).send() == {NAME: 0}
    (run,) = live_runs(store)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 9000)
    assert points(store, run) == [(1, 1.0, 1001), (2, 0.5, 1002), (3, pytest.approx(1 / 3), 5003)]
    append(curve, steps(1, time_ms=20000))
    figures(store, "sft").send()
    names = {run.info.run_name for run in live_runs(store)}
    assert names == {"tiny/sft · abc", "tiny/sft · abc · 1970-01-01 00:00:20 UTC"}, (
        "training from the start again"
    )


@pytest.mark.slow
def test_an_alarm_is_a_tag_of_its_run_from_the_step_on_at_which_it_begins(curve: Path) -> None:
    store = new_store(Path("mlruns"))
    append(curve, steps(1, 2))
    figures(store).send()
    (run,) = live_runs(store)
    assert not [name for name in run.data.tags if name.startswith("alarm/")]

    spike = Alarm(name="spike", step=3, reason="grad_norm is 27.5, usually 0.5")
    signal = Alarm(name="no_signal", step=3, reason="90% of the groups have equal rewards")
    third, fourth = steps(3, 4)
    append(curve, [third.model_copy(update={"alarms": (spike, signal)})])
    figures(store).send()
    append(curve, [fourth])
    figures(store).send()
    tags = live_runs(store)[0].data.tags
    assert tags["alarm/spike"] == "from step 3: grad_norm is 27.5, usually 0.5"
    assert tags["alarm/no_signal"] == "from step 3: 90% of the groups have equal rewards"

    # It ended and came back, and a resumed training repeats its step
    again = spike.model_copy(update={"step": 5, "reason": "grad_norm is 40, usually 0.5"})
    (fifth,) = (line.model_copy(update={"alarms": (again,)}) for line in steps(5))
    append(curve, [third, fourth, fifth, fifth])
    figures(store).send()
    (run,) = live_runs(store)
    assert run.data.tags["alarm/spike"] == "from step 5: grad_norm is 40, usually 0.5"


@contextlib.contextmanager
def mlflow_server() -> Iterator[str]:
    """The address of a real server over the store below ``mlruns``."""
    port = free_port()
    store = new_store(Path("mlruns"))
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        store,
        "--workers",
        "1",
    ]
    command += [
        "--port",
        str(port),
        "--artifacts-destination",
        str(Path("mlruns/artifacts").resolve()),
    ]
    with running_server("MLflow", command, f"http://127.0.0.1:{port}", "/health", WAIT_S) as server:
        yield server.url


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one stage, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "python", tmp_path / "tools")
    params = {
        "profile": "tiny",
        "track": {"experiment": "tests"},
        "python": {"core": sys.executable},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    (tmp_path / "rl.py").write_text(STAGE)
    (tmp_path / "dvc.yaml").write_text("stages: {rl: {matrix: {start: [base]}, cmd: python rl.py}}")
    return tmp_path


@contextlib.contextmanager
def stage(uri: str, steps: str) -> Iterator["subprocess.Popen[str]"]:
    """The stage as DVC starts it, when it has recorded its steps; killed at the end of the block."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MLFLOW_TRACKING_URI": uri,
        "STEPS": steps,
    }
    environment |= {"DVC_EXP_NAME": "fussy-kiln"}
    command = [sys.executable, "rl.py", "params.yaml", "base"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "recorded\n"
            yield process
        finally:
            process.kill()


def the_curve() -> Path:
    """The one curve of the stage in the working directory."""
    (curve,) = (WORK / "curves").glob("rl-base-*.jsonl")
    return curve


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def follower(process: "subprocess.Popen[str]") -> psutil.Process:
    (found,) = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "--stage" in child.cmdline() and "deepsearch_rl.core.supervisor" not in child.cmdline()
    ]
    return found


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_stage_that_is_killed_and_resumed_is_one_run_with_every_step_once(project: Path) -> None:
    def sent(last: int, status: str) -> bool:
        return any(
            run.info.status == status
            and [point[0] for point in points(url, run)] == list(range(1, last + 1))
            for run in live_runs(url)
        )

    with mlflow_server() as url:
        with stage(url, "1 5 stay"):
            wait_until(lambda: sent(5, "RUNNING"))
        wait_until(lambda: sent(5, "KILLED"))
        with stage(url, "4 8 stay") as training:
            wait_until(lambda: sent(8, "RUNNING"))
            follower(training).kill()
            append(the_curve(), steps(9))
        with stage(url, "8 10 stay") as training:
            wait_until(lambda: sent(10, "RUNNING"))
            (project / "end").touch()
            assert training.wait(WAIT_S) == 0
        assert sent(10, "FINISHED")
        (run,) = live_runs(url)
        tags = {name: run.data.tags[name] for name in ("profile", "dvc.stage", "dvc.experiment")}
        assert tags == {"profile": "tiny", "dvc.stage": "rl@base", "dvc.experiment": "fussy-kiln"}
        assert run.data.tags["curve"].startswith(f"tiny/{the_curve().stem}/")
    assert [step for _, step, _ in written()] == list(range(1, 11))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_hangs_costs_a_stage_seconds_and_one_notice_and_the_steps_are_sent_later(
    project: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://user:hidden@127.0.0.1:{silent.getsockname()[1]}"
        with stage(uri, "1 3 stay") as training:
            wait_until(lambda: len(written()) == 3)
            (project / "end").touch()
            _, errors = training.communicate(timeout=WAIT_S)
        assert training.returncode == 0
    assert errors.count("LIVE FIGURES WAIT") == 1
    assert "hidden" not in errors
    store = new_store(Path("mlruns"))
    outputs: list[str] = []
    for _ in range(2):
        result = CliRunner().invoke(app, ["live", "--to", store], catch_exceptions=False)
        assert result.exit_code == 0
        outputs.append(result.stdout)
    assert [output.split(" sent to ")[0].split(" /")[0] for output in outputs] == [
        f"tiny {the_curve().stem}: 4 lines",
        f"tiny {the_curve().stem}: already at",
    ]
    (run,) = live_runs(store)
    assert [point[0] for point in points(store, run)] == [1, 2, 3]
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_a_store_that_was_out_of_reach_gets_what_it_missed(
    curve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "POLL_S", 0.05)
    monkeypatch.setattr(live, "RETRY_S", 0.05)
    store, ending, notices = new_store(Path("mlruns")), threading.Event(), list[str]()
    thread = threading.Thread(
        target=follow, args=(figures(store, "sft", timeout_s=0.2), ending, notices.append)
    )
    append(curve, steps(1, 2))
    try:
        with held(Path("mlruns/mlflow.db").resolve(), WAIT_S, "the store"):
            thread.start()
            wait_until(lambda: bool(notices))
            assert written(), "TensorBoard does not wait for MLflow"
            append(curve, steps(3))
        wait_until(lambda: any(len(points(store, run)) == 3 for run in live_runs(store)))
    finally:
        ending.set()
        thread.join()
    (run,) = live_runs(store)
    assert run.info.status == "KILLED", "training ended without an end of its run"
    assert "`deepsearch live tiny`" in notices[0]
