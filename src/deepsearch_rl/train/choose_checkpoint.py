"""Which of SFT's checkpoints goes on: the last one, or the best one by loss or by rollouts.

The choice by rollouts is in :mod:`deepsearch_rl.train.choose_on_dev`: the agent's
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
from deepsearch_rl.train.model_folder import (
    ADAPTER_FILES,
    LOWEST_LOSS,
    MANIFEST,
    TRAIN_LOG,
)

# Settings of PEFT under which an adapter does more than add alpha / rank (or its root) times a
# product
_NOT_PROPORTIONAL = ("use_dora", "modules_to_save", "bias", "lora_bias", "trainable_token_indices")


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
    interpolation: float = Field(
        gt=0,
        le=1,
        description="share of the way from the base to the fine-tuned weights; below 1 less is forgotten",
    )


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


def choose_without_rollouts(
    by: Literal["last", "loss"], interpolation: float, checkpoints: Path, output: Path
) -> int:
    """Write the last adapter of a folder, or the one with the lowest loss, to ``output``; return its step.

    Where training ended before its first evaluation, the lowest loss is that of the last one.

    Raises:
        ArtifactError: there is no checkpoint, or the one with the lowest loss is gone.
        ConfigError: no loss was measured; and as :func:`copy_adapter`.
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
        copy_adapter(adapters[best], partial, interpolation)
        shutil.copyfile(checkpoints / TRAIN_LOG, partial / TRAIN_LOG)
        write_json(partial / MANIFEST, {**manifest, "best_step": best})

    return best


def copy_adapter(adapter: Path, folder: Path, interpolation: float) -> None:
    """Copy a LoRA adapter into a folder, with its change of the base scaled by ``interpolation``, in (0, 1].

    The scaled adapter is the model that lies this share of the way from the base to the fine-tuned
    weights. What fine-tuning taught survives it, and less of what the base could do is forgotten
    (WiSE-FT, arXiv 2109.01903).

    Raises ConfigError for an adapter whose change is not proportional to its alpha.
    """
    for name in ADAPTER_FILES:
        shutil.copyfile(adapter / name, folder / name)
    if interpolation == 1:
        return

    path = folder / ADAPTER_FILES[0]
    settings = read_json(path)
    for name in _NOT_PROPORTIONAL:
        if settings.get(name) not in (None, False, [], "none"):
            raise ConfigError(
                f"{adapter} has {name}, which cannot be scaled with the adapter: set "
                "choose_checkpoint.interpolation to 1."
            )

    settings["lora_alpha"] *= interpolation
    alphas: dict[str, float] = settings.get("alpha_pattern") or {}
    settings["alpha_pattern"] = {name: alpha * interpolation for name, alpha in alphas.items()}
    write_json(path, settings)
