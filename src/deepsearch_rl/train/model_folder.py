"""Model folders in Hugging Face's layout: what makes one whole, and how a merged one serves as its base does."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import read_json, write_json

WEIGHTS = "*.safetensors"
CONFIG = "config.json"
MANIFEST = "manifest.json"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
TRAIN_LOG = "train_log.jsonl"
# In the manifest of SFT's checkpoints: the step with the lowest loss on rows held back; null:
# none was measured
LOWEST_LOSS = "lowest_loss_step"


def weight_files(folder: Path) -> list[Path]:
    """Return the weights of a model folder, one file or several shards in order; raise ArtifactError if none."""
    files = sorted(folder.glob(WEIGHTS))
    if not files:
        raise ArtifactError(f"{folder} holds no model weights; run the stage that makes it first.")
    return files


def require_files(folder: Path, names: Sequence[str]) -> None:
    """Check that a folder holds the named files; raise ArtifactError with those that are missing."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ArtifactError(
            f"{folder} is not whole, {', '.join(missing)} missing; run the stage that makes it first."
        )


def complete_folder(base: Path, merged: Path, adapter: Path) -> None:
    """Give a folder of merged weights the base's tokenizer, chat template and settings, with the cache switched on.

    The manifest is the adapter's, if it has one: it names the training step that was kept, and what
    was trained with.

    A training run leaves ``use_cache: false`` in a model's config, and then every generated token
    recomputes the whole prompt. Raises ArtifactError if both folders miss a file that serving
    needs.
    """
    config = read_json(merged / CONFIG)
    # ms-swift's, of the training and of this machine
    for stale in ("args.json", "README.md"):
        (merged / stale).unlink(missing_ok=True)
    for source in sorted(base.iterdir()):
        of_weights = source.name in (
            CONFIG,
            MANIFEST,
            "model.safetensors.index.json",
        ) or source.match(WEIGHTS)
        if source.is_file() and not of_weights:
            shutil.copyfile(source, merged / source.name)

    write_json(merged / CONFIG, {**config, "use_cache": True})
    if (adapter / MANIFEST).is_file():
        shutil.copyfile(adapter / MANIFEST, merged / MANIFEST)
    require_files(
        merged, [CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    )
    weight_files(merged)


def require_context(folder: Path, needed: Mapping[str, int]) -> None:
    """Raise ConfigError where params ask for longer sequences than a model's positions reach.

    Args:
        folder: a model folder.
        needed: tokens, by the name of the field that asks for them.
    """
    limit = context_limit(read_json(folder / CONFIG))
    for field, tokens in needed.items():
        if limit is not None and tokens > limit:
            raise ConfigError(
                f"{field} is {tokens}, and {folder} reads at most {limit} tokens "
                "(max_position_embeddings of its config.json); lower it."
            )


def context_limit(config: dict[str, Any]) -> int | None:
    """Return the longest sequence that a model's config.json allows; None where it does not say.

    YaRN's factor counts, as Qwen's documentation sets it: beside the positions of pretraining.
    """
    limit = config.get("max_position_embeddings")
    if not isinstance(limit, int):
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    original = rope.get("original_max_position_embeddings")
    if original and rope.get("factor"):
        return max(limit, int(original * rope["factor"]))
    return limit
