"""The graph of a profile, read from DVC itself: its stages, what each builds on, and what DVC calls changed."""

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo, lock_repo
from dvc.repo.graph import build_graph
from dvc.stage import PipelineStage

from deepsearch_rl.core.dvc_lock import LOCK_FILES, blocking_pids, wait_for_users
from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.core.profile import dvc_file, require_profile
from flows.locks import say_waiting

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the graph.

    ``address`` is what `dvc repro` takes (``rl@sft``, or ``profiles/smoke/dvc.yaml:rl@sft``),
    ``upstream`` the names of the stages whose outputs it reads, ``outputs`` its files and folders
    from the project's root, ``changed`` whether DVC would run it if nothing before it ran.
    """

    name: str
    address: str
    upstream: frozenset[str]
    outputs: tuple[str, ...]
    changed: bool

    @property
    def family(self) -> str:
        """The stage's name without its matrix value: its section in params.yaml."""
        return self.name.partition("@")[0]


# Stage name -> stage, upstream stages first
Graph = dict[str, Stage]


def read_graph(root: Path, profile: str, say: Callable[[str], object] = _LOG.warning) -> Graph:
    """Read a profile's graph and its state from DVC.

    While another DVC works on the graph's files, nobody knows their state: it is waited for, and
    ``say`` is called with a sentence that names it.

    Raises:
        UnknownNameError: there is no such profile.
        ConfigError: DVC refuses dvc.yaml or params.yaml.
    """
    require_profile(root, profile)
    while True:
        try:
            return _read_graph(root, dvc_file(profile))
        except LockError as error:
            on_wait = functools.partial(say_waiting, say, "works on files of the graph")
            wait_for_users(root / LOCK_FILES[0], blocking_pids(str(error)), on_wait)


def read_targets(
    root: Path,
    profile: str,
    targets: tuple[str, ...],
    say: Callable[[str], object] = _LOG.warning,
) -> Graph:
    """Read what the targets of a profile need (:func:`select`).

    Raises as :func:`read_graph` and :func:`select`, and ConfigError where there are no targets and
    the profile's whole graph cannot run.
    """
    return select(read_graph(root, profile, say), targets)


def _read_graph(root: Path, dvc_yaml: str) -> Graph:
    """Read the graph of a dvc.yaml; raise LockError while another DVC works on its files."""
    try:
        # DVC's addresses start at the working directory.
        with chdir(root), Repo(_wait_for_lock=True) as repo, lock_repo(repo):
            # Others are `*.dvc` files, which run nothing
            collected = repo.stage.collect(dvc_yaml)
            stages = [stage for stage in collected if isinstance(stage, PipelineStage)]
            # DVC's edges point upstream; its own index reads all profiles
            upstream = build_graph(stages).successors
            graph: Graph = {}
            for stage in stages:
                name = str(stage.name)
                graph[name] = Stage(
                    name=name,
                    address=str(stage.addressing),
                    upstream=frozenset(str(before.name) for before in upstream(stage)),
                    outputs=tuple(Path(str(out)).as_posix() for out in stage.outs),
                    changed=bool(stage.status()),
                )
    except LockError:
        raise
    except DvcException as error:
        raise ConfigError(f"DVC cannot read {dvc_yaml}: {error}") from error

    return _upstream_first(graph)


def has_remote(root: Path) -> bool:
    """Return whether DVC has a default remote, by which artifacts travel."""
    with Repo(str(root)) as repo:
        return bool(repo.config["core"].get("remote"))


def longest_path_s(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return for every stage the seconds from its start to the end of the longest chain that follows from it.

    ``seconds`` are those of the stages' last runs; a stage without any counts as the mean of the
    others, or as one.
    """
    unknown = fmean(seconds.values()) if seconds else 1.0
    longest: dict[str, float] = {}

    # From the end: the stages that follow from one have their figure before it
    for stage in reversed(graph.values()):
        longest[stage.name] = longest.get(stage.name, 0.0) + seconds.get(stage.name, unknown)
        for before in stage.upstream:
            longest[before] = max(longest.get(before, 0.0), longest[stage.name])

    return longest


def _upstream_first(stages: Graph) -> Graph:
    ordered: Graph = {}

    def visit(name: str) -> None:
        for before in sorted(stages[name].upstream - ordered.keys()):
            visit(before)
        ordered[name] = stages[name]

    for name in stages:
        if name not in ordered:
            visit(name)

    return ordered


def select(graph: Graph, targets: tuple[str, ...]) -> Graph:
    """Return the part of the graph that the targets need, with the targets; all of it where there are no targets.

    A target is a stage (``rl@sft``) or all stages of a family (``rl``).

    Raises:
        UnknownNameError: a target is neither.
    """
    if not targets:
        return graph
    names: set[str] = set()

    for target in targets:
        matches = {stage.name for stage in graph.values() if target in (stage.name, stage.family)}
        if not matches:
            families = {stage.family for stage in graph.values()}
            raise UnknownNameError("stage", target, graph.keys() | families)

        names |= matches

    # From the end: what a stage needs comes before it, so one pass finds all
    for stage in reversed(graph.values()):
        if stage.name in names:
            names |= stage.upstream

    return {name: stage for name, stage in graph.items() if name in names}
