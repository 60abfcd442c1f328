"""A real Prefect server, a real worker, and runs that somebody else asked for."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun, StateType, WorkPoolStatus
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectNotFound

from deepsearch_rl.core.errors import UnknownNameError
from flows.worker import _open_pool, deploy, write_service
from tests.flows.conftest import MakeProject
from tests.repository import commit_all
from tools import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("prefect_server")]

STAGES = {
    "write": {
        "cmd": "echo ${number} > number.txt",
        "params": ["number"],
        "outs": [{"number.txt": {"cache": True}}],
    }
}
PARAMS: dict[str, Any] = {
    "profile": "tiny",
    "python": {"core": sys.executable},
    "flow": {"gpu_stages": [], "outside_stages": []},
    "requires": {
        "memory_gib": 0.1,
        "disk_gib": 0.1,
        "gpu_memory_gib": 0,
        "java": False,
        "keys": [],
        "max_hours": None,
    },
    "number": 7,
}


@pytest.fixture
def project(make_project: MakeProject) -> Path:
    folder = make_project(STAGES, yaml.safe_dump(PARAMS))
    shutil.copy(ROOT / "uv.lock", folder)  # doctor compares the environment with it
    other = folder / "profiles" / "other"  # never made
    other.mkdir(parents=True)
    (other / "params.yaml").write_text(yaml.safe_dump({**PARAMS, "profile": "other"}))
    (other / "dvc.yaml").write_text(
        yaml.safe_dump({"stages": {"write": {"cmd": "echo > o.txt", "outs": ["o.txt"]}}})
    )
    commit_all(folder, "first")
    return folder


@contextmanager
def running_worker(
    project: Path, root: Path, pool: str = "cpu", **variables: str
) -> Iterator[None]:
    """`make worker` for a project elsewhere, with further environment variables."""
    code = f"from pathlib import Path; from flows.worker import start; start(Path({str(project)!r}), {pool!r})"
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        **variables,
    }
    with (project / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-c", code], cwd=root, env=environment, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            worker.terminate()
            worker.wait(30)


def finished_run(
    client: SyncPrefectClient, is_wanted: Callable[[FlowRun], bool], project: Path
) -> FlowRun:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        for run in client.read_flow_runs():
            if is_wanted(run) and run.state and run.state.is_final():
                return run
        time.sleep(1)
    raise AssertionError((project / "worker.log").read_text()[-3000:])


def test_a_schedule_creates_runs_and_a_worker_completes_them(project: Path, root: Path) -> None:
    assert deploy(project) == {"tiny": "cpu", "other": "cpu"}
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("reproduce/tiny")
        assert [(schedule.slug, schedule.active) for schedule in deployment.schedules] == [
            ("nightly", False)
        ]
        every_5_s = IntervalSchedule(interval=timedelta(seconds=5))
        client._client.post(
            f"/deployments/{deployment.id}/schedules",
            json=[{"schedule": every_5_s.model_dump(mode="json"), "active": True}],
        ).raise_for_status()
        with running_worker(project, root):
            run = finished_run(client, lambda run: run.auto_scheduled, project)
            assert pool_status(client, "cpu") == WorkPoolStatus.READY, "its first worker opened it"
            client._client.delete(
                f"/deployments/{deployment.id}/schedules/{_added(client, deployment.id)}"
            )
    assert (run.name, run.state and run.state.type) == ("tiny", StateType.COMPLETED)
    assert run.expected_start_time is not None
    assert run.start_time is not None
    assert (project / "number.txt").read_text() == "7\n"


def _added(client: SyncPrefectClient, deployment: UUID) -> str:
    schedules = client.read_deployment(deployment).schedules
    return next(str(schedule.id) for schedule in schedules if schedule.active)


@pytest.mark.nightly
def test_a_run_with_other_parameters_works_in_a_clone_and_becomes_an_experiment(
    project: Path, root: Path
) -> None:
    deploy(project)
    with get_client(sync_client=True) as client, running_worker(project, root):
        deployment = client.read_deployment_by_name("reproduce/tiny")
        parameters = {"params": {"number": 8}, "experiment": "eight"}
        asked = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
        run = finished_run(client, lambda run: run.id == asked.id, project)
    assert run.state
    assert run.state.is_completed(), (project / "worker.log").read_text()[-3000:]
    assert run.name == "tiny · number=8 · eight"
    assert not (project / "number.txt").exists(), "the project's own files are left alone"
    [checkout] = (project / "work" / "checkouts").iterdir()
    assert (checkout / "number.txt").read_text() == "8\n"
    listed = subprocess.run(
        [sys.executable, "-m", "dvc", "exp", "list"], cwd=project, capture_output=True, text=True
    )
    assert "eight" in listed.stdout


def pool_status(client: SyncPrefectClient, pool: str) -> WorkPoolStatus | None:
    return client.read_work_pool(pool).status


def test_a_pool_without_a_worker_is_paused_and_stays_as_somebody_sets_it(project: Path) -> None:
    gpu = {**PARAMS, "profile": "gpu", "requires": {**PARAMS["requires"], "gpu_memory_gib": 80}}
    (project / "profiles" / "gpu").mkdir()
    (project / "profiles" / "gpu" / "params.yaml").write_text(yaml.safe_dump(gpu))
    with get_client(sync_client=True) as client:
        # Of an earlier test, whose worker opened it
        with suppress(ObjectNotFound):
            client.delete_work_pool("gpu")
        assert deploy(project) == {"tiny": "cpu", "other": "cpu", "gpu": "gpu"}
        assert pool_status(client, "gpu") == WorkPoolStatus.PAUSED, (
            "any other status is red without a worker"
        )
        assert "`make worker POOL=gpu`" in (client.read_work_pool("gpu").description or "")
        client.update_work_pool("cpu", WorkPoolUpdate(is_paused=True))
        deploy(project)
        _open_pool("cpu")
        assert pool_status(client, "cpu") == WorkPoolStatus.PAUSED, "somebody paused it"
        client.update_work_pool("cpu", WorkPoolUpdate(is_paused=False))


def test_deploying_again_keeps_the_schedules_that_somebody_resumed(project: Path) -> None:
    deploy(project)
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("reproduce/tiny")
        [schedule] = deployment.schedules
        client.update_deployment_schedule(deployment.id, schedule.id, active=True)
        deploy(project)
        assert [each.active for each in client.read_deployment(deployment.id).schedules] == [True]
        client.update_deployment_schedule(deployment.id, schedule.id, active=False)


def test_the_service_unit_starts_make_worker_in_this_clone(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    unit = write_service(root, "gpu", 2)
    assert unit == tmp_path / "systemd" / "user" / "deepsearch-worker-gpu.service"
    assert f"WorkingDirectory={root}\n" in unit.read_text()
    assert 'make" worker POOL=gpu LIMIT=2\n' in unit.read_text()
    with pytest.raises(UnknownNameError, match=r"unknown pool 'gpuu'\. Did you mean 'gpu'"):
        write_service(root, "gpuu", 2)


def test_a_percent_sign_in_a_path_is_none_of_systemds_own_values(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    clone = tmp_path / "100%h of it"
    clone.symlink_to(root, target_is_directory=True)
    unit = write_service(clone, "gpu", 1)
    assert f"WorkingDirectory={tmp_path}/100%%h of it\n" in unit.read_text()
