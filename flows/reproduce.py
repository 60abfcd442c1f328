"""The graph of dvc.yaml as a Prefect flow: one task per stage, and the result of `dvc repro`.

    python -m flows.reproduce [PROFILE] [STAGE...] [--force] [--revision main] [-S rl.group_size=16] [--experiment NAME]

Every task is ``dvc repro --single-item`` of its stage, so DVC decides whether the stage runs,
records it in dvc.lock and caches it. A stage that DVC calls unchanged, after stages that did not
run either, starts no process at all. Two stages run side by side where the graph allows it; those
of the families in ``flow.gpu_stages`` of params.yaml take turns, in this flow run and in all others
on this machine. After a failure nothing new starts, as with `dvc repro`.
"""

import argparse
import atexit
import functools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_client, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.blocks.core import Block
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from deepsearch_rl.cli.defaults import changed_field
from deepsearch_rl.cli.summary import read_table
from deepsearch_rl.core.errors import ArtifactError, EndpointError
from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.core.project_state import require_sound_project
from flows.checkout import (
    check_experiment_is_new,
    check_experiment_name,
    open_checkout,
    save_experiment,
)
from flows.command_line import one_paragraph_errors
from flows.dvc_calls import find_foreign_run
from flows.graph import Stage, has_remote, read_targets
from flows.locks import run_held
from flows.recovery import close_dead_run
from flows.repro import is_unchanged, log_to_stdout
from flows.run_page import key_figures, report_page, run_page
from flows.schedule import WORKERS, Start, expected_seconds, run_graph
from flows.server import needs_server, prefect_api, wait_for_prefect
from flows.stage_run import (
    CACHED,
    RESTORED,
    StageFailedError,
    Workplace,
    run_stage,
    stream,
    workplace,
)

# Set by a worker for its runs, which Prefect starts in a temporary folder
PROJECT_VARIABLE = "DEEPSEARCH_PROJECT"
NOTIFY_VARIABLE = "DEEPSEARCH_NOTIFY"
RETRY_DELAYS_S = [30.0, 120.0, 600.0]


@task(task_run_name="{stage.name}", cache_policy=NO_CACHE)
def reproduce_stage(
    stage: Stage, place: Workplace, skip: bool, force: bool, in_background: bool
) -> State[None]:
    """Let DVC reproduce one stage (:func:`flows.stage_run.run_stage`).

    Returns:
        A completed state, named as the stage ended.
    """
    if skip:
        return Completed(name=CACHED, message="unchanged, and so is everything before it")
    outcome = run_stage(stage, place, force, get_run_logger(), in_background)
    messages = {CACHED: "unchanged", RESTORED: "outputs of an earlier run, from DVC's run cache"}
    return Completed(
        name=outcome, message=messages.get(outcome) or key_figures(place.root, stage) or None
    )


def notify(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001 - Prefect's arguments
    """Tell how a run ended by the notification block that ``DEEPSEARCH_NOTIFY`` names: ``slack-webhook/team``."""
    if name := os.environ.get(NOTIFY_VARIABLE):
        block: Any = Block.load(name)
        block.notify(
            body=state.message or state.name or "", subject=f"{flow_run.name}: {state.name}"
        )


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
        targets: stages (rl@sft) or families (rl) to bring up to date, with what they need; all
            where empty.
        force: run stages even where nothing changed.
        revision: a branch, tag or commit to run, in a clone of its own under work/checkouts/;
            empty: this folder.
        params: other values by dotted name, {"rl.group_size": 16}, in such a clone.
        experiment: name under which `make experiments` lists the result; empty: it is no
            experiment.

    Returns:
        The name of each stage's final state (:mod:`flows.stage_run`).

    Raises:
        DeepsearchError: an unknown name, a stage that failed, or a project that cannot run now
            (:mod:`deepsearch_rl.core.project_state`).
    """
    project = project_folder()
    logger = get_run_logger()
    if experiment:
        check_experiment_name(experiment)
        # An experiment never touches the files that somebody works on
        revision = revision or "HEAD"
    # Two runs of one profile on one machine would share its GPU's memory and, in one folder, write
    # the same outputs.
    find_other = functools.partial(find_foreign_run, project, profile)
    with ExitStack() as turns:
        turn = run_held(project, profile, _holder(), logger.warning, find_other=find_other)
        locks = turns.enter_context(turn)
        run_file = project / "work" / profile / "flow.run"
        _close_dead_run(run_file)
        root = open_checkout(project, profile, revision, params or {}, logger.warning)

        if experiment and not check_experiment_is_new(project, root, profile, experiment):
            sentence = (
                "there is an experiment %s with these params already; this run brings it up to date"
            )
            logger.info(sentence, experiment)

        # For the DVC and the stages of the checkout, which look for the lock of their own folder
        if root != project:
            locks += turns.enter_context(run_held(root, profile, _holder(), logger.warning))
        states = _reproduce(root, project, profile, targets, force, locks)
        if experiment:
            save_experiment(project, root, profile, states, experiment)
        # Only a killed run leaves it, and a run that has ended well does not fail where it is gone
        run_file.unlink(missing_ok=True)

    return states


def _holder() -> str:
    return f"the flow run {flow_run.name}"


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
    parts = [profile, *targets]
    parts += [f"{name}={value}" for name, value in (params or {}).items()]
    if experiment:
        parts.append(experiment)
    if revision:
        parts.append(revision)
    if force:
        parts.append("forced")

    return " · ".join(parts)


def project_folder() -> Path:
    """Return the clone of the project that runs work in: a worker's, or else the working directory."""
    return Path(os.environ.get(PROJECT_VARIABLE) or Path.cwd()).resolve()


def _is_outside(_task: object, _run: object, state: State[None]) -> bool:
    """Return whether a stage failed because a server did not answer: a missing key is asked for once."""
    return isinstance(state.data, StageFailedError) and state.data.is_outside


def _reproduce(
    root: Path,
    project: Path,
    profile: str,
    targets: tuple[str, ...],
    force: bool,
    locks: tuple[int, ...],
) -> dict[str, str]:
    for sentence in require_sound_project(root):
        get_run_logger().warning("%s", sentence)
    graph = read_targets(root, profile, targets, get_run_logger().warning)

    with ProcessGuard() as guard:
        experiment = str(flow_run.parameters.get("experiment") or "")
        place = workplace(root, profile, guard, _holder(), has_remote(root), locks, experiment)
        if root != project and _packages_of(root) != _packages_of(project):
            # Another revision may need other packages than this folder has
            stream(["make", "environment"], place, get_run_logger())

        def start(
            stage: Stage, upstream: list[PrefectFuture[State[None]]], how: Start
        ) -> PrefectFuture[State[None]]:
            retries = len(RETRY_DELAYS_S) if stage.family in place.config.outside_stages else 0
            run = reproduce_stage.with_options(
                retries=retries,
                retry_delay_seconds=RETRY_DELAYS_S,
                retry_condition_fn=_is_outside,
            )
            skip = how.unchanged and not force
            return run.submit(stage, place, skip, force, how.in_background, wait_for=upstream)  # pyright: ignore[reportCallIssue]

        def outcome(future: PrefectFuture[State[None]]) -> str | None:
            future.wait()
            return future.state.name if future.state.is_completed() else None

        expected_s = expected_seconds(project, profile, graph.keys())
        started = run_graph(graph, start, outcome, place.config.gpu_stages, expected_s)
        states = {name: future.state for name, future in started.items()}

    page = run_page(root, profile, graph, states, os.environ.get("MLFLOW_TRACKING_URI"))
    _store_artifacts(root, profile, page)
    # Raises the error of a stage that failed, now that the page and the reports are there
    for state in states.values():
        state.result()
    return {name: state.name or "" for name, state in states.items()}


def _packages_of(folder: Path) -> bytes:
    """Return what decides which packages a checkout's stages need."""
    return (folder / "uv.lock").read_bytes()


def artifact_key(kind: str, profile: str) -> str:
    """Return the key of a profile's artifact: Prefect takes small letters, digits and dashes alone."""
    return re.sub("[^a-z0-9]+", "-", f"{kind}-{profile}".lower()).strip("-")


def _store_artifacts(root: Path, profile: str, page: str) -> None:
    """Store the F1 table, a link to the report, and the run's page as artifacts, in this order.

    A server that stays away, or goes at this moment, fails no run.
    """
    report = report_page(root, profile)
    try:
        wait_for_prefect()
        # A run of the first stages alone has no table
        with suppress(ArtifactError):
            table = read_table(root, profile)
            create_markdown_artifact(
                table,
                key=artifact_key("f1", profile),
                description="F1 of every model and question set",
            )

        if report.is_file():
            text = f"{profile}: plots, tables and rollouts"
            create_link_artifact(
                report.as_uri(),
                text,
                key=artifact_key("report", profile),
                description="The report",
            )

        create_markdown_artifact(
            page, key=artifact_key("run", profile), description="Stages and their key figures"
        )
    except (EndpointError, httpx.HTTPError, RuntimeError, ValueError) as error:
        get_run_logger().warning("this run has no page in Prefect's UI: %s", error)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", nargs="?", default="tiny", help="tiny, or a folder of profiles/")
    parser.add_argument(
        "targets", nargs="*", help="stages or families to bring up to date; all where none is named"
    )
    parser.add_argument(
        "--force", action="store_true", help="run stages even where nothing changed"
    )
    parser.add_argument(
        "--revision", default="", help="branch, tag or commit to run, in a clone of its own"
    )
    parser.add_argument(
        "-S",
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value, in a clone of its own",
    )
    parser.add_argument(
        "--experiment", default="", help="keep the result as a DVC experiment of this name"
    )
    parser.add_argument(
        "--skip-unchanged",
        action="store_true",
        help="where no stage has to run and no Prefect server answers, start none and record no run",
    )
    return parser.parse_args()


def main() -> None:
    """Command line of the flow; errors end it with status 1 and one paragraph."""
    arguments = _arguments()
    targets = tuple(arguments.targets)
    # Prefect sends its last logs and events when the interpreter ends, and what is registered first
    # ends last: so a server of ours is still there to take them.
    until_exit = ExitStack()
    atexit.register(until_exit.close)

    with one_paragraph_errors():
        # These work in a clone
        if not (arguments.revision or arguments.set or arguments.experiment):
            # Before a server starts for nothing
            require_sound_project(Path.cwd())
            may_skip = arguments.skip_unchanged and not arguments.force
            if may_skip and needs_server() and _has_nothing_to_do(arguments.profile, targets):
                return

        until_exit.enter_context(prefect_api())
        params = dict(map(changed_field, arguments.set))
        reproduce(
            arguments.profile,
            targets,
            arguments.force,
            arguments.revision,
            params or None,
            arguments.experiment,
        )


def _has_nothing_to_do(profile: str, targets: tuple[str, ...]) -> bool:
    """Return whether no stage has to run, and say so."""
    log_to_stdout()
    unchanged = is_unchanged(profile, targets, f"make flow PROFILE={profile}")
    if unchanged:
        sys.stdout.write(
            f"{profile}: all stages are up to date. No Prefect server answers, so no flow run is recorded.\n"
        )

    return unchanged


if __name__ == "__main__":
    main()
