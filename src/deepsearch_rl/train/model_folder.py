"""Model folders in Hugging Face's layout: what makes one whole, and how a merged one serves as its base does."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import read_json, write_json
from deepsearch_rl.core.model_config import CONFIG

WEIGHTS = "*.safetensors"
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


def layers_pattern(layers: int, count: int) -> str:
    """Return the regular expression of all matrices in the last ``layers`` of ``count`` layers, as PEFT takes it."""
    names = "|".join(map(str, range(max(0, count - layers), count)))
    return rf".*\.layers\.({names})\..*_proj"


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
