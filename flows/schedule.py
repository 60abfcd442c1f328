"""Which stage of the graph starts when: two side by side, the one with the longest way to the end first."""

from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from graphlib import TopologicalSorter
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from flows.graph import Graph, Stage, longest_path_s
from flows.stage_run import CACHED

WORKERS = 2


class Running(Protocol):
    """A stage that was started: a future of Prefect or of the standard library."""

    def add_done_callback(self, fn: Callable[[Any], None], /) -> None:
        """Call ``fn`` when the stage has ended."""


RunningT = TypeVar("RunningT", bound=Running)
# Starts a stage, after those that it builds on; True: it and they are unchanged, so there is
# nothing to run
StartStage = Callable[[Stage, list[RunningT], bool], RunningT]


def run_graph(
    graph: Graph,
    start: StartStage[RunningT],
    outcome: Callable[[RunningT], str | None],
    gpu_stages: Set[str],
    last_runs_s: Mapping[str, float],
    workers: int = WORKERS,
) -> dict[str, RunningT]:
    """Run every stage after those that it needs, and return all that were started; after a failure no more start.

    ``outcome`` waits for a stage that has ended and returns how (:mod:`flows.stage_run`), None
    where it failed. Of the stages that could start, the one with the longest way to the end is
    first, by the times of the last runs. A stage that would only wait for another one's GPU leaves
    its place to others.
    """
    # A stage outside of the selected part is up to date, so that nobody waits for it
    upstream_of = {name: stage.upstream & graph.keys() for name, stage in graph.items()}
    order = TopologicalSorter(upstream_of)
    order.prepare()
    seconds_left = longest_path_s(graph, last_runs_s)
    started: dict[str, RunningT] = {}
    finished: SimpleQueue[str] = SimpleQueue()
    outcomes: dict[str, str | None] = {}
    ready: list[str] = []

    def has_room(name: str) -> bool:
        families = [graph[other].family for other in started.keys() - outcomes.keys()]
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
            started[name] = start(graph[name], [started[before] for before in upstream], unchanged)
            started[name].add_done_callback(lambda _, name=name: finished.put(name))

        name = _next_of(finished)
        outcomes[name] = outcome(started[name])
        order.done(name)

    for name in started.keys() - outcomes.keys():
        outcome(started[name])
    return started


def _next_of(finished: "SimpleQueue[str]") -> str:
    """Wait for a stage to finish, and return its name."""
    while True:
        # In short waits: after a signal that a library handles, a long one may stay asleep
        with suppress(Empty):
            return finished.get(timeout=0.5)
