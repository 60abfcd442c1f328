"""`deepsearch experiments`: a profile's experiments, their F1 by model, and the params that differ from their commit's.

`dvc exp show` has a column for every metric and param of every profile, and reads every commit to
list all experiments; this command reads those that have any. Its table is at most 119 characters
wide.
"""

import io
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.experiments.serialize import ExpState
from dvc.utils.flatten import flatten
from rich import box
from rich.console import Console
from rich.table import Column, Table

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.profile import PARAMS, dvc_file, find_profile

MAX_WIDTH = 119
ABSENT = "-"


def read_states(root: Path) -> list[ExpState]:
    """Return the workspace, the newest commit, and every commit with experiments, with what DVC knows of them.

    Raises:
        ConfigError: DVC cannot read the project.
    """
    try:
        with Repo(str(root)) as repo:
            commits = list(repo.experiments.ls(all_commits=True))
            return repo.experiments.show(revs=["HEAD", *commits])
    except DvcException as error:
        raise ConfigError(f"DVC cannot list experiments: {error}") from error


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """A revision's line of the table: its name, when it was made, F1 by model, and what differs from its commit."""

    name: str
    made: str
    f1: Mapping[str, float]
    changes: tuple[str, ...]


def read_result(
    state: ExpState, commit: ExpState, profile: str, name: str, status: str = ""
) -> ExperimentResult:
    """Return what a revision has for a profile; ``status`` of an experiment that did not end well comes first."""
    params = _values(state, "params", dvc_params(profile))
    dataset = params.get("rl", {}).get("dataset")
    made = state.data.timestamp if state.data else None

    changes = [status] if status else []
    values_before = flatten(_values(commit, "params", dvc_params(profile)))
    for field, value in flatten(params).items():
        # A field that the commit does not have was added by other code, not by the experiment
        if values_before.get(field, value) != value:
            changes.append(f"{field}={value}")

    metrics = _values(state, "metrics", f"reports/{profile}/metrics.json")
    return ExperimentResult(
        name=name,
        made=made.strftime("%Y-%m-%d %H:%M") if made else ABSENT,
        f1=metrics.get("f1", {}).get(dataset, {}),
        changes=tuple(changes),
    )


def dvc_params(profile: str) -> str:
    """Return the path of a profile's params.yaml, as DVC names it."""
    return Path(dvc_file(profile)).with_name(PARAMS).as_posix()


def read_results(states: list[ExpState], profile: str) -> Iterator[ExperimentResult]:
    """Yield every revision's result, experiments indented below their commit."""
    workspace, head, *_ = states
    yield read_result(workspace, head, profile, "workspace")

    for commit in states[1:]:
        yield read_result(commit, commit, profile, f"{commit.rev[:7]} {commit.name or ''}")
        for experiment in commit.experiments or ():
            status = experiment.executor.state if experiment.executor else ""
            state = experiment[0]
            name = f"  {state.name or state.rev[:7]}"
            yield read_result(state, commit, profile, name, "" if status == "success" else status)


def _values(state: ExpState, kind: str, path: str) -> Mapping[str, Any]:
    files: Mapping[str, Mapping[str, Any]] = getattr(state.data, kind, {})
    return files.get(path, {}).get("data") or {}


def render(results: Iterable[ExperimentResult], models: Iterable[str], width: int) -> str:
    """Return the table as text of at most ``width`` characters a line; many changes take several lines."""
    models = list(models)
    columns = [Column(name, no_wrap=True) for name in ("experiment", "made", *models)]
    # The only column that may be folded: figures and names are read across
    columns.append(Column("differs in", overflow="fold"))
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for result in results:
        cells = [result.name, result.made]
        for model in models:
            cells.append(f"{result.f1[model]:.3f}" if model in result.f1 else ABSENT)
        table.add_row(*cells, ", ".join(result.changes))

    console = Console(width=width, color_system=None, file=io.StringIO())
    with console.capture() as text:
        console.print(table)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def show_experiments(profile: str) -> str:
    """Return the table of a profile's experiments; raises as :func:`find_profile` and :func:`read_states`."""
    models = find_profile(Path(), profile).value("models")
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    table = render(read_results(read_states(Path()), profile), models, width)
    return f"F1 on the in-domain set, profile {profile}\n{table}"
