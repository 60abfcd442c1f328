"""Many workers at one server: does every run complete, does none run twice, does the server stay small?

    python -m tests.flows.many_workers --workers 10 --runs 200
    python -m tests.flows.many_workers --workers 2 --runs 6 --idle-s 0     # a first look, two minutes

It starts a Prefect server of its own and real workers, each as `make worker` starts it in a clone
of its own of a small DVC project whose remote is a folder. Then it queues runs of the deployment
``reproduce/tiny``, each with another parameter, and waits for all of them. Nothing touches this
project's servers, and all of it ends with the script.

The server's database is SQLite, or what PREFECT_API_DATABASE_CONNECTION_URL names, an empty one for
each simulation:

    PREFECT_API_DATABASE_CONNECTION_URL=postgresql+asyncpg://user@127.0.0.1/prefect python -m tests.flows.many_workers

Every stage appends a line with the id of its flow run to one file, so that the file tells which
runs ran, how often and where, whatever the server believes. Status 1: a run did not complete, or
ran twice or never. A worker needs 0.3 GB of memory, and so does a run.
"""

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from unittest import mock
from uuid import UUID

import psutil
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import TERMINAL_STATES, StateType, WorkerStatus
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard
from deepsearch_rl.core.progress import ProgressBar
from flows import server
from flows.server import prefect_api
from flows.worker import deploy
from tests.ports import free_port
from tests.repository import commit_all

ROOT = Path(__file__).resolve().parent.parent.parent
POLL_S = 2.0
START_TIMEOUT_S, STALL_S, BACKGROUND_S = 600.0, 600.0, 60.0
CURVE_POINTS = 10
PAGE = 100
MIB = 2**20
PARAMS = {
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
}


@dataclass(frozen=True, slots=True)
class Run:
    """A flow run: when it was queued, taken by a worker, began and ended (epoch seconds), and its last state."""

    id: UUID
    state: str
    queued: float
    taken: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The server's processes at a time: resident memory and CPU seconds so far, and the runs that have ended."""

    time: float
    done: int
    memory_mib: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened.

    ``lines`` are those that the stages wrote: flow run and clone. ``stages`` is how many the server
    has as completed. The first two ``samples`` are from the beginning and the end of the time in
    which the workers had nothing to do.
    """

    runs: tuple[Run, ...]
    lines: tuple[tuple[UUID, str], ...]
    stages: int
    samples: tuple[Sample, ...]
    server_log: str

    def problems(self) -> list[str]:
        """Return a sentence for every run that did not complete, ran more than once or never."""
        times = Counter(run for run, _ in self.lines)
        found = [
            f"run {run.id} ended as {run.state}" for run in self.runs if run.state != "Completed"
        ]
        found += [
            f"run {run.id} ran {times[run.id]} times" for run in self.runs if times[run.id] != 1
        ]
        found += [
            f"nobody queued run {run}" for run in times.keys() - {run.id for run in self.runs}
        ]
        if self.stages != len(self.runs):
            found.append(f"the server has {self.stages} stages as completed")
        return found

    def by_clone(self) -> dict[str, list[Run]]:
        """Return the runs of every clone in the order in which they began."""
        clone_of = dict(self.lines)
        clones: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.began):
            clones.setdefault(clone_of.get(run.id, "none"), []).append(run)
        return clones


def make_project(
    folder: Path, stages: Mapping[str, object], remote: Path | None = None, **params: object
) -> Path:
    """Make a git and DVC project of the given stages, with a folder as DVC's remote if there is one."""
    folder.mkdir(parents=True)
    commands = [["git", "init", "--quiet"], ["dvc", "init", "--quiet"]]
    commands += (
        [["dvc", "remote", "add", "--quiet", "--default", "storage", str(remote)]] if remote else []
    )
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS | params))
    (folder / ".gitignore").write_text("/work/\n*.txt\n")
    # Doctor compares the environment with the first; workers read the second
    for name in ("uv.lock", "prefect.toml"):
        shutil.copy(ROOT / name, folder)
    for command in commands:
        subprocess.run(command, cwd=folder, check=True)
    commit_all(folder, "first")
    return folder


@contextmanager
def own_server(folder: Path) -> Iterator[list[psutil.Process]]:
    """Run a Prefect server with a database of its own and yield its processes; its log is below the folder."""
    places = {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"http://{LOOPBACK}:{free_port()}/api",
    }
    settings = {PREFECT_HOME: folder / "prefect", PREFECT_API_URL: places["PREFECT_API_URL"]}
    before = psutil.Process().children(recursive=True)
    root = mock.patch.object(server, "ROOT", folder)
    with mock.patch.dict(os.environ, places), root, temporary_settings(settings), prefect_api():
        yield [
            process
            for process in psutil.Process().children(recursive=True)
            if process not in before
        ]


def start_worker(guard: ProcessGuard, clone: Path) -> "subprocess.Popen[str]":
    """Start `make worker` for a clone elsewhere; its log lies beside the clone."""
    code = f"from pathlib import Path; from flows.worker import start; start(Path({str(clone)!r}), 'cpu')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with clone.with_suffix(".log").open("w") as log:
        return guard.start(
            [sys.executable, "-c", code], folder=ROOT, environment=environment, output=log
        )


def wait_for_workers(client: SyncPrefectClient, count: int) -> None:
    """Return when so many workers ask for runs."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with ProgressBar("start", count, "workers") as bar:
        online = 0
        while online < count:
            workers = client.read_workers_for_work_pool("cpu")
            before, online = online, sum(worker.status == WorkerStatus.ONLINE for worker in workers)
            bar.advance(online - before)
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{online} of {count} workers asked for runs within {START_TIMEOUT_S:g} s"
                )
            time.sleep(POLL_S)


def exists(client: SyncPrefectClient, run: UUID) -> bool:
    """Return whether the run was not dropped."""
    try:
        client.read_flow_run(run)
    except ObjectNotFound:
        return False
    return True


def take_sample(processes: Sequence[psutil.Process], done: int) -> Sample:
    """Look at the server's processes."""
    times = [process.cpu_times() for process in processes]
    memory = sum(process.memory_info().rss for process in processes) / MIB
    return Sample(time.time(), done, memory, sum(each.user + each.system for each in times))


def ended_runs(client: SyncPrefectClient) -> int:
    """Ask the server how many runs are in a final state."""
    final = FlowRunFilterStateType(any_=list(TERMINAL_STATES))
    return client.count_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=final))
    )


def completed_stages(client: SyncPrefectClient, count: int) -> int:
    """Return how many stages the server has as completed; it writes them late, so that it gets a minute."""
    deadline, completed = time.monotonic() + BACKGROUND_S, 0
    while completed < count and time.monotonic() < deadline:
        time.sleep(POLL_S)
        wanted = {"task_runs": {"state": {"type": {"any_": [StateType.COMPLETED.value]}}}}
        completed = int(
            client._client.post("/task_runs/count", json=wanted).raise_for_status().json()
        )
    return completed


def read_run(client: SyncPrefectClient, run: UUID) -> Run:
    """Read a flow run's history; a time that it has not reached is that of the state before it."""
    states = client.read_flow_run_states(run)
    first: dict[StateType, datetime] = {}
    for state in states:
        first.setdefault(state.type, state.timestamp)
    queued = states[0].timestamp
    taken = first.get(StateType.PENDING, queued)
    began = first.get(StateType.RUNNING, taken)
    ended = max(began, states[-1].timestamp)
    return Run(
        run, str(states[-1].name), *(moment.timestamp() for moment in (queued, taken, began, ended))
    )


def drop_waiting_runs(client: SyncPrefectClient) -> int:
    """Delete the runs that no worker has taken, and return how many they were."""
    waiting = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
    )
    dropped = 0
    while page := client.read_flow_runs(flow_run_filter=waiting, limit=PAGE):
        for run in page:
            client.delete_flow_run(run.id)
        dropped += len(page)
    return dropped


def work_off(
    client: SyncPrefectClient, runs: int, processes: Sequence[psutil.Process], minutes: float
) -> list[Sample]:
    """Wait until all runs have ended, or none for ten minutes, and return the server's samples."""
    samples = [take_sample(processes, 0)]
    moved, deadline = time.monotonic(), time.monotonic() + minutes * 60
    with ProgressBar("run", runs, "runs") as bar:
        while samples[-1].done < runs and time.monotonic() < moved + STALL_S:
            time.sleep(POLL_S)
            if time.monotonic() > deadline:
                runs, deadline = runs - drop_waiting_runs(client), math.inf
            done = ended_runs(client)
            if done > samples[-1].done:
                moved = time.monotonic()
            bar.advance(done - samples[-1].done, f"server {samples[-1].memory_mib:.0f} MiB")
            samples.append(take_sample(processes, done))
    return samples


def simulate(
    folder: Path, workers: int, runs: int, idle_s: float, minutes: float = math.inf
) -> Outcome:
    """Start a server and workers, let them idle for a while, queue the runs at once, and wait for all of them."""
    ran = folder / "ran.txt"
    # >> opens the file with O_APPEND, so that lines of several writers do not mix.
    command = (
        f'echo "$PREFECT__FLOW_RUN_ID $DEEPSEARCH_PROJECT" >> {ran}; echo ${{number}} > number.txt'
    )
    stages = {"write": {"cmd": command, "params": ["number"], "outs": ["number.txt"]}}
    origin = make_project(folder / "origin", stages, folder / "remote", number=0)
    with (
        own_server(folder) as processes,
        ProcessGuard() as guard,
        get_client(sync_client=True) as client,
    ):
        deploy(origin)
        for number in range(workers):
            clone = folder / f"clone-{number}"
            subprocess.run(["git", "clone", "--quiet", str(origin), str(clone)], check=True)
            start_worker(guard, clone)
        wait_for_workers(client, workers)
        samples = [take_sample(processes, 0)]
        time.sleep(idle_s)
        samples.append(take_sample(processes, 0))
        deployment = client.read_deployment_by_name("reproduce/tiny").id
        asked = [
            client.create_flow_run_from_deployment(
                deployment, parameters={"params": {"number": number}}
            ).id
            for number in range(1, runs + 1)
        ]
        samples += work_off(client, runs, processes, minutes)
        history = tuple(read_run(client, run) for run in asked if exists(client, run))
        stages_done = completed_stages(client, len(history))
    words = [line.split() for line in ran.read_text().splitlines()]
    log = (folder / "work" / "servers" / "prefect.log").read_text()
    lines = tuple((UUID(run), Path(clone).name) for run, clone in words)
    return Outcome(history, lines, stages_done, tuple(samples), log)


def server_errors(log: str) -> str:
    """Return how many errors the server's log has, and of which kind we know some."""
    texts = ("database is locked", "QueuePool limit")
    return ", ".join(
        [f"{log.count('| ERROR')} errors", *(f"{log.count(text)} times '{text}'" for text in texts)]
    )


def _quantiles(label: str, values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{label:<44}{'too few':>24}"
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return f"{label:<44}{tenths[4]:8.1f}{tenths[8]:8.1f}{max(values):8.1f}"


def table(outcome: Outcome) -> str:
    """Return the figures as text: times of the runs, and the server's memory and CPU time as runs end."""
    runs, (idle, ready, *busy) = outcome.runs, outcome.samples
    began = busy[0].time
    pauses = [
        after.taken - before.ended
        for clone in outcome.by_clone().values()
        for before, after in pairwise(clone)
    ]
    lines = [
        f"{'seconds':<44}{'p50':>8}{'p90':>8}{'max':>8}",
        _quantiles(
            "from queued to begun, all queued at once", [run.began - run.queued for run in runs]
        ),
        _quantiles("from taken by a worker to begun", [run.began - run.taken for run in runs]),
        _quantiles("a run", [run.ended - run.began for run in runs]),
        _quantiles("a worker between two runs", pauses),
        "",
        f"server, idle: {(ready.cpu_s - idle.cpu_s) / (ready.time - idle.time):.1%} of a core",
        f"server, at work: {(busy[-1].cpu_s - busy[0].cpu_s) / (busy[-1].time - busy[0].time):.1%} of a core",
        f"{'server after s':>14}{'runs':>8}{'MiB':>8}{'CPU s':>8}",
    ]
    for sample in busy[:: max(1, len(busy) // CURVE_POINTS)]:
        row = f"{sample.time - began:14.0f}{sample.done:8d}{sample.memory_mib:8.0f}{sample.cpu_s:8.0f}"
        lines.append(row)
    half = [sample for sample in busy if sample.done >= busy[-1].done / 2]
    slope, _ = statistics.linear_regression(
        [sample.done for sample in half], [each.memory_mib for each in half]
    )
    lines.append(f"memory in the second half: {slope * 100:+.1f} MiB per 100 runs")
    lines.append(f"runs per worker: {sorted(map(len, outcome.by_clone().values()))}")
    return "\n".join([*lines, f"server's log: {server_errors(outcome.server_log)}"])


def main() -> None:
    """Simulate, print the figures, and end with status 1 if a run did not complete exactly once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", type=int, default=10, help="how many workers, each in its own clone"
    )
    parser.add_argument("--runs", type=int, default=200, help="how many runs are queued at once")
    parser.add_argument(
        "--idle-s", type=float, default=60.0, help="how long the workers wait before the runs come"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="drop the runs that nobody has taken by then",
    )
    parser.add_argument("--folder", type=Path, help="an empty folder that is kept, with all logs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deepsearch-", ignore_cleanup_errors=True) as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        try:
            outcome = simulate(
                folder, arguments.workers, arguments.runs, arguments.idle_s, arguments.minutes
            )
        except PrefectHTTPStatusError as error:
            log = (folder / "work" / "servers" / "prefect.log").read_text()
            sys.exit(
                f"the server refused a request five times: {error}\nits log: {server_errors(log)}"
            )
        sys.stdout.write(f"{table(outcome)}\n")
    if problems := outcome.problems():
        sys.exit("\n".join(problems))
    sys.stdout.write(f"all {len(outcome.runs)} runs completed, each once\n")


if __name__ == "__main__":
    main()
