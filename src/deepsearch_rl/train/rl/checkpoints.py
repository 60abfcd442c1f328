"""Which checkpoints of a run are kept, and from which checkpoint of another run it began."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.records import Record

FORK_FILE = "fork.json"


class KeepConfig(Record):
    """Checkpoints kept beside the best one; each is an adapter with its optimizer, about three times the adapter."""

    last: int = Field(ge=2, description="of the newest steps: the newest of all may be damaged")
    every: int | None = Field(
        ge=1, description="of all multiples of this step, steps / every in all; null: none"
    )


def kept_steps(step: int, bests: Sequence[int], keep: KeepConfig) -> set[int]:
    """Return whose checkpoints are kept after ``step``; ``bests`` has the best step so far after each of the last ones.

    These are the last ``keep.last`` steps, the best that each of them knew, since the newest may
    turn out to be damaged, and the multiples of ``keep.every``: at most 2 x ``keep.last`` + steps /
    ``keep.every``.
    """
    multiples = range(keep.every, step + 1, keep.every) if keep.every else ()
    return {*bests, *range(max(0, step - keep.last + 1), step + 1), *multiples}


def checkpoints(scratch: Path) -> dict[int, list[Path]]:
    """Return the steps that have a checkpoint in a run's scratch folder, with what belongs to each.

    Every engine keeps them below a folder ``checkpoints``, as folders or files that are named by
    the step's number.
    """
    paths_of_step: dict[int, list[Path]] = {}
    for path in sorted(scratch.glob("**/checkpoints/*")):
        if path.name.isdigit():
            paths_of_step.setdefault(int(path.name), []).append(path)

    return paths_of_step


def origin(scratch: Path) -> Mapping[str, Any]:
    """Return ``forked_from`` for the manifest of a run that `deepsearch rl fork` began, nothing for any other."""
    path = scratch / FORK_FILE
    return {"forked_from": read_json(path)} if path.is_file() else {}
