"""Which of SFT's checkpoints goes on: the last one, or the best one by loss or by rollouts.

The choice by rollouts is in :mod:`deepsearch_rl.training.choose_checkpoint.on_dev`: the agent's
libraries take seconds to load, and the other ways to choose need none of them.
"""

import shutil
from pathlib import Path
from typing import Literal

from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import (
    atomic_directory,
    read_json,
    write_json,
)
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.training.runs.model_folder import (
    ADAPTER_FILES,
    LOWEST_LOSS,
    MANIFEST,
    TRAIN_LOG,
)


class DevQuestions(Record):
    """Section ``choose_checkpoint.dev``: the rollouts that checkpoints are compared by."""

    dataset: NonEmpty
    questions: int = Field(ge=1, description="the first so many of the dev split")
    samples: int = Field(ge=1, description="answers per question")
    temperature: float = Field(ge=0)


class ChooseCheckpointConfig(Record):
    """Params section ``choose_checkpoint``."""

    by: Literal["last", "loss", "dev"] = Field(
        description="the last one; lowest loss on the rows held back; best F1 of rollouts on dev"
    )
    dev: DevQuestions = Field(description="for dev")


def read_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the adapters that `sft` wrote, by step, in order; raise ArtifactError if there is none."""
    checkpoints: dict[int, Path] = {}
    for path in folder.glob("*"):
        if path.name.isdecimal():
            checkpoints[int(path.name)] = path

    if not checkpoints:
        raise ArtifactError(f"{folder} has no checkpoints to choose from; run the stage sft again.")
    # By number: 100 comes after 20
    return dict(sorted(checkpoints.items()))


def choose_without_rollouts(by: Literal["last", "loss"], checkpoints: Path, output: Path) -> int:
    """Write the last adapter of a folder, or the one with the lowest loss, to ``output``; return its step.

    Where training ended before its first evaluation, the lowest loss is that of the last one.

    Raises:
        ArtifactError: there is no checkpoint, or the one with the lowest loss is gone.
        ConfigError: no loss was measured.
    """
    adapters = read_checkpoints(checkpoints)
    best = max(adapters)
    manifest = read_json(checkpoints / MANIFEST)

    if by == "loss":
        if LOWEST_LOSS not in manifest:
            raise ConfigError(
                "choose_checkpoint.by is 'loss', and sft held no rows back to measure it: set "
                "sft.eval_share above 0, or choose by last or dev."
            )
        best = manifest[LOWEST_LOSS] or best

    if best not in adapters:
        raise ArtifactError(
            f"{checkpoints} does not hold step {best}, which had the lowest loss; run the stage sft again."
        )

    with atomic_directory(output) as partial:
        copy_adapter(adapters[best], partial)
        shutil.copyfile(checkpoints / TRAIN_LOG, partial / TRAIN_LOG)
        write_json(partial / MANIFEST, {**manifest, "best_step": best})

    return best


def copy_adapter(adapter: Path, folder: Path) -> None:
    """Copy the files of an adapter into a folder."""
    for name in ADAPTER_FILES:
        shutil.copyfile(adapter / name, folder / name)
