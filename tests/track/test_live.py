"""The curve of a training stage in MLflow while it trains: resumed, killed, and with the server away."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from tests.conftest import ROOT
from tests.track.conftest import CONFIG, new_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WAIT_S = 120
STAGE = """
import os, time
from pathlib import Path
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.stage import Scratch
from deepsearch_rl.train.curves import Alarm, live_figures, record_step, recorded_curve

scratch = Scratch("rl@sft", Path("scratch"), Path("work/tiny/curves/rl-sft-0123.jsonl"))
with live_figures(load_profile(Path("params.yaml")), scratch), recorded_curve(scratch.curve):
    for step in range(int(os.environ["FIRST"]), int(os.environ["LAST"]) + 1):
        record_step({"step": step, "loss": 1 / step}, [Alarm(name="spike", step=step, reason="why")])
    print("recorded", flush=True)
    while os.path.exists("stay"):
        time.sleep(0.1)
"""
"""A stage that records steps, and stays as long as there is a file `stay`."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store of a project, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    python = {"core": sys.executable}
    params = {"profile": "tiny", "python": python, "track": CONFIG.model_dump()}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    return new_store(tmp_path)


def start(first: int, last: int, **variables: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "FIRST": str(first), "LAST": str(last), **variables}
    environment["PYTHONPATH"] = str(ROOT / "src")
    return subprocess.Popen(
        [sys.executable, "-c", STAGE], env=environment, stdout=-1, stderr=-1, text=True
    )


def live_runs(uri: str) -> list[Run]:
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(f"{CONFIG.experiment}-live")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def steps(uri: str, run: Run) -> list[int]:
    history = MlflowClient(tracking_uri=uri).get_metric_history(run.info.run_id, "train/loss")
    return sorted(point.step for point in history)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_steps_are_seen_while_training_runs_and_a_killed_training_goes_on_in_its_run(
    store: str,
) -> None:
    Path("stay").touch()
    stage = start(1, 2)
    wait_for(lambda: live_runs(store) and steps(store, live_runs(store)[0]) == [1, 2])
    (run,) = live_runs(store)
    assert (run.info.run_name, run.info.status) == ("tiny/rl@sft", "RUNNING")
    assert run.data.tags["alarm/spike"] == "from step 2: why"
    stage.kill()
    stage.communicate()
    wait_for(lambda: live_runs(store)[0].info.status == "KILLED")

    Path("stay").unlink()
    assert start(3, 4).wait(WAIT_S) == 0
    (run,) = live_runs(store)
    assert (steps(store, run), run.info.status) == ([1, 2, 3, 4], "FINISHED")
    # Training that had finished begins another run
    assert start(1, 1).wait(WAIT_S) == 0
    assert len(live_runs(store)) == 2


def test_a_server_that_is_away_costs_one_warning(store: str) -> None:
    stage = start(1, 2, MLFLOW_TRACKING_URI="http://user:hidden@127.0.0.1:9")
    _, errors = stage.communicate(timeout=WAIT_S)
    assert stage.returncode == 0
    assert errors.count("training goes on, but MLflow does not show its curve") == 1
    assert "hidden" not in errors
    assert live_runs(store) == []


def test_ctrl_c_ends_training_and_the_last_steps_are_sent(store: str) -> None:
    Path("stay").touch()
    stage = start(1, 3)
    assert stage.stdout
    assert stage.stdout.readline() == "recorded\n"
    stage.send_signal(signal.SIGINT)
    stage.communicate(timeout=WAIT_S)
    (run,) = live_runs(store)
    assert (steps(store, run), run.info.status) == ([1, 2, 3], "FAILED")
    lines = Path("work/tiny/curves/rl-sft-0123.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["end"] == "FAILED"
