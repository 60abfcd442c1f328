"""What `make repro` and the flow have in common: order, failures, and the end of all processes."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from flows.repro import repro
from flows.reproduce import reproduce
from flows.stage_run import BACKGROUND_NICENESS, StageFailedError
from tests.flows.conftest import TAKING_TURNS, MakeProject, python, take_sigint

pytestmark = pytest.mark.slow

Run = Callable[[], Mapping[str, str]]
GPU_STAGES = "profile: tiny\nflow: {gpu_stages: [sft, evaluate], outside_stages: []}\n"

# Each waits for the other one to have started, so they end only if they run side by side; both write
# down their niceness.
MEETING = {
    name: {
        "cmd": f"touch {name}.here; until [ -e {other}.here ]; do sleep 0.1; done; nice > {name}.txt",
        "outs": [f"{name}.txt"],
    }
    for name, other in (("left", "right"), ("right", "left"))
}

LONG = {"long": {"cmd": "setsid sleep 600 & echo $! $$ > started; wait", "outs": ["never.txt"]}}

MODULES = {"make repro": "flows.repro", "flow": "flows.reproduce"}


@pytest.fixture(params=MODULES)
def way(request: pytest.FixtureRequest) -> str:
    """A way to run a graph; the flow's has its server."""
    if request.param == "flow":
        request.getfixturevalue("prefect_server")
    return request.param


@pytest.fixture
def run(way: str) -> Run:
    """Run the graph of the working directory."""
    return reproduce if way == "flow" else lambda: repro("tiny")


def test_independent_stages_run_side_by_side_and_gpu_stages_in_turn(
    make_project: MakeProject, run: Run
) -> None:
    make_project({**MEETING, **TAKING_TURNS}, GPU_STAGES)
    assert set(run().values()) == {"Completed"}


def test_a_stage_with_a_shorter_way_to_the_end_leaves_the_processor_to_the_other_one(
    make_project: MakeProject, run: Run
) -> None:
    after = {"cmd": "cp right.txt after.txt", "deps": ["right.txt"], "outs": ["after.txt"]}
    project = make_project({**MEETING, "after": after})
    run()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert int((project / "right.txt").read_text()) == own
    assert int((project / "left.txt").read_text()) == own + BACKGROUND_NICENESS


def test_after_a_failure_nothing_starts_and_the_error_has_the_stages_status_and_last_lines(
    make_project: MakeProject, run: Run
) -> None:
    stages = {
        "broken": {"cmd": "echo the reason >&2; exit 9", "outs": ["broken.txt"]},
        "after": {"cmd": "cp broken.txt after.txt", "deps": ["broken.txt"], "outs": ["after.txt"]},
    }
    project = make_project(stages)
    with pytest.raises(StageFailedError) as caught:
        run()

    message = str(caught.value)
    assert "repro --single-item broken` ended with status 255" in message
    assert "the reason" in message
    assert "exited with 9" in message
    assert not (project / "after.txt").exists()


# By day as it is most often: Ctrl-C at a terminal, and a cancelled flow run
@pytest.mark.parametrize(
    ("way", "how"),
    [
        ("make repro", signal.SIGINT),
        ("flow", signal.SIGTERM),
        pytest.param("make repro", signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("make repro", signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param("flow", signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param("flow", signal.SIGKILL, marks=pytest.mark.nightly),
    ],
    indirect=["way"],
)
def test_cancelling_leaves_no_process(
    make_project: MakeProject, root: Path, way: str, how: signal.Signals
) -> None:
    project = make_project(LONG)
    os.mkfifo(project / "started")
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.Popen(
        python(MODULES[way]), cwd=project, env=environment, preexec_fn=take_sigint
    )
    with (project / "started").open() as pids:  # opens when the stage writes to it
        processes = [psutil.Process(int(pid)) for pid in pids.read().split()]

    run.send_signal(how)
    run.wait(60)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    assert run.returncode != 0
