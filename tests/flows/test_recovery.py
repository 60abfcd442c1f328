"""Dead runs are called crashed and start again; dead servers too."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from prefect import flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Pending, Running, State
from prefect.workers.process import ProcessWorker

from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard, Server
from flows import recovery, reproduce, server
from flows.recovery import (
    ATTEMPTS,
    RUN_VARIABLE,
    WORKER_LABEL,
    close_dead_runs,
    kept_running,
    living_runs,
    start_again,
    start_crashed_runs,
)
from flows.reproduce import _store_artifacts
from tests.flows.conftest import end_senders
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
POOL, ME = "recovery", "machine-clone"


@flow
def some_flow(profile: str = "tiny") -> None:
    """Nothing."""


@pytest.fixture(scope="module")
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:  # noqa: ARG001 - the client asks it
    with get_client(sync_client=True) as client:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(
            WorkPoolCreate(name=POOL, type="process", base_job_template=template)
        )
        yield client


@pytest.fixture(scope="module")
def deployment(client: SyncPrefectClient) -> UUID:
    flow_id = client.create_flow(some_flow)
    return client.create_deployment(flow_id, "recovery", work_pool_name=POOL)


@pytest.fixture
def make_run(client: SyncPrefectClient, deployment: UUID) -> "MakeRun":
    return MakeRun(client, deployment)


class MakeRun:
    """Make a run of the deployment in a state, taken by a worker of some name."""

    def __init__(self, client: SyncPrefectClient, deployment: UUID) -> None:
        self.client, self.deployment = client, deployment

    def __call__(self, state: "State[None]", worker: str) -> UUID:
        labels = {WORKER_LABEL: worker} if worker else {}
        run = self.client.create_flow_run_from_deployment(
            self.deployment, parameters={"profile": "smoke"}, labels=labels
        )
        self.client.set_flow_run_state(run.id, state, force=True)
        return run.id


def state_of(client: SyncPrefectClient, run_id: UUID) -> StateType:
    state = client.read_flow_run(run_id).state
    assert state
    return state.type


def test_a_run_of_ours_is_dead_when_no_process_works_on_it(
    client: SyncPrefectClient, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive, of_others = (
        make_run(Running(), ME),
        make_run(Running(), ME),
        make_run(Running(), "another"),
    )
    starting, nobodys = make_run(Pending(), ME), make_run(Pending(), "")
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, RUN_VARIABLE: str(alive)}
    ) as process:
        close_dead_runs(client, POOL, ME)
        states = [state_of(client, run) for run in (dead, alive, of_others, starting, nobodys)]
        assert [state.value for state in states] == [
            "CRASHED",
            "RUNNING",
            "RUNNING",
            "PENDING",
            "PENDING",
        ]
        process.kill()
    assert str(alive) not in living_runs()
    monkeypatch.setattr(recovery, "PENDING_GRACE", timedelta(0))
    close_dead_runs(client, POOL, ME)
    states = [state_of(client, run) for run in (dead, alive, of_others, starting, nobodys)]
    assert [state.value for state in states] == [
        "CRASHED",
        "CRASHED",
        "RUNNING",
        "CRASHED",
        "CRASHED",
    ]


def test_the_stages_that_a_dead_run_was_in_are_crashed_too(
    client: SyncPrefectClient, make_run: MakeRun
) -> None:
    dead = make_run(Running(), ME)
    running, finished = (
        client.create_task_run(some_stage(), dead, key, state=Running()).id for key in "ab"
    )
    client.set_task_run_state(finished, Completed(), force=True)
    recovery.close_dead_run(client, dead)
    types = [
        task.state and task.state.type for task in map(client.read_task_run, (running, finished))
    ]
    assert types == [StateType.CRASHED, StateType.COMPLETED]


def test_a_run_that_ended_meanwhile_stays_as_it_ended(
    client: SyncPrefectClient, make_run: MakeRun
) -> None:
    ended = make_run(Completed(), ME)
    recovery.close_dead_run(client, ended)
    assert state_of(client, ended) == StateType.COMPLETED


def successors(client: SyncPrefectClient, run_id: UUID) -> list[FlowRun]:
    return [run for run in client.read_flow_runs() if run.idempotency_key == f"after {run_id}"]


def test_a_crashed_run_starts_again_once_with_its_parameters(
    client: SyncPrefectClient, make_run: MakeRun
) -> None:
    crashed = client.read_flow_run(make_run(Crashed(), ME))
    for _ in range(2):
        start_again(client, crashed)
    [again] = successors(client, crashed.id)
    assert (again.parameters, again.tags) == ({"profile": "smoke"}, ["attempt:1"])
    assert again.state
    assert again.state.is_scheduled()


def test_a_run_that_crashes_all_the_time_is_given_up_unless_it_finishes_stages(
    client: SyncPrefectClient, make_run: MakeRun
) -> None:
    def crashes(run: FlowRun) -> list[FlowRun]:
        client.set_flow_run_state(run.id, Crashed(), force=True)
        start_again(client, run)
        return successors(client, run.id)

    runs = [client.read_flow_run(make_run(Running(), ME))]
    while following := crashes(runs[-1]):
        runs += following
        assert len(runs) <= ATTEMPTS
    assert len(runs) == ATTEMPTS
    task = client.create_task_run(some_stage(), runs[-1].id, "key", state=Running())
    client.set_task_run_state(task.id, Completed(), force=True)
    [again] = crashes(runs[-1])
    assert again.tags == ["attempt:1"]


def test_a_run_that_the_server_refuses_to_start_again_does_not_keep_the_others_waiting(
    client: SyncPrefectClient, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = "machine-refused"
    flow_id = client.create_flow(some_flow)
    schema = {"type": "object", "properties": {"profile": {"type": "string"}}}
    other = client.create_deployment(flow_id, "refused", work_pool_name=POOL)
    refused = [MakeRun(client, other)(Crashed(), worker) for _ in range(2)]
    # Its parameters have become others since these runs were made
    schema["required"] = ["revision"]
    client.create_deployment(
        flow_id,
        "refused",
        work_pool_name=POOL,
        parameter_openapi_schema=schema,
        enforce_parameter_schema=True,
    )
    crashed = make_run(Crashed(), worker)

    done: set[UUID] = set()
    start_crashed_runs(client, POOL, worker, done)
    assert done == {crashed, *refused}
    assert len(successors(client, crashed)) == 1
    assert not any(successors(client, run) for run in refused)
    assert client.read_flow_run(refused[0]).name in capsys.readouterr().err


def some_stage() -> object:
    from prefect import task  # noqa: PLC0415

    return task(lambda: None, name="stage")


def test_a_server_that_was_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SERVER_POLL_S", 0.1)
    port = free_port()
    with ProcessGuard() as guard:
        starts: list[Server] = []
        started_again = threading.Event()

        def start() -> Server:
            command = [
                sys.executable,
                "-m",
                "http.server",
                str(port),
                "--bind",
                LOOPBACK,
                "--directory",
                str(tmp_path),
            ]
            log = tmp_path / f"{len(starts)}.log"
            with log.open("w") as output:
                process = guard.start(command, output=output)
            starts.append(Server("a server", f"http://{LOOPBACK}:{port}", "/", log, process))
            if len(starts) > 1:
                started_again.set()
            return starts[-1]

        with kept_running(start) as first:
            first.wait_until_healthy(60)
            [process] = psutil.Process(first.process.pid).children()
            process.send_signal(signal.SIGKILL)
            first.process.wait(30)
            assert started_again.wait(60)
            starts[1].wait_until_healthy(60)
    assert [one.process.returncode for one in starts] == [128 + signal.SIGKILL, 143]


def test_a_server_that_stays_away_costs_the_page_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "RESTART_TIMEOUT_S", 0)
    monkeypatch.setattr(reproduce, "get_run_logger", logging.getLogger)
    dead = f"http://{LOOPBACK}:{free_port()}/api"
    with temporary_settings({PREFECT_API_URL: dead}):
        _store_artifacts(tmp_path, "tiny", "page")
        end_senders()
    assert (
        f"this run has no page in Prefect's UI: no Prefect server answered at {dead}" in caplog.text
    )
