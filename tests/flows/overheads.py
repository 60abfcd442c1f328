"""What the flow costs beside the stages themselves: seconds and memory, each with its goal.

    python -m tests.flows.overheads                  # all of them, about eight minutes
    python -m tests.flows.overheads stages gpu       # some of them
    python -m tests.flows.overheads --repeat 3 cached

stages     executed stages of a flow run, against `dvc repro` of the same stages
cached     a flow run in which nothing changed, with a server and without one
schedule   how long after its time a scheduled run begins, and the largest delay of a few
cancel     from the cancellation of a worker's run to the end of the last process of its stage
gpu        from the end of a stage that holds the GPU to the moment at which the next run has it
ui         `make ui`: seconds until it is ready and the memory of all its processes, on the first start and later

Everything runs in a temporary folder against a real Prefect server of its own. On a busy machine compare figures with
each other, not with their goals; the load is printed with them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Cancelling

from deepsearch_rl.processes import LOOPBACK, ProcessGuard, free_port
from flows.worker import deploy
from tests.flows.many_workers import MIB, ROOT, make_project, own_server, start_worker, wait_for_workers

CHAIN = 10
INTERVAL_S, SCHEDULED_RUNS = 20, 4
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


def wait_until[T](ask: Callable[[], T]) -> T:
    """Ask ten times a second until the answer is not empty."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT_S:g} s")
        time.sleep(0.1)
    return answer
