"""`make repro` on a small DVC project."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.flows.conftest import PARAMS, MakeProject, module, output

pytestmark = pytest.mark.slow

# Each fails unless it runs beside the other one
SIDE_BY_SIDE = {
    name: {
        "cmd": f"touch {name}.started; for i in $(seq 200); do test -e {other}.started && break; "
        f"sleep .1; done; test -e {other}.started && touch {name}.txt",
        "outs": [f"{name}.txt"],
    }
    for name, other in (("left", "right"), ("right", "left"))
}
# Each fails if it runs beside the other one
IN_TURN = {
    name: {"cmd": f"mkdir gpu && sleep 1 && rmdir gpu && touch {name}.txt", "outs": [f"{name}.txt"]}
    for name in ("sft", "rl")
}
SLEEPS = {"sleep": {"cmd": "echo pid $$; exec sleep 600", "outs": ["sleep.txt"]}}


def test_stages_run_in_order_and_unchanged_ones_not_again(make_project: MakeProject) -> None:
    project = make_project()
    lines = output(project, module("flows.driver")).splitlines()
    assert "write: Running stage 'write':" in lines
    assert "round: 1/1 digits" in lines
    assert not [line for line in lines if "git add" in line]
    assert lines[-1] == "dvc: all stages are up to date; 3 were not"
    assert (project / "reports/tiny/f1_table.md").read_text() == "| digit |\n1\n"
    assert "up to date" in output(project, module("dvc", "status"))

    assert output(project, module("flows.driver")) == "dvc: all stages are up to date; 0 were not\n"
    forced = output(project, module("flows.driver", "tiny", "write", "--force"))
    assert forced.endswith("1 were not\n")
    assert (project / "runs.log").read_text() == "ran\n" * 2


def test_a_changed_output_runs_what_follows(make_project: MakeProject) -> None:
    project = make_project()
    output(project, module("flows.driver"))
    graph = project / "dvc.yaml"
    graph.write_text(graph.read_text().replace("echo 12", "echo 34"))
    output(project, module("flows.driver"))
    assert (project / "reports/tiny/f1_table.md").read_text() == "| digit |\n3\n"


def test_the_stage_with_the_longest_chain_starts_first(make_project: MakeProject) -> None:
    chain = {"train": ["model"], "evaluate": ["table"]}
    stages = {"other": {"cmd": "touch other", "outs": ["other"]}}
    stages |= {name: {"cmd": f"touch {outs[0]}", "outs": outs} for name, outs in chain.items()}
    stages["evaluate"]["deps"] = ["model"]
    lines = output(make_project(stages), module("flows.driver", "--jobs", "1")).splitlines()
    order = [line.split(":")[0] for line in lines if "Running stage" in line]
    assert order.index("train") < order.index("other")


def test_two_stages_run_side_by_side(make_project: MakeProject) -> None:
    assert "2 were not" in output(make_project(SIDE_BY_SIDE), module("flows.driver"))


def test_stages_of_the_gpu_run_one_at_a_time(make_project: MakeProject) -> None:
    params = PARAMS.replace("gpu_stages: []", "gpu_stages: [sft, rl]")
    assert "2 were not" in output(make_project(IN_TURN, params), module("flows.driver"))


def test_after_a_failure_nothing_new_starts(make_project: MakeProject) -> None:
    stages = {
        "fail": {"cmd": "echo why; touch failed; exit 3", "outs": ["fail.txt"]},
        "beside": {
            "cmd": "until test -e failed; do sleep 0.1; done; sleep 6; touch beside.txt",
            "outs": ["beside.txt"],
        },
        "later": {"cmd": "touch later.txt", "deps": ["beside.txt"], "outs": ["later.txt"]},
    }
    project = make_project(stages)
    lines = output(project, module("flows.driver")).splitlines()
    error = lines.index(
        "error: `dvc repro --single-item fail` ended with status 255; its last lines:"
    )
    assert "why" in lines[error:]
    assert "exited with 3" in lines[-1]
    assert (project / "beside.txt").exists()
    assert not (project / "later.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "error: unknown profile 'nosuch'"),
        (["tiny", "nosuch"], "error: unknown stage 'nosuch'"),
    ],
)
def test_an_unknown_name_is_named(
    make_project: MakeProject, arguments: list[str], message: str
) -> None:
    assert output(make_project(), module("flows.driver", *arguments)).startswith(message)


def test_sigterm_ends_the_stages_and_the_next_run_waits_for_the_first(
    make_project: MakeProject,
) -> None:
    project = make_project(SLEEPS)
    first = start(project)
    assert first.stdout
    pid = next(int(line.split()[-1]) for line in first.stdout if line.startswith("sleep: pid"))

    second = start(project)
    assert second.stdout
    message = second.stdout.readline()
    assert message.startswith(
        f"dvc: waiting for `make repro PROFILE=tiny`, PID {first.pid}, running since "
    )
    second.send_signal(signal.SIGINT)
    assert second.wait(30) == 1
    assert second.stdout.read() == "cancelled\n"

    first.terminate()
    assert first.wait(30) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def start(project: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        module("flows.driver"),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell in the background has SIGINT ignored, and would hand that down
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
