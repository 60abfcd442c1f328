"""The graph of dvc.yaml as a Prefect flow: one task per stage, and the result of `dvc repro`.

    python -m flows.reproduce [PROFILE] [STAGE...] [--force] [--revision main] [-S rl.group_size=16] [--experiment NAME]

Every task is ``dvc repro --single-item`` of its stage, so DVC decides whether the stage runs, records it in dvc.lock
and caches it. A stage that DVC calls unchanged, after stages that did not run either, starts no process at all. Two
stages run side by side where the graph allows it; those of the families in ``flow.gpu_stages`` of params.yaml take
turns, in this flow run and in all others on this machine. After a failure nothing new starts, as with
`dvc repro`.
"""

import argparse
import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID

import httpx
import yaml
from prefect import flow, get_client, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.blocks.core import Block
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from deepsearch_rl.commands.summary import latest_runs
from deepsearch_rl.dvc_lock import repair_dvc_locks
from deepsearch_rl.errors import ConfigError, DeepsearchError, EndpointError
from deepsearch_rl.processes import ProcessGuard, stream_lines
from deepsearch_rl.profile import find_profile
from deepsearch_rl.records import Record
from deepsearch_rl.redaction import is_secret, redact
from deepsearch_rl.retries import retry
from flows.checkout import check_experiment_name, open_checkout, save_experiment
from flows.graph import Graph, Stage, has_remote, longest_path_s, read_graph, select
from flows.locks import gpu_lock, held
from flows.recovery import close_dead_run
from flows.run_page import key_figures, run_page
from flows.server import prefect_api, wait_for_prefect

WORKERS = 2
DVC = str(Path(__file__).with_name("dvc"))
PROJECT_VARIABLE = "DEEPSEARCH_PROJECT"
"""Set by a worker for its runs, which Prefect starts in a temporary folder."""
NOTIFY_VARIABLE = "DEEPSEARCH_NOTIFY"
RETRY_DELAYS_S = [30.0, 120.0, 600.0]
PUSH_ATTEMPTS, PUSH_BACKOFF_S = 4, 2.0
CACHED, RESTORED = "Cached", "Restored"
_UNCHANGED = "Data and pipelines are up to date."
_STAGE_FAILED = "failed to run: "
_FROM_RUN_CACHE = "is cached - skipping run, checking out outputs"


class FlowConfig(Record):
    """Section ``flow`` of params.yaml."""

    gpu_stages: frozenset[str] = Field(description="stage families that take turns at the GPU")
    outside_stages: frozenset[str] = Field(description="families that ask hubs or APIs; tried again where they fail")


class StageFailedError(DeepsearchError):
    """A stage ended with a status other than 0."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where the stages of a run work: their folder, what ends them with the run, and whether DVC has a remote."""

    root: Path
    guard: ProcessGuard
    remote: bool


@task(task_run_name="{stage.name}", cache_policy=NO_CACHE)
def run_stage(stage: Stage, place: Workplace, on_gpu: bool, skip: bool, force: bool) -> State[None]:
    """Let DVC reproduce one stage; its output goes to the task's log line by line.

    With a remote, what another machine has made of the same inputs is fetched, and what this one makes is pushed.

    Returns:
        A completed state, named Cached where DVC calls the stage unchanged and Restored where it fetched the outputs
        of an earlier run of the same inputs.

    Raises:
        StageFailedError: with the command, its exit status and its last lines.
    """
    if skip:
        return Completed(name=CACHED, message="unchanged, and so is everything before it")
    say = get_run_logger().info
    with held(gpu_lock(), _holder(), say, place.guard.check_open) if on_gpu else nullcontext() as lock:
        lines = _reproduce_stage(stage, place, force, [] if lock is None else [lock])
    if _UNCHANGED in lines:
        return Completed(name=CACHED, message="unchanged")
    if place.remote:
        _push(stage, place)
    if any(line.endswith(_FROM_RUN_CACHE) for line in lines):
        return Completed(name=RESTORED, message="outputs of an earlier run, from DVC's run cache")
    return Completed(message=key_figures(place.root, stage) or None)


def _reproduce_stage(stage: Stage, place: Workplace, force: bool, locks: list[int]) -> list[str]:
    """Reproduce a stage and return DVC's last lines; one that cannot be fetched runs here."""
    options = ["--force"] if force else []
    if place.remote:
        try:
            return _stream(dvc_command("repro", "--single-item", "--pull", *options, stage.address), place, locks)
        except StageFailedError as error:
            if _STAGE_FAILED in str(error):
                raise
            get_run_logger().warning("DVC's remote cannot be asked for %s, so it runs here: %s", stage.name, error)
    return _stream(dvc_command("repro", "--single-item", *options, stage.address), place, locks)


def _push(stage: Stage, place: Workplace) -> None:
    """Push what a stage made and its entry of the run cache; a remote that stays away fails no stage."""
    logger, command = get_run_logger(), dvc_command("push", "--run-cache", stage.address)
    push = retry(
        PUSH_ATTEMPTS,
        PUSH_BACKOFF_S,
        StageFailedError,
        lambda _, attempt: logger.info("the push of %s failed (attempt %d); trying again", stage.name, attempt),
    )
    try:
        push(lambda: _stream(command, place, []))()
    except StageFailedError as error:
        logger.error("NOT PUSHED to DVC's remote: %s", error)


def dvc_command(*arguments: str) -> list[str]:
    """A command of DVC. Several at once take turns at DVC's lock, which a running stage frees."""
    return [sys.executable, DVC, "--wait-for-lock", *arguments]


def _stream(command: list[str], place: Workplace, locks: list[int]) -> list[str]:
    """Run a command, log its output as it comes, without keys, and return the last lines."""
    logger, environment = get_run_logger(), {**os.environ, "PYTHONUNBUFFERED": "1"}
    secrets = [value for name, value in environment.items() if is_secret(name)]
    process = place.guard.start(command, folder=place.root, environment=environment, kept=locks)
    lines = stream_lines(process, lambda line: logger.info("%s", redact(line, secrets)))
    tail = [redact(line, secrets) for line in lines]
    if process.returncode != 0:
        call = " ".join(["dvc", *command[2:]] if command[1] == DVC else command)
        raise StageFailedError(f"`{call}` ended with status {process.returncode}; its last lines:\n" + "\n".join(tail))
    return tail


def notify(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001 - Prefect's arguments
    """Tell how a run ended by the notification block that ``DEEPSEARCH_NOTIFY`` names: ``slack-webhook/team``."""
    if name := os.environ.get(NOTIFY_VARIABLE):
        block: Any = Block.load(name)
        block.notify(body=state.message or state.name or "", subject=f"{flow_run.name}: {state.name}")


@flow(  # pyright: ignore[reportCallIssue]  prefect does not accept its own task runner's type
    name="reproduce",
    flow_run_name=lambda: run_name(**flow_run.parameters),
    on_completion=[notify],
    on_failure=[notify],
    on_crashed=[notify],
    task_runner=ThreadPoolTaskRunner(max_workers=WORKERS),  # pyright: ignore[reportArgumentType]
)
def reproduce(
    profile: str = "tiny",
    targets: tuple[str, ...] = (),
    force: bool = False,
    revision: str = "",
    params: dict[str, Any] | None = None,
    experiment: str = "",
) -> dict[str, str]:
    """Reproduce a profile's graph, or what some of its stages need, through DVC.

    Args:
        profile: tiny, or a folder of profiles/.
        targets: stages (rl@sft) or families (rl) to bring up to date, with what they need; all where empty.
        force: run stages even where nothing changed.
        revision: a branch, tag or commit to run, in a clone of its own under work/checkouts/; empty: this folder.
        params: other values by dotted name, {"rl.group_size": 16}, in such a clone.
        experiment: name under which `make experiments` lists the result; empty: it is no experiment.

    Returns:
        The name of each stage's final state: Completed, Cached or Restored, see :func:`run_stage`.

    Raises:
        DeepsearchError: an unknown name, a stage that failed, or a lock file that cannot be repaired now.
    """
    project = project_folder()
    logger = get_run_logger()
    if experiment:
        check_experiment_name(experiment)
        revision = revision or "HEAD"  # an experiment never touches the files that somebody works on
    # Two runs of one profile on one machine would share its GPU's memory and, in one folder, write the same outputs.
    with held(project / "work" / profile / "flow.lock", _holder(), logger.info, check=lambda: None):
        run_file = project / "work" / profile / "flow.run"
        _close_dead_run(run_file)
        root = open_checkout(project, profile, revision, params or {}, logger.warning)
        states = _reproduce(root, project, profile, targets, force)
        if experiment:
            save_experiment(root, profile, states, experiment)
        run_file.unlink()  # only a killed run leaves it
    return states


def _holder() -> str:
    return f"{flow_run.name} (process {os.getpid()})"


def _close_dead_run(path: Path) -> None:
    """Mark the run that held the profile's lock before us as crashed if it still says that it is running."""
    if path.is_file():
        wait_for_prefect()
        with get_client(sync_client=True) as client, suppress(ValueError):
            close_dead_run(client, UUID(path.read_text(encoding="utf-8")))
    path.write_text(str(flow_run.id), encoding="utf-8")


def run_name(
    profile: str = "tiny",
    targets: Sequence[str] = (),
    force: bool = False,
    revision: str = "",
    params: Mapping[str, Any] | None = None,
    experiment: str = "",
) -> str:
    """Return what a run shows in lists: its profile, and what differs from a plain run of it."""
    changes = (f"{name}={value}" for name, value in (params or {}).items())
    return " · ".join([profile, *targets, *changes, *filter(None, [experiment, revision, "forced" if force else ""])])


def project_folder() -> Path:
    """Return the clone of the project that runs work in: a worker's, or else the working directory."""
    return Path(os.environ.get(PROJECT_VARIABLE) or Path.cwd()).resolve()


def _reproduce(root: Path, project: Path, profile: str, targets: tuple[str, ...], force: bool) -> dict[str, str]:
    for sentence in repair_dvc_locks(root):
        get_run_logger().warning("%s", sentence)
    graph = select(read_graph(root, profile), targets)
    config = find_profile(root, profile).section("flow", FlowConfig)
    with ProcessGuard() as guard:
        place = Workplace(root, guard, has_remote(root))
        locks = [folder / "uv.lock" for folder in (root, project)]
        if root != project and locks[0].read_bytes() != locks[1].read_bytes():  # other packages than the project's
            _stream(["make", "environment"], place, [])

        def start(stage: Stage, upstream: list[PrefectFuture[State[None]]], skip: bool) -> PrefectFuture[State[None]]:
            inputs = (stage, place, stage.family in config.gpu_stages, skip and not force, force)
            retries = len(RETRY_DELAYS_S) if stage.family in config.outside_stages else 0
            run = run_stage.with_options(retries=retries, retry_delay_seconds=RETRY_DELAYS_S)
            return run.submit(*inputs, wait_for=upstream)  # pyright: ignore[reportCallIssue]

        timings = {run.stage: run.seconds for run in latest_runs(project, profile)}
        states = _run_graph(graph, start, config.gpu_stages, timings)
        _send_reports(place, profile)
    page = run_page(root, profile, graph, states, os.environ.get("MLFLOW_TRACKING_URI"))
    _store_page(page, f"run-{profile}")
    for state in states.values():
        state.result()
    return {name: state.name or "" for name, state in states.items()}


def _send_reports(place: Workplace, profile: str) -> None:
    """Send the reports to MLflow that an earlier stage could not; a server that is still away fails no run."""
    if any((place.root / "work" / profile / "outbox").glob("[!.]*")):
        try:
            _stream([str(Path(sys.executable).with_name("deepsearch")), "track", profile], place, [])
        except StageFailedError as error:
            get_run_logger().warning("NOT SENT to MLflow: %s", error)


def _store_page(page: str, key: str) -> None:
    """Store the run's page as an artifact; a server that stays away, or goes at this moment, fails no run."""
    try:
        wait_for_prefect()
        create_markdown_artifact(page, key=key, description="F1 table, stages and their key figures")
    except (EndpointError, httpx.HTTPError, RuntimeError) as error:
        get_run_logger().warning("this run has no page in Prefect's UI: %s", error)


StartStage = Callable[[Stage, list[PrefectFuture[State[None]]], bool], PrefectFuture[State[None]]]


def _run_graph(
    graph: Graph, start: StartStage, gpu_stages: Set[str], last_runs_s: Mapping[str, float]
) -> dict[str, State[None]]:
    """Run every stage after those that it needs; after a failure start no more. Return the final states.

    Of the stages that could start, the one with the longest way to the end is first, by the times of the last runs. A
    stage that would only wait for another one's GPU leaves its place to others.
    """
    order = TopologicalSorter({name: stage.upstream & graph.keys() for name, stage in graph.items()})
    order.prepare()
    seconds_left = longest_path_s(graph, last_runs_s)
    futures: dict[str, PrefectFuture[State[None]]] = {}
    finished: SimpleQueue[str] = SimpleQueue()
    states: dict[str, State[None]] = {}
    ready: list[str] = []

    def has_room(name: str) -> bool:
        families = [graph[other].family for other in futures.keys() - states.keys()]
        return len(families) < WORKERS and not (graph[name].family in gpu_stages and gpu_stages & set(families))

    def is_cached(name: str) -> bool:
        return states[name].name == CACHED

    while order.is_active() and all(state.is_completed() for state in states.values()):
        ready = sorted([*ready, *order.get_ready()], key=seconds_left.__getitem__, reverse=True)
        for name in filter(has_room, list(ready)):
            ready.remove(name)
            upstream = sorted(graph[name].upstream & graph.keys())
            skip = not graph[name].changed and all(map(is_cached, upstream))
            futures[name] = start(graph[name], [futures[before] for before in upstream], skip)
            futures[name].add_done_callback(lambda _, name=name: finished.put(name))
        name = _next_of(finished)
        futures[name].wait()
        states[name] = futures[name].state
        order.done(name)
    for name in futures.keys() - states.keys():
        futures[name].wait()
        states[name] = futures[name].state
    return states


def _next_of(finished: "SimpleQueue[str]") -> str:
    """Wait for a stage to finish; in short waits, for a library's signal handler may leave a long one asleep."""
    while True:
        with suppress(Empty):
            return finished.get(timeout=0.5)


def main() -> None:
    """Command line of the flow; errors end it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", default="tiny", help="tiny, or a folder of profiles/")
    parser.add_argument("targets", nargs="*", help="stages or families to bring up to date; all where none is named")
    parser.add_argument("--force", action="store_true", help="run stages even where nothing changed")
    parser.add_argument("--revision", default="", help="branch, tag or commit to run, in a clone of its own")
    parser.add_argument(
        "-S", "--set", action="append", default=[], metavar="NAME=VALUE", help="another value, in a clone of its own"
    )
    parser.add_argument("--experiment", default="", help="keep the result as a DVC experiment of this name")
    arguments = parser.parse_args()
    # Prefect sends its last logs and events when the interpreter ends, and what is registered first ends last: so a
    # server of ours is still there to take them.
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    try:
        until_exit.enter_context(prefect_api())
        params = dict(map(_parameter, arguments.set))
        targets = tuple(arguments.targets)
        reproduce(arguments.profile, targets, arguments.force, arguments.revision, params or None, arguments.experiment)
    except DeepsearchError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("cancelled")


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if equals:
            return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value in {text!r} is not YAML: {error}") from error
    raise ConfigError(f"{text!r} is not NAME=VALUE, such as rl.group_size=16.")


if __name__ == "__main__":
    main()
