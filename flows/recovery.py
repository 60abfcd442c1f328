"""What comes back by itself after a kill: runs whose process was killed, and servers.

A worker looks every ten seconds for runs that it took and that no process of this machine works on
any more. Such a run becomes Crashed, and its deployment gets a new run with the same parameters,
which continues where the dead one was. So does a run that Prefect itself called Crashed, because
its process or its worker ended. It ends when a run crashed ``ATTEMPTS`` times in a row without
finishing a stage.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx
import psutil
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateName,
    TaskRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Crashed

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.processes import Server, is_healthy

ATTEMPTS = 10
POLL_S = 10.0
SERVER_POLL_S = 2.0
# How long a run may be Pending without a process: its worker is about to start one
PENDING_GRACE = timedelta(seconds=20)
LOOK_BACK = timedelta(days=1)
WORKER_LABEL = "prefect.worker.name"
# Prefect sets it for the process of a run, which hands it down to all that it starts
RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
ATTEMPT_TAG = "attempt:"
MESSAGE = "Its process ended without a word."


@contextmanager
def every(interval_s: float, action: Callable[[], object]) -> Iterator[None]:
    """Call an action again and again during a block, in a thread; say on standard error why one failed."""
    end = threading.Event()

    def repeat() -> None:
        while not end.is_set():
            try:
                action()
            except (
                DeepsearchError,
                PrefectException,
                httpx.HTTPError,
                OSError,
                RuntimeError,
            ) as error:
                # At the end the server may go first
                if not end.is_set():
                    sys.stderr.write(f"{type(error).__name__}: {error}\n")

            end.wait(interval_s)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        end.set()


@contextmanager
def kept_running(start: Callable[[], Server]) -> Iterator[Server]:
    """Run a server during a block, and start it again when it ends, unless another one answers at its address.

    Yields:
        The first one, which is still starting.
    """
    server = start()
    processes = [server.process]

    def look() -> None:
        status = processes[-1].poll()
        if status is not None and not is_healthy(f"{server.url}{server.health}"):
            sys.stderr.write(f"{server.name} ended with exit code {status}; starting it again\n")
            processes.append(start().process)

    with every(SERVER_POLL_S, look):
        yield server


@contextmanager
def crashed_runs_again(pool: str, worker: str) -> Iterator[None]:
    """During a block, mark the dead runs of the worker of this name as crashed, and start crashed runs again."""
    done: set[UUID] = set()

    def look() -> None:
        with get_client(sync_client=True) as client:
            close_dead_runs(client, pool, worker)
            start_crashed_runs(client, pool, worker, done)

    with every(POLL_S, look):
        yield


def start_crashed_runs(client: SyncPrefectClient, pool: str, worker: str, done: set[UUID]) -> None:
    """Start the crashed runs of a worker again that are not in ``done``, and add them to it.

    A run that the server refuses to start again, since its deployment now asks for other
    parameters, does not keep the others waiting. It is said once.
    """
    runs = _runs(client, pool, worker, {StateType.CRASHED})
    crashed = [run for run in runs if run.id not in done]
    # A look at all processes of the machine takes longer than everything else here
    living = living_runs() if crashed else set[str]()

    for run in crashed:
        if str(run.id) in living:
            continue
        try:
            close_stages(client, run.id)
            start_again(client, run)
        except (PrefectException, httpx.HTTPStatusError) as error:
            sys.stderr.write(f"{run.name}: {type(error).__name__}: {error}\n")
            # A server's own failure may pass
            if isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error:
                continue
        done.add(run.id)


def living_runs() -> set[str]:
    """Return the ids of the flow runs of workers that processes of this machine work on."""
    ids: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            ids.add(process.environ().get(RUN_VARIABLE, ""))

    return ids


def close_dead_runs(client: SyncPrefectClient, pool: str, worker: str) -> None:
    """Mark the runs of a worker that no process works on as crashed."""
    # Before we look who lives
    runs = _runs(client, pool, worker, {StateType.RUNNING, StateType.PENDING})
    living = living_runs()

    for run in runs:
        assert run.state
        is_starting = (
            run.state.is_pending() and datetime.now(UTC) - run.state.timestamp < PENDING_GRACE
        )
        if str(run.id) not in living and not is_starting:
            close_dead_run(client, run.id)


def close_dead_run(client: SyncPrefectClient, run_id: UUID) -> None:
    """Mark a run whose process was killed as crashed if it still says that it is running or about to start."""
    with suppress(ObjectNotFound):
        state = client.read_flow_run(run_id).state
        if state and (state.is_running() or state.is_pending()):
            client.set_flow_run_state(run_id, Crashed(message=MESSAGE))
            close_stages(client, run_id)


def close_stages(client: SyncPrefectClient, run_id: UUID) -> None:
    """Mark the stages that a dead run was in as crashed; Prefect would show them as running for ever."""
    running = TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING]))
    for stage in client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])),
        task_run_filter=TaskRunFilter(state=running),
    ):
        client.set_task_run_state(stage.id, Crashed(message=MESSAGE), force=True)


def start_again(client: SyncPrefectClient, run: FlowRun) -> None:
    """Give the deployment of a crashed run a new run, once; not after too many without a finished stage."""
    # A run that finished a stage gets on: it may crash again
    attempt = 0 if _finished_stages(client, run) else _attempt(run)
    if run.deployment_id and attempt + 1 < ATTEMPTS:
        tags = [tag for tag in run.tags if not tag.startswith(ATTEMPT_TAG)]
        # The deployment may have been deleted
        with suppress(ObjectNotFound):
            client.create_flow_run_from_deployment(
                run.deployment_id,
                parameters=run.parameters,
                tags=[*tags, f"{ATTEMPT_TAG}{attempt + 1}"],
                # Prefect makes one run of a key, whoever looks again
                idempotency_key=f"after {run.id}",
            )


def _runs(
    client: SyncPrefectClient, pool: str, worker: str, types: set[StateType]
) -> list[FlowRun]:
    """Return runs of a worker in states of some types; of those that ended, the last day's.

    A Pending run of the pool without a worker's name is that of one that was killed before it wrote
    its own.
    """
    filters = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))))
    if StateType.CRASHED in types:
        since = {"after_": datetime.now(UTC) - LOOK_BACK}
        filters.end_time = FlowRunFilterEndTime.model_validate(since)

    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    runs_of_worker: list[FlowRun] = []
    for run in client.read_flow_runs(flow_run_filter=filters, work_pool_filter=of_pool):
        is_own = run.labels.get(WORKER_LABEL) == worker
        is_pending = run.state is not None and run.state.is_pending()
        has_no_worker = is_pending and WORKER_LABEL not in run.labels
        if is_own or has_no_worker:
            runs_of_worker.append(run)

    return runs_of_worker


def _finished_stages(client: SyncPrefectClient, run: FlowRun) -> bool:
    names = TaskRunFilterStateName(any_=["Completed"])
    return bool(
        client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
            task_run_filter=TaskRunFilter(state=TaskRunFilterState(name=names)),
            limit=1,
        )
    )


def _attempt(run: FlowRun) -> int:
    for tag in run.tags:
        if tag.startswith(ATTEMPT_TAG):
            return int(tag.removeprefix(ATTEMPT_TAG))
    return 0
