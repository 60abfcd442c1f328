"""What the flow costs beside the stages themselves: seconds and memory, each with its goal.

    python -m tests.flows.overheads                  # all of them, about eight minutes
    python -m tests.flows.overheads stages gpu       # some of them
    python -m tests.flows.overheads --repeat 3 cached

stages     executed stages of a flow run, against `dvc repro` of the same stages cached     a flow
run in which nothing changed, with a server and without one schedule   how long after its time a
scheduled run begins, and the largest delay of a few cancel     from the cancellation of a worker's
run to the end of the last process of its stage gpu        from the end of a stage that holds the
GPU to the moment at which the next run has it ui         `make ui`: seconds until it is ready and
the memory of all its processes, on the first start and later

Everything runs in a temporary folder against a real Prefect server of its own. On a busy machine
compare figures with each other, not with their goals; the load is printed with them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import psutil
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Cancelling

from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard
from flows.worker import deploy
from tests.flows.many_workers import (
    MIB,
    ROOT,
    make_project,
    own_server,
    start_worker,
    wait_for_workers,
)
from tests.ports import free_port

AnswerT = TypeVar("AnswerT")
Figures = Iterator[tuple[str, float, str]]
"""What was measured, how much it is, and its unit."""
CHAIN = 10
SETTLE_S = 20.0
STAGE_PARENTS = 3
"""Above a stage's shell: DVC, its supervisor, the flow."""
INTERVAL_S, SCHEDULED_RUNS = 45, 3
TIMEOUT_S = 300.0
REPRODUCE = [sys.executable, "-m", "flows.reproduce"]


def chain(count: int = CHAIN) -> dict[str, object]:
    """Stages that each copy what the one before them wrote."""
    first = {"step0": {"cmd": "echo ${number} > 0.txt", "params": ["number"], "outs": ["0.txt"]}}
    names = [(f"{number - 1}.txt", f"{number}.txt") for number in range(1, count)]
    return first | {
        f"step{number}": {"cmd": f"cp {source} {target}", "deps": [source], "outs": [target]}
        for number, (source, target) in enumerate(names, start=1)
    }


def seconds(command: list[str], folder: Path, **environment: str) -> float:
    """Run a command to its end and return how long it took."""
    began = time.monotonic()
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)
    return time.monotonic() - began


def wait_until(ask: Callable[[], AnswerT]) -> AnswerT:
    """Ask twenty times a second until the answer is not empty, and return it."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer within {TIMEOUT_S:g} s")
        time.sleep(0.05)
    return answer


def stages(folder: Path) -> Figures:
    """Compare a flow run of a chain with DVC's own processes for the same stages."""
    project = make_project(folder / "project", chain(), number=0)
    single = [
        [sys.executable, "-m", "dvc", "repro", "--single-item", "--force", name] for name in chain()
    ]
    with own_server(folder):
        seconds(REPRODUCE, project)
        cached, executed = seconds(REPRODUCE, project), seconds([*REPRODUCE, "--force"], project)
    alone = sum(seconds(command, project) for command in single) / CHAIN
    yield "a stage by `dvc repro --single-item`, without Prefect", alone, "s"
    yield (
        "a stage of `dvc repro` of the whole chain",
        seconds(["dvc", "repro", "--force"], project) / CHAIN,
        "s",
    )
    yield (
        "Prefect's overhead per executed stage, goal < 1",
        (executed - cached) / CHAIN - alone,
        "s",
    )


def cached(folder: Path) -> Figures:
    """Time a flow run in which no stage changed."""
    project = make_project(folder / "project", chain(), number=0)
    with own_server(folder):
        seconds(REPRODUCE, project)
        yield "nothing changed, with a server, goal <= 7", seconds(REPRODUCE, project), "s"
    places = {
        "PREFECT_HOME": str(folder / "other"),
        "PREFECT_API_URL": f"http://{LOOPBACK}:{free_port()}/api",
    }
    yield (
        "nothing changed, without a server, no database yet",
        seconds(REPRODUCE, project, **places),
        "s",
    )
    yield "nothing changed, without a server, goal <= 7", seconds(REPRODUCE, project, **places), "s"
    yield (
        "of which: importing the flow",
        seconds([sys.executable, "-c", "import flows.reproduce"], ROOT),
        "s",
    )


@contextmanager
def worker_of(project: Path, folder: Path) -> Iterator[tuple[SyncPrefectClient, UUID]]:
    """Run a server and a worker of a project, and yield a client and the deployment."""
    with own_server(folder), ProcessGuard() as guard, get_client(sync_client=True) as client:
        deploy(project)
        start_worker(guard, project)
        wait_for_workers(client, 1)
        yield client, client.read_deployment_by_name("reproduce/tiny").id


def schedule(folder: Path) -> Figures:
    """Let a schedule make runs and compare when they began with when they should have."""
    project = make_project(folder / "project", chain(1), number=0)
    with worker_of(project, folder) as (client, deployment):
        every = IntervalSchedule(interval=timedelta(seconds=INTERVAL_S)).model_dump(mode="json")
        body = [{"schedule": every, "active": True}]
        client._client.post(f"/deployments/{deployment}/schedules", json=body).raise_for_status()
        began = time.time()

        def delays() -> list[float]:
            runs = [
                run for run in client.read_flow_runs() if run.start_time and run.expected_start_time
            ]
            late = [(run.start_time - run.expected_start_time).total_seconds() for run in runs]
            return late if len(late) >= SCHEDULED_RUNS or time.time() - began > TIMEOUT_S else []

        late = wait_until(delays)
    yield "a scheduled run begins after its time, median", statistics.median(late), "s"
    yield f"the latest of {len(late)}, goal < 15", max(late), "s"


def cancel(folder: Path) -> Figures:
    """Cancel a worker's run as the UI does and wait for the end of all that its stage started."""
    pids = folder / "pids"
    command = f"setsid sleep 600 & echo $! $$ > {pids}; wait"
    project = make_project(folder / "project", {"long": {"cmd": command, "outs": ["never.txt"]}})
    with worker_of(project, folder) as (client, deployment):
        run = client.create_flow_run_from_deployment(deployment).id
        wait_until(lambda: pids.is_file() and pids.read_text())
        stage = psutil.Process(int(pids.read_text().split()[1]))
        processes = [
            psutil.Process(int(pids.read_text().split()[0])),
            stage,
            *stage.parents()[:STAGE_PARENTS],
        ]
        client.set_flow_run_state(run, Cancelling(), force=True)
        began = time.monotonic()
        wait_until(lambda: not any(process.is_running() for process in processes))
        yield (
            "from cancelling to the end of the stage and its flow, goal < 10",
            time.monotonic() - began,
            "s",
        )
        wait_until(lambda: (state := client.read_flow_run(run).state) and state.is_final())
        yield "until the run says so", time.monotonic() - began, "s"


def gpu(folder: Path) -> Figures:
    """Let a flow run wait for another's GPU, and end the other's stage."""
    gate, ended, begun = folder / "gate", folder / "ended", folder / "begun"
    os.mkfifo(gate)
    device = f"overheads-{os.getpid()}"
    lock = Path(tempfile.gettempdir(), f"deepsearch-gpu-{device}.lock")
    flow = {"gpu_stages": ["hold"], "outside_stages": []}
    with own_server(folder), ProcessGuard() as guard:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": device}

        def start(name: str, command: str) -> "subprocess.Popen[str]":
            project = make_project(
                folder / name, {"hold": {"cmd": command, "outs": ["a.txt"]}}, flow=flow
            )
            with (folder / f"{name}.log").open("w") as log:
                return guard.start(REPRODUCE, folder=project, environment=environment, output=log)

        start("first", f"cat {gate}; date +%s.%N | tee {ended} > a.txt")
        wait_until(lambda: lock.is_file() and lock.read_text())
        waiting = start("next", f"date +%s.%N | tee {begun} > a.txt")
        wait_until(lambda: "waiting for" in (folder / "next.log").read_text())
        gate.write_text("go on\n")
        waiting.wait()
    free, started = float(ended.read_text()), float(begun.read_text())
    yield (
        "the next run has the GPU after the stage's command, goal < 2",
        lock.stat().st_mtime - free,
        "s",
    )
    yield "its own stage's command begins", started - free, "s"
    lock.unlink()


def ui(folder: Path) -> Figures:
    """Start `make ui` twice, the second time over the databases of the first."""
    project = make_project(folder / "project", chain(1), track={"experiment": "deepsearch-rl"})
    roots = f"flows.server.ROOT = flows.ui.ROOT = pathlib.Path({str(project)!r})"
    command = [
        sys.executable,
        "-c",
        f"import pathlib, flows.server, flows.ui; {roots}; flows.ui.main()",
    ]
    for start in ("first", "second"):
        places = {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": f"http://{LOOPBACK}:{free_port()}/api",
        }
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **places}
        log = folder / f"{start}.log"
        with ProcessGuard() as guard, log.open("w") as output:
            began = time.monotonic()
            top = psutil.Process(
                guard.start(command, folder=ROOT, environment=environment, output=output).pid
            )
            wait_until(lambda log=log: "Ctrl-C" in log.read_text())
            yield f"`make ui` is ready, {start} start, goal < 10", time.monotonic() - began, "s"
            times = [process.cpu_times() for process in [top, *top.children(recursive=True)]]
            yield (
                "  of CPU, on two or more cores",
                sum(each.user + each.system for each in times),
                "s",
            )
            time.sleep(SETTLE_S)
            memory = [
                process.memory_full_info() for process in [top, *top.children(recursive=True)]
            ]
            yield "  its memory, goal < 1000", sum(each.pss for each in memory) / MIB, "MiB"
            yield (
                "  with what processes share counted in each",
                sum(each.rss for each in memory) / MIB,
                "MiB",
            )


MEASURES: dict[str, Callable[[Path], Figures]] = {
    "stages": stages,
    "cached": cached,
    "schedule": schedule,
    "cancel": cancel,
    "gpu": gpu,
    "ui": ui,
}


def main() -> None:
    """Measure what is asked for and print a line for each figure as it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        choices=[*MEASURES, []],
        help="what to measure; everything where none is named",
    )
    parser.add_argument("--repeat", type=int, default=1, help="how often")
    arguments = parser.parse_args()
    for name in (arguments.names or list(MEASURES)) * arguments.repeat:
        with tempfile.TemporaryDirectory(
            prefix="deepsearch-", ignore_cleanup_errors=True
        ) as folder:
            for label, value, unit in MEASURES[name](Path(folder)):
                load = os.getloadavg()[0]
                sys.stdout.write(f"{name:<10}{label:<68}{value:8.2f} {unit:<4} (load {load:.1f})\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
