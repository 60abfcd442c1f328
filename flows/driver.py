"""Run a profile's graph with DVC, two stages side by side where the graph allows it.

    python -m flows.driver [PROFILE] [STAGE...] [--force] [--jobs 2]      (`make repro`)

Each stage is a ``dvc repro --single-item`` in a child process: DVC decides whether the stage runs,
records it in dvc.lock and caches it, so the result is that of `dvc repro`. The Prefect flow
(:mod:`flows.reproduce`) uses the same functions.
"""

import argparse
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Protocol

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.graph import build_graph
from dvc.stage import PipelineStage
from pydantic import Field

from deepsearch_rl.core.errors import ConfigError, DeepsearchError, UnknownNameError
from deepsearch_rl.core.processes import ProcessGuard, stream_lines
from deepsearch_rl.core.profile import dvc_file, find_profile, require_profile
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.redaction import environment_secrets, redact

JOBS = 2
# A stage off the longest chain takes a quarter of a core that a stage on it wants
BACKGROUND_NICENESS = 5

# DVC's advice after every stage, which a run of the whole graph would print twenty times
ADVICE = (
    "To track the changes with git",
    "git add",
    "To enable auto staging",
    "dvc config core.autostage",
    "Use `dvc push`",
)

Say = Callable[[str], object]


class FlowConfig(Record):
    """Section ``flow`` of params.yaml."""

    gpu_stages: frozenset[str] = Field(description="stage families that take turns at the GPU")
    outside_stages: frozenset[str] = Field(
        description="families that ask hubs or APIs; a flow retries them"
    )


class StageFailedError(DeepsearchError):
    """DVC could not reproduce a stage; the message ends with its last lines."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the graph.

    ``address`` is what `dvc repro` takes (``rl@sft``, ``profiles/smoke/dvc.yaml:rl@sft``);
    ``is_changed`` is whether DVC would run it if nothing before it ran; ``chain`` counts the stages
    on the longest chain from this one to the end of the graph.
    """

    name: str
    address: str
    upstream: frozenset[str]
    is_changed: bool
    chain: int

    @property
    def family(self) -> str:
        """The name without its matrix value, which is the stage's section in params.yaml."""
        return self.name.partition("@")[0]


class Running(Protocol):
    """A stage that was started: a future of the standard library or of Prefect."""

    def add_done_callback(self, fn: Callable[[Any], None], /) -> None:
        """Call ``fn`` when the stage has ended."""

    def result(self) -> object:
        """Raise the error of a stage that failed."""


def read_graph(root: Path, profile: str, targets: Sequence[str] = ()) -> dict[str, Stage]:
    """Read what some targets of a profile need, or its whole graph where there are none, from DVC.

    Raises:
        UnknownNameError: there is no such profile, or a target is neither a stage nor a family.
        ConfigError: DVC refuses dvc.yaml or params.yaml, or is busy.
    """
    require_profile(root, profile)
    path = dvc_file(profile)
    try:
        with Repo(str(root)) as repo:
            collected = repo.stage.collect(str(root / path))
            stages = [stage for stage in collected if isinstance(stage, PipelineStage)]
            # DVC's edges point upstream; its own index would read the graphs of all profiles
            edges = build_graph(stages)
            changed = repo.status([str(root / path)])
    except DvcException as error:
        raise ConfigError(f"DVC cannot read {path}: {error}") from error

    names = {stage: str(stage.name) for stage in stages}
    upstream = {names[stage]: {names[before] for before in edges[stage]} for stage in stages}
    needed = _needed(upstream, targets)
    chain = dict.fromkeys(needed, 1)

    for name in reversed([*TopologicalSorter(upstream).static_order()]):
        for before in upstream[name] if name in needed else ():
            chain[before] = max(chain[before], chain[name] + 1)

    graph: dict[str, Stage] = {}
    for stage, name in names.items():
        if name in needed:
            graph[name] = Stage(
                name=name,
                address=name if profile == "tiny" else f"{path}:{name}",
                upstream=frozenset(upstream[name]),
                is_changed=stage.addressing in changed,
                chain=chain[name],
            )
    return graph


def _needed(upstream: Mapping[str, Set[str]], targets: Sequence[str]) -> Set[str]:
    """Return the stages that targets name, ``rl@sft`` or a whole family ``rl``, and all that those build on."""
    if not targets:
        return upstream.keys()
    waiting: list[str] = []
    for target in targets:
        matches = [name for name in upstream if target in (name, name.partition("@")[0])]
        if not matches:
            raise UnknownNameError("stage", target, upstream.keys())
        waiting += matches

    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += upstream[name] - needed
    return needed


def run_graph(
    graph: Mapping[str, Stage],
    start: Callable[[Stage, bool], Running],
    gpu_stages: Set[str],
    jobs: int = JOBS,
    *,
    force: bool = False,
) -> list[str]:
    """Start stages after those that they build on, and return the names of those that were started.

    A stage that DVC calls unchanged, after stages that were not started either, is skipped. Of the
    stages that are ready, the one with the longest chain to the end starts first, and stages of
    ``gpu_stages`` one at a time. After a failure nothing new starts, and the failed stage's error is
    raised when the stages beside it have ended.

    Args:
        graph: the stages to run.
        start: starts a stage, in the background if one with a longer chain is running.
        gpu_stages: families that need the GPU.
        jobs: how many stages run side by side.
        force: start unchanged stages as well.
    """
    order = TopologicalSorter({stage.name: stage.upstream for stage in graph.values()})
    order.prepare()
    ready: list[Stage] = []
    running: dict[str, Running] = {}
    started: list[str] = []
    finished: SimpleQueue[str] = SimpleQueue()
    failure: BaseException | None = None

    def can_start(stage: Stage) -> bool:
        needs_gpu = stage.family in gpu_stages
        gpu_is_busy = any(graph[name].family in gpu_stages for name in running)
        return len(running) < jobs and not (needs_gpu and gpu_is_busy)

    while order.is_active() and not (failure and not running):
        ready += [graph[name] for name in order.get_ready()]
        ready.sort(key=lambda stage: stage.chain, reverse=True)

        for stage in [] if failure else list(ready):
            if not (force or stage.is_changed or stage.upstream.intersection(started)):
                ready.remove(stage)
                finished.put(stage.name)
            elif can_start(stage):
                ready.remove(stage)
                background = any(graph[name].chain > stage.chain for name in running)
                running[stage.name] = start(stage, background)
                started.append(stage.name)
                running[stage.name].add_done_callback(lambda _, name=stage.name: finished.put(name))

        name = _next_of(finished)
        order.done(name)
        try:
            if name in running:
                running.pop(name).result()
        except Exception as error:  # noqa: BLE001 - raised below
            failure = failure or error

    if failure:
        raise failure
    return started


def _next_of(finished: "SimpleQueue[str]") -> str:
    while True:
        # Short waits, so that a signal is handled soon
        with suppress(Empty):
            return finished.get(timeout=0.5)


def run_stage(
    stage: Stage, root: Path, guard: ProcessGuard, say: Say, *, force: bool, in_background: bool
) -> None:
    """Reproduce one stage with DVC; the arguments and errors are those of :func:`run_dvc`."""
    options = ["--single-item", *(["--force"] if force else []), stage.address]
    niceness = BACKGROUND_NICENESS if in_background else 0
    run_dvc(["repro", *options], root, guard, say, niceness)


def run_dvc(
    arguments: Sequence[str], root: Path, guard: ProcessGuard, say: Say, niceness: int = 0
) -> None:
    """Run a DVC command in a project; ``say`` gets its output line by line, with keys masked.

    Raises:
        StageFailedError: its exit status is not 0.
    """
    # Commands side by side take turns at DVC's lock, which a running stage does not hold
    command = ["nice", "-n", str(niceness), sys.executable, "-P", "-m", "dvc", "--wait-for-lock"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    secrets = environment_secrets(environment)
    process = guard.start([*command, *arguments], folder=root, environment=environment)

    def pass_on(line: str) -> None:
        if not line.strip().startswith(ADVICE):
            say(redact(line, secrets))

    tail = stream_lines(process, pass_on)
    if process.returncode:
        last_lines = redact("\n".join(tail), secrets)
        raise StageFailedError(
            f"`dvc {' '.join(arguments)}` ended with status {process.returncode}; its last lines:\n{last_lines}"
        )


@contextmanager
def run_lock(root: Path, profile: str, holder: str, say: Say) -> Iterator[None]:
    """Hold the lock of a profile's runs in a folder; wait for another run, and say which one it is."""
    path = root / "work" / profile / "run.lock"
    path.parent.mkdir(parents=True, exist_ok=True)

    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for {path.read_text(encoding='utf-8')}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"`{holder}`, PID {os.getpid()}, running since {time.strftime('%H:%M:%S')}")
        file.flush()
        yield


def repro(
    profile: str, targets: Sequence[str] = (), *, force: bool = False, jobs: int = JOBS
) -> int:
    """Reproduce a profile's graph in the working directory, and return how many stages DVC was asked for.

    Raises:
        DeepsearchError: an unknown name, or a stage that failed.
    """
    root = Path.cwd()
    require_profile(root, profile)
    with run_lock(root, profile, f"make repro PROFILE={profile}", partial(print_line, "dvc")):
        config = find_profile(root, profile).section("flow", FlowConfig)
        graph = read_graph(root, profile, targets)

        with ThreadPoolExecutor(jobs) as pool, ProcessGuard() as guard:

            def start(stage: Stage, background: bool) -> Running:
                say = partial(print_line, stage.name)
                return pool.submit(
                    run_stage, stage, root, guard, say, force=force, in_background=background
                )

            return len(run_graph(graph, start, config.gpu_stages, jobs, force=force))


def print_line(name: str, line: str) -> None:
    """Print a line of a stage after the stage's name, with which some lines begin already."""
    prefix = f"{name}: "
    sys.stdout.write(f"{line if line.startswith(prefix) else prefix + line}\n")
    sys.stdout.flush()


@contextmanager
def one_paragraph_errors() -> Iterator[None]:
    """End this process with status 1 and one paragraph where the block raises an error of the user."""
    try:
        yield
    except (DeepsearchError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("cancelled")


def interrupt_on_sigterm() -> None:
    """Have SIGTERM end this process as Ctrl-C does: its children end first."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def main() -> None:
    """Command line of `make repro`."""
    parser = argparse.ArgumentParser(description="Run a profile's graph with DVC.")
    parser.add_argument("profile", nargs="?", default="tiny", help="tiny, or a folder of profiles/")
    parser.add_argument("targets", nargs="*", help="stages or families; all by default")
    parser.add_argument("--force", action="store_true", help="run unchanged stages as well")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"stages side by side ({JOBS})")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs (JOBS of make) must be 1 or more")

    interrupt_on_sigterm()
    with one_paragraph_errors():
        count = repro(
            arguments.profile, arguments.targets, force=arguments.force, jobs=arguments.jobs
        )
    print_line("dvc", f"all stages are up to date; {count} were not")


if __name__ == "__main__":
    main()
