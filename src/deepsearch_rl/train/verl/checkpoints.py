"""veRL's checkpoints of a run: the newest whole one, which a start goes on from, and one as weights.

    python -m deepsearch_rl.train.verl.checkpoints merge --backend fsdp --local_dir ... --target_dir ...

veRL goes on from the step that its tracker file names, whatever the folder holds. Its ``model_merger``
(0.9.1) makes bfloat16 of all weights, whatever they are; the command above is the merger without
that rounding.
"""

import importlib
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.train.rl.rl_config import RlConfig

_LOG = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"

PREFIX = "global_step_"

PARTS = ("model", "optim", "extra_state")

Sharding = Literal["fsdp", "megatron"]


def step_folder(step: int) -> str:
    """Return the name of a step's folder."""
    return f"{PREFIX}{step}"


def go_back_to_whole(checkpoints: Path, config: RlConfig) -> None:
    """Have veRL go on from the newest whole checkpoint; without one it begins at the start model.

    Those that are not whole are removed, so that none is taken for the best one. Raise ConfigError
    where they were saved by another number of processes, whose shards veRL cannot load.
    """
    steps = _whole_steps(checkpoints, config)
    tracker = checkpoints / TRACKER
    if not tracker.is_file():
        return

    named = _named_step(tracker)
    # veRL writes the file in place: a kill can leave it empty
    newest = max((step for step in steps if named is None or step <= named), default=None)
    if newest is None:
        _LOG.warning("%s has no whole checkpoint, so that training begins anew", checkpoints)
        tracker.unlink()
    elif newest != named:
        _point_to(tracker, newest)


def keep_only(checkpoints: Path, best: int, newest: int) -> None:
    """Remove what veRL has saved, but the best step's checkpoint and the ``newest``, which training goes on from."""
    tracker = checkpoints / TRACKER
    named = _named_step(tracker) if tracker.is_file() else None
    # A step above that is still being written
    saved = sorted(step for step in _steps(checkpoints) if named is not None and step <= named)
    for step in saved[:-newest]:
        if step != best:
            shutil.rmtree(checkpoints / step_folder(step))


def _steps(checkpoints: Path) -> list[int]:
    """Return the steps that have a folder."""
    names = (path.name.removeprefix(PREFIX) for path in checkpoints.glob(f"{PREFIX}*/"))
    return sorted(int(name) for name in names if name.isdecimal())


def _whole_steps(checkpoints: Path, config: RlConfig) -> list[int]:
    """Return the steps whose checkpoint is whole; say and remove the others."""
    verl = config.backend.verl
    assert verl is not None
    processes = verl.nodes * verl.gpus_per_node
    models = ("actor", "critic") if verl.critic else ("actor",)

    problems: dict[int, str | None] = {}
    for step in _steps(checkpoints):
        problems[step] = _problem(checkpoints / step_folder(step), models, processes)

    # Only now: shards of another number of processes are refused before anything is removed
    whole: list[int] = []
    for step, problem in problems.items():
        if problem is None:
            whole.append(step)
            continue
        folder = checkpoints / step_folder(step)
        _LOG.warning("%s is not whole (%s missing or empty) and is removed", folder, problem)
        shutil.rmtree(folder)

    return whole


def _named_step(tracker: Path) -> int | None:
    """Return the step that a tracker file names; None if it names none."""
    text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _problem(folder: Path, models: Sequence[str], processes: int) -> str | None:
    """Return the first file of a checkpoint that is missing or empty."""
    for model in models:
        others: set[str] = set()
        for path in (folder / model).glob("model_world_size_*_rank_*.pt"):
            others.add(path.name.split("_world_size_")[1].split("_rank_")[0])

        if others and str(processes) not in others:
            raise ConfigError(
                f"{folder} was saved by {', '.join(sorted(others))} processes, and rl.backend.verl has nodes x "
                f"gpus_per_node = {processes}: train on as many, or delete {folder.parent} to begin anew."
            )

        for part in PARTS:
            for rank in range(processes):
                path = folder / model / f"{part}_world_size_{processes}_rank_{rank}.pt"
                if not path.is_file() or path.stat().st_size == 0:
                    return str(path.relative_to(folder))
    return None


def _point_to(tracker: Path, step: int) -> None:
    _LOG.warning("training goes on from step %d", step)
    with atomic_file(tracker) as partial:
        partial.write_text(str(step), encoding="utf-8")


def merge_command(
    python: str, sharding: Sharding, actor: Path, target: Path, *, rounds: bool
) -> list[str]:
    """Return the call that merges the shards of a checkpoint's ``actor`` folder into ``target``.

    ``rounds``: bfloat16 whatever the weights are, as veRL's merger does by itself.
    """
    merger = "verl.model_merger" if rounds else "deepsearch_rl.train.verl.checkpoints"
    command = [python, "-u", "-m", merger, "merge", "--backend", sharding]
    return [*command, "--local_dir", str(actor), "--target_dir", str(target)]


def main() -> None:
    """Merge a checkpoint in the dtype that it has."""
    import torch  # noqa: PLC0415 - for this command alone

    tensor: Any = torch.Tensor
    tensor.bfloat16 = lambda weights: weights
    merger: Any = importlib.import_module("verl.model_merger.__main__")
    merger.main()


if __name__ == "__main__":
    main()
