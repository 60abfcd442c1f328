"""Flow, worker and user interfaces over a real Prefect server, on a small DVC project."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.conftest import PARAMS, MakeProject, module, output
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GPU_LIMIT = f"gpu-{socket.gethostname()}"
GPU_PARAMS = PARAMS.replace("gpu_stages: []", "gpu_stages: [rl]").replace(
    "outside_stages: []", "outside_stages: [download]"
)
STAGES = {
    # Its server does not answer at first
    "download": {
        "cmd": "test -e tried || { touch tried; exit 75; }; echo 12 > number.txt",
        "outs": ["number.txt"],
    },
    "rl": {"cmd": "cp number.txt policy.txt", "deps": ["number.txt"], "outs": ["policy.txt"]},
    "report": {
        "cmd": "mkdir -p reports/tiny; cd reports/tiny; echo '| F1 |' > f1_table.md; touch index.html",
        "deps": ["policy.txt"],
        "outs": ["reports/tiny/f1_table.md", "reports/tiny/index.html"],
    },
}


@dataclass(frozen=True, slots=True)
class Served:
    """A project whose `make ui` is running: its folder, and the addresses of both servers."""

    project: Path
    prefect: str
    mlflow: str

    def read(self, path: str, **filters: Any) -> Any:
        """Return what Prefect's API answers to a query."""
        answer = httpx.post(f"{self.prefect}/api{path}", json=filters, timeout=30)
        while answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            # SQLite is locked for a moment
            answer = httpx.post(f"{self.prefect}/api{path}", json=filters, timeout=30)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def prefect_cli(self, *arguments: str) -> str:
        return output(self.project, module("prefect", *arguments))


@contextmanager
def running(project: Path, *command: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        module(*command),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def wait_for(what: Callable[[], object]) -> Any:
    deadline = time.monotonic() + 300
    while not (value := what()):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return value


@pytest.fixture(scope="module")
def served(make_project: MakeProject) -> Iterator[Served]:
    project = make_project(
        STAGES, GPU_PARAMS.replace("requires: {}", "requires: {gpu_memory_gib: 1}")
    )
    port, mlflow_port = str(free_port()), str(free_port())
    settings = project / "prefect.toml"
    settings.write_text(settings.read_text().replace("4200", port))
    flow = project / "flows" / "reproduce.py"
    flow.write_text(flow.read_text().replace("RETRY_DELAYS_S = [30.0", "RETRY_DELAYS_S = [0.1"))
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("PREFECT_", "MLFLOW_TRACKING")):
                patch.delenv(name)
        patch.setenv("MLFLOW_PORT", mlflow_port)
        patch.setenv("PREFECT_WORKER_QUERY_SECONDS", "1")

        with running(project, "flows.servers") as ui:
            assert ui.stdout
            lines = [ui.stdout.readline().split() for _ in range(3)]
            assert lines[2] == ["Ctrl-C", "stops", "them."], lines
            yield Served(project, lines[0][1], lines[1][1])


def test_a_worker_runs_a_deployment_with_retries_the_gpus_limit_and_artifacts(
    served: Served,
) -> None:
    output(served.project, module("flows.worker", "deploy"))
    # Plain `prefect` of the folder uses the server of `make ui`
    served.prefect_cli("deployment", "schedule", "create", "reproduce/tiny", "--cron", "0 2 * * *")
    served.prefect_cli("global-concurrency-limit", "create", GPU_LIMIT, "--limit", "1")

    # A killed worker of this machine has left a run behind
    [deployment] = served.read("/deployments/filter")
    worker = f"{socket.gethostname()}-{served.project.name}"
    lost = {"name": "lost", "state": {"type": "RUNNING"}, "labels": {"prefect.worker.name": worker}}
    served.read("/flow_runs/", flow_id=deployment["flow_id"], **lost)

    with running(served.project, "flows.worker", "start", "gpu"):
        # Somebody else uses the GPU
        slot = {"names": [GPU_LIMIT], "slots": 1, "mode": "concurrency"}
        served.read("/v2/concurrency_limits/increment", **slot)
        served.prefect_cli("deployment", "run", "reproduce/tiny")
        wait_for(lambda: tasks(served).get("rl") == "RUNNING")
        assert tasks(served)["download"] == "COMPLETED"
        assert not (served.project / "policy.txt").exists()
        served.read("/v2/concurrency_limits/decrement", **slot)

        ends = wait_for(lambda: ended(served) if "tiny" in ended(served) else {})
        assert ends == {"tiny": "COMPLETED", "lost": "CRASHED"}
        assert tasks(served) == dict.fromkeys(STAGES, "COMPLETED")
        download = [task for task in served.read("/task_runs/filter") if task["name"] == "download"]
        assert download[0]["run_count"] == 2

        # Registering the deployment again has kept its schedule
        [deployment] = served.read("/deployments/filter")
        assert [item["schedule"]["cron"] for item in deployment["schedules"]] == ["0 2 * * *"]

        artifacts = {item["key"]: item["data"] for item in served.read("/artifacts/filter")}
        assert artifacts["f1-tiny"] == "| F1 |"
        assert (served.project / "reports/tiny/index.html").as_uri() in artifacts["report-tiny"]


def tasks(served: Served) -> dict[str, str]:
    return {task["name"]: task["state_type"] for task in served.read("/task_runs/filter")}


def ended(served: Served) -> dict[str, str]:
    states = {run["name"]: run["state"]["type"] for run in served.read("/flow_runs/filter")}
    return {
        name: state for name, state in states.items() if state in ("COMPLETED", "FAILED", "CRASHED")
    }


def test_plain_mlflow_writes_to_the_store_that_make_ui_shows(served: Served) -> None:
    output(served.project, [sys.executable, "-c", "import mlflow; mlflow.log_metric('f1', 0.5)"])
    answer = httpx.post(
        f"{served.mlflow}/api/2.0/mlflow/runs/search", json={"experiment_ids": ["0"]}
    )
    [run] = answer.json()["runs"]
    assert run["data"]["metrics"][0]["value"] == 0.5


def test_another_machine_runs_a_git_revision_and_shares_its_artifacts_by_dvcs_remote(
    served: Served, tmp_path: Path
) -> None:
    project = served.project
    origin, remote = tmp_path / "origin", tmp_path / "remote"
    # As where nobody commits it: the run cache alone tells what was made
    (project / "dvc.lock").unlink(missing_ok=True)
    output(project, module("dvc", "remote", "add", "--default", "storage", str(remote)))
    for command in (
        f"git init --quiet --bare {origin}",
        "git add --all",
        "git -c user.name=a -c user.email=a@b commit --quiet --message first",
        f"git remote add origin {origin}",
        "git push --quiet origin main:other",
    ):
        output(project, command.split())
    # What runs is the revision, not this file
    (project / "dvc.yaml").write_text("stages: {}")
    log = output(project, module("flows.reproduce", "tiny", "rl", "--revision", "other"))
    assert "Finished in state Completed" in log, log

    clone = tmp_path / "laptop"
    output(tmp_path, ["git", "clone", "--quiet", "--branch", "other", str(origin), str(clone)])
    (clone / "tried").touch()
    output(clone, module("dvc", "pull", "--run-cache"))
    assert "Stage 'rl' is cached" in output(clone, module("dvc", "repro", "--pull", "rl"))
    assert (clone / "policy.txt").read_text() == "12\n"


def test_a_revision_shares_dvcs_cache_in_a_folder_with_letters_beyond_ascii(
    make_project: MakeProject,
) -> None:
    project = make_project()
    project = project.rename(project.with_name("projéct"))
    output(project, ["git", "add", "--all"])
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    output(project, ["git", *author, "commit", "--quiet", "--message", "first"])
    code = "from flows.reproduce import checkout; print(checkout('main', print))"
    folder = Path(output(project, [sys.executable, "-c", code]).strip())
    assert output(folder, module("dvc", "cache", "dir")).strip() == str(project / ".dvc/cache")


def test_servers_that_other_machines_reach_need_a_login(make_project: MakeProject) -> None:
    message = output(make_project(), module("flows.servers", "--host", "0.0.0.0"))
    assert message.startswith(
        "error: other machines reach 0.0.0.0, so both servers ask for a login"
    )
    assert "PREFECT_API_AUTH_STRING=NAME:PASSWORD" in message


def test_the_systemd_unit_runs_the_worker(make_project: MakeProject, tmp_path: Path) -> None:
    project = make_project()
    command = module("flows.worker", "service", "gpu", "--limit", "2")
    message = output(project, command, XDG_CONFIG_HOME=str(tmp_path))
    unit = tmp_path / "systemd/user/deepsearch-worker-gpu.service"
    assert f"enable --now {unit.name}" in message
    lines = unit.read_text().splitlines()
    assert f"WorkingDirectory={project}" in lines
    assert any(line.endswith('make" worker POOL=gpu LIMIT=2') for line in lines)
