"""Which stage of the graph starts when: two side by side, the one with the longest way to the end first."""

from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from graphlib import TopologicalSorter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from deepsearch_rl.cli.plan import make_plan
from deepsearch_rl.cli.summary import latest_runs
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.profile import find_profile
from flows.graph import Graph, Stage, longest_path_s
from flows.stage_run import CACHED

WORKERS = 2


class Running(Protocol):
    """A stage that was started: a future of Prefect or of the standard library."""

    def add_done_callback(self, fn: Callable[[Any], None], /) -> None:
        """Call ``fn`` when the stage has ended."""


RunningT = TypeVar("RunningT", bound=Running)


class Start(NamedTuple):
    """How a stage starts.

    ``unchanged``: it and those that it builds on are, so there is nothing to run. ``in_background``:
    a stage with a longer way to the end is running, and should not be slowed down.
    """

    unchanged: bool
    in_background: bool


# Starts a stage, after those that it builds on
StartStage = Callable[[Stage, list[RunningT], Start], RunningT]


def expected_seconds(root: Path, profile: str, stages: Set[str]) -> dict[str, float]:
    """Return how long stages of a profile take: as the last run of each, or as the plan says if one never ran."""
    last_s = {run.stage: run.seconds for run in latest_runs(root, profile)}
    planned_s: dict[str, float] = {}
    # What cannot be planned can be run: then the last runs alone are known
    with suppress(DeepsearchError):
        if stages - last_s.keys():
            plan = make_plan(find_profile(root, profile), {})
            planned_s = {work.stage: work.seconds for work in plan.stages}

    return planned_s | last_s


def run_graph(
    graph: Graph,
    start: StartStage[RunningT],
    outcome: Callable[[RunningT], str | None],
    gpu_stages: Set[str],
    expected_s: Mapping[str, float],
    workers: int = WORKERS,
) -> dict[str, RunningT]:
    """Run every stage after those that it needs, and return all that were started; after a failure no more start.

    ``outcome`` waits for a stage that has ended and returns how (:mod:`flows.stage_run`), None
    where it failed. Of the stages that could start, the one with the longest way to the end is
    first, by the seconds that each is expected to take; those that start beside it run in its
    background. A stage that would only wait for another one's GPU leaves its place to others.
    """
    # A stage outside of the selected part is up to date, so that nobody waits for it
    upstream_of = {name: stage.upstream & graph.keys() for name, stage in graph.items()}
    order = TopologicalSorter(upstream_of)
    order.prepare()
    seconds_left = longest_path_s(graph, expected_s)
    started: dict[str, RunningT] = {}
    finished: SimpleQueue[str] = SimpleQueue()
    outcomes: dict[str, str | None] = {}
    ready: list[str] = []

    def running() -> Set[str]:
        return started.keys() - outcomes.keys()

    def has_room(name: str) -> bool:
        families = [graph[other].family for other in running()]
        waits_for_gpu = graph[name].family in gpu_stages and bool(gpu_stages & set(families))
        return len(families) < workers and not waits_for_gpu

    while order.is_active() and all(outcomes.values()):
        ready = sorted([*ready, *order.get_ready()], key=seconds_left.__getitem__, reverse=True)
        for name in filter(has_room, list(ready)):
            ready.remove(name)
            upstream = sorted(upstream_of[name])
            # DVC's word holds only where nothing before it ran
            unchanged = not graph[name].changed
            unchanged &= all(outcomes[before] == CACHED for before in upstream)
            longest_s = max((seconds_left[other] for other in running()), default=0.0)
            how = Start(unchanged, in_background=longest_s > seconds_left[name])
            started[name] = start(graph[name], [started[before] for before in upstream], how)
            started[name].add_done_callback(lambda _, name=name: finished.put(name))

        name = _next_of(finished)
        outcomes[name] = outcome(started[name])
        order.done(name)

    for name in running():
        outcome(started[name])
    return started


def _next_of(finished: "SimpleQueue[str]") -> str:
    """Wait for a stage to finish, and return its name."""
    while True:
        # In short waits: after a signal that a library handles, a long one may stay asleep
        with suppress(Empty):
            return finished.get(timeout=0.5)
