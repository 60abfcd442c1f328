"""The graph by DVC, two stages side by side where it allows it; without Prefect.

    python -m flows.repro [PROFILE] [STAGE...] [--force] [--jobs 2]

Every stage is a ``dvc repro --single-item`` of its own, so the result is that of `dvc repro`: DVC
decides whether a stage runs, records it in dvc.lock and caches it. Stages of the families in
``flow.gpu_stages`` of params.yaml take turns at the GPU. After a failure nothing new starts.
Another run of the profile is waited for first (:mod:`flows.locks`).
"""

import argparse
import functools
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from logging import LoggerAdapter
from pathlib import Path

from deepsearch_rl.core.processes import ProcessGuard
from deepsearch_rl.core.profile import require_profile
from deepsearch_rl.core.project_state import require_sound_project
from flows.command_line import one_paragraph_errors
from flows.dvc_calls import find_foreign_run
from flows.graph import Stage, read_targets
from flows.locks import run_held
from flows.schedule import WORKERS, Start, expected_seconds, run_graph
from flows.stage_run import CACHED, run_stage, workplace

_LOG = logging.getLogger("stages")


def repro(
    profile: str, targets: tuple[str, ...] = (), force: bool = False, jobs: int = WORKERS
) -> dict[str, str]:
    """Reproduce a profile's graph in the working directory and return how each stage ended (:mod:`flows.stage_run`).

    Raises:
        DeepsearchError: an unknown name, a stage that failed, or a project that cannot run now
            (:mod:`deepsearch_rl.core.project_state`).
    """
    name = f"make repro PROFILE={profile}"
    with _held(profile, name) as (root, locks):
        return _repro(root, profile, targets, force, jobs, name, locks)


def is_unchanged(profile: str, targets: tuple[str, ...], name: str) -> bool:
    """Return whether no stage of a profile's graph has to run; then reports that wait for MLflow are sent as well.

    ``name`` is that of the run for those who wait for it. Raises as :func:`repro`.
    """
    with _held(profile, name) as (root, _):
        graph = read_targets(root, profile, targets, _say)
        if any(stage.changed for stage in graph.values()):
            return False

    return True


@contextmanager
def _held(profile: str, name: str) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Hold the working directory's graph of a profile for the run ``name``; yield the directory and the locks."""
    root = Path.cwd()
    require_profile(root, profile)
    find_other = functools.partial(find_foreign_run, root, profile)
    with run_held(root, profile, name, _say, find_other=find_other) as locks:
        yield root, locks


def _say(sentence: str) -> None:
    _LOG.warning("%s", sentence, extra={"stage": "dvc"})


def _repro(
    root: Path,
    profile: str,
    targets: tuple[str, ...],
    force: bool,
    jobs: int,
    name: str,
    locks: tuple[int, ...],
) -> dict[str, str]:
    for sentence in require_sound_project(root):
        _say(sentence)
    graph = read_targets(root, profile, targets, _say)

    with ThreadPoolExecutor(jobs) as pool, ProcessGuard() as guard:
        # No remote, as with `dvc repro`, which asks none.
        place = workplace(root, profile, guard, name, remote=False, locks=locks)

        def start(stage: Stage, _: list[Future[str]], how: Start) -> Future[str]:
            if how.unchanged and not force:
                return pool.submit(lambda: CACHED)
            log = LoggerAdapter(_LOG, {"stage": stage.name})
            return pool.submit(run_stage, stage, place, force, log, in_background=how.in_background)

        expected_s = expected_seconds(root, profile, graph.keys())
        started = run_graph(graph, start, _outcome, place.config.gpu_stages, expected_s, jobs)

    return {name: future.result() for name, future in started.items()}


def _outcome(future: Future[str]) -> str | None:
    return future.result() if future.exception() is None else None


class _StageLine(logging.Formatter):
    """A line of a stage, after the name of the stage where it does not begin with it, as some progress does."""

    def format(self, record: logging.LogRecord) -> str:
        line = record.getMessage()
        name = f"{vars(record)['stage']}: "
        return line if line.startswith(name) else f"{name}{line}"


def log_to_stdout() -> None:
    """Have the lines of stages printed, each after the name of its stage."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_StageLine())
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)


def main() -> None:
    """Command line; errors end it with status 1 and one paragraph."""
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
        "--jobs", type=int, default=WORKERS, help=f"stages side by side ({WORKERS})"
    )
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs (JOBS of make) must be 1 or more")
    log_to_stdout()

    with one_paragraph_errors():
        outcomes = repro(
            arguments.profile, tuple(arguments.targets), arguments.force, arguments.jobs
        )

    ran = sum(outcome != CACHED for outcome in outcomes.values())
    _LOG.info("%d of %d stages ran; all are up to date", ran, len(outcomes), extra={"stage": "dvc"})


if __name__ == "__main__":
    main()
