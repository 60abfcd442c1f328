"""A profile's graph as a Prefect flow: one task per stage that DVC is asked for.

    python -m flows.reproduce [PROFILE] [STAGE...] [--force] [--revision main]      (`make flow`)

The flow is `make repro` (:mod:`flows.driver`) with what Prefect adds: a page per run, retries of
stages that ask hubs or APIs, a concurrency limit for the GPU, schedules, and workers on other
machines (:mod:`flows.worker`).
"""

import argparse
import atexit
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner

from deepsearch_rl.cli.summary import latest_runs, read_table, timeline
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.core.profile import dvc_file, find_profile, require_profile
from deepsearch_rl.core.stage import OUTSIDE_STATUS
from flows import ROOT
from flows.driver import (
    JOBS,
    FlowConfig,
    Stage,
    StageFailedError,
    one_paragraph_errors,
    read_graph,
    run_dvc,
    run_graph,
    run_lock,
    run_stage,
)
from flows.servers import prefect_server

DVC = [sys.executable, "-P", "-m", "dvc"]
RETRY_DELAYS_S = [30.0, 120.0, 600.0]
# Concurrency limit of Prefect for stages that use this machine's GPU
GPU_LIMIT = f"gpu-{socket.gethostname()}"


def run_name() -> str:
    """Return the name that lists show for a run: its profile, and what differs from a plain run."""
    values = flow_run.parameters
    parts = [values.get("profile", "tiny"), *values.get("targets", ()), values.get("revision")]
    return " · ".join(filter(None, [*parts, "forced" if values.get("force") else ""]))


def asked_outside(_task: object, _run: object, state: State[Any]) -> bool:
    """Return whether a stage failed because a server did not answer, so that a retry can help."""
    error = state.data
    return isinstance(error, StageFailedError) and f"exited with {OUTSIDE_STATUS}" in str(error)


@task(task_run_name="{stage.name}", cache_policy=NO_CACHE)
def reproduce_stage(
    stage: Stage,
    root: Path,
    guard: ProcessGuard,
    force: bool,
    in_background: bool,
    needs_gpu: bool,
) -> None:
    """Reproduce one stage with DVC."""
    turn = concurrency(GPU_LIMIT) if needs_gpu else nullcontext()
    with turn:
        run_stage(
            stage,
            root,
            guard,
            get_run_logger().info,
            force=force,
            in_background=in_background,
        )


@flow(  # pyright: ignore[reportCallIssue]  prefect does not accept its own task runner's type
    name="reproduce",
    flow_run_name=run_name,
    task_runner=ThreadPoolTaskRunner(max_workers=JOBS),  # pyright: ignore[reportArgumentType]
)
def reproduce(
    profile: str = "tiny",
    targets: tuple[str, ...] = (),
    force: bool = False,
    revision: str = "",
) -> list[str]:
    """Reproduce a profile's graph, or what some of its stages need, with DVC.

    With a DVC remote, artifacts that other machines have made are pulled before and pushed after.

    Args:
        profile: tiny, or a folder of profiles/.
        targets: stages (rl@sft) or families (rl) to bring up to date, with what they need; all
            where empty.
        force: run stages even where nothing changed.
        revision: a branch, tag or commit to run, in a worktree under work/checkouts/; this folder
            where empty.

    Returns:
        The names of the stages that DVC was asked for.

    Raises:
        DeepsearchError: an unknown name, or a stage that failed.
    """
    logger = get_run_logger()
    require_profile(ROOT, profile)
    with (
        run_lock(ROOT, profile, f"flow run {flow_run.name}", logger.warning),
        ProcessGuard() as guard,
    ):
        root = checkout(revision, logger.warning) if revision else ROOT
        config = find_profile(root, profile).section("flow", FlowConfig)
        has_remote = bool(_output(root, [*DVC, "config", "core.remote"]))

        def share(*arguments: str) -> None:
            if has_remote:
                try:
                    run_dvc([*arguments, dvc_file(profile)], root, guard, logger.info)
                except StageFailedError as error:
                    logger.warning("%s", error)

        def start(stage: Stage, in_background: bool) -> PrefectFuture[None]:
            is_outside = stage.family in config.outside_stages
            run = reproduce_stage.with_options(
                retries=len(RETRY_DELAYS_S) if is_outside else 0,
                retry_delay_seconds=RETRY_DELAYS_S,
                retry_condition_fn=asked_outside,
            )
            needs_gpu = stage.family in config.gpu_stages
            return run.submit(stage, root, guard, force, in_background, needs_gpu)  # pyright: ignore[reportCallIssue]

        if config.gpu_stages:
            create_gpu_limit()
        share("pull", "--run-cache", "--allow-missing")
        graph = read_graph(root, profile, targets)
        try:
            return run_graph(graph, start, config.gpu_stages, force=force)
        finally:
            share("push", "--run-cache")
            store_artifacts(root, profile)


def create_gpu_limit() -> None:
    """Have stages of all flow runs on this machine take turns at the GPU, unless the limit is there already."""
    limit = GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=1)
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_global_concurrency_limit(limit)


def checkout(revision: str, say: Callable[[str], object]) -> Path:
    """Return a worktree of a branch, tag or commit that shares DVC's cache and the MLflow store with this folder.

    Of a branch it is the newest commit that the remote ``origin`` has.

    Raises:
        ConfigError: there is no such revision.
    """
    if _output(ROOT, ["git", "remote"]):
        fetched = subprocess.run(
            ["git", "fetch", "--quiet", "--tags", "origin"], cwd=ROOT, check=False
        )
        if fetched.returncode:
            say(f"`git fetch origin` failed: {revision} is what this machine has")
    commit = ""
    for name in (f"origin/{revision}", revision):
        commit = commit or _output(ROOT, ["git", "rev-parse", "--verify", f"{name}^{{commit}}"])
    if not commit:
        raise ConfigError(f"there is no git revision {revision!r}: name one that was pushed.")

    folder = ROOT / "work" / "checkouts" / commit[:12]
    if not folder.is_dir():
        command = ["git", "worktree", "add", "--force", "--detach", str(folder), commit]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    local = ROOT / ".dvc" / "config.local"
    if local.is_file():
        shutil.copy(local, folder / ".dvc")
    # DVC writes no path with letters beyond ASCII, which the project's own path may have
    cache = os.path.relpath(_output(ROOT, [*DVC, "cache", "dir"]), folder)
    subprocess.run([*DVC, "cache", "dir", "--local", cache], cwd=folder, check=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{ROOT / 'mlflow.db'}")
    return folder


def _output(folder: Path, command: list[str]) -> str:
    """Return what a command prints, empty where it fails."""
    return subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True
    ).stdout.strip()


def store_artifacts(root: Path, profile: str) -> None:
    """Show the F1 table, a link to the report, and where the time went on the run's page."""
    key = profile.replace("_", "-")
    report = root / "reports" / profile / "index.html"
    # A run of the first stages alone has no report
    with suppress(ArtifactError):
        create_markdown_artifact(read_table(root, profile), key=f"f1-{key}", description="F1")
    if report.is_file():
        create_link_artifact(report.as_uri(), "The report", key=f"report-{key}")

    runs = latest_runs(root, profile)
    if runs:
        lines = "\n".join(["```", *timeline(runs), "```"])
        create_markdown_artifact(lines, key=f"stages-{key}", description="Where the time went")


def main() -> None:
    """Command line of `make flow`; starts a Prefect server on this machine where none answers."""
    parser = argparse.ArgumentParser(description="Run a profile's graph as a Prefect flow.")
    parser.add_argument("profile", nargs="?", default="tiny", help="tiny, or a folder of profiles/")
    parser.add_argument("targets", nargs="*", help="stages or families; all by default")
    parser.add_argument("--force", action="store_true", help="run unchanged stages as well")
    parser.add_argument("--revision", default="", help="branch, tag or commit to run")
    arguments = parser.parse_args()

    # Prefect sends its last logs when the interpreter ends, before what was registered earlier
    servers = ExitStack()
    atexit.register(servers.close)
    with one_paragraph_errors():
        servers.enter_context(prefect_server())
        reproduce(arguments.profile, tuple(arguments.targets), arguments.force, arguments.revision)


if __name__ == "__main__":
    main()
