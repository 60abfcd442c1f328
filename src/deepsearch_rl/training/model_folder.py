"""Model folders in Hugging Face's layout: what makes one whole, and how a merged one serves as its base does."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import read_json, write_json

WEIGHTS = "*.safetensors"
WEIGHT_INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
NEEDED = (CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def weight_files(folder: Path) -> list[Path]:
    """The weights of a model folder: one file, or several shards in order.

    Raises:
        ArtifactError: there are none.
    """
    files = sorted(folder.glob(WEIGHTS))
    if not files:
        raise ArtifactError(f"{folder} holds no model weights; run the stage that makes it first.")
    return files


def require_files(folder: Path, names: Sequence[str]) -> None:
    """Check that a folder holds the named files.

    Raises:
        ArtifactError: naming those that are missing.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ArtifactError(f"{folder} is not whole, {', '.join(missing)} missing; run the stage that makes it first.")


def complete_folder(base: Path, merged: Path) -> None:
    """Give a folder of merged weights the base's tokenizer, chat template and settings, with the cache switched on.

    A training run leaves ``use_cache: false`` in a model's config, and then every generated token recomputes the
    whole prompt.

    Raises:
        ArtifactError: a file that serving needs is missing from both.
    """
    merged_config = read_json(merged / CONFIG)
    for stale in ("args.json", "README.md"):
        (merged / stale).unlink(missing_ok=True)
    for source in sorted(base.iterdir()):
        if source.is_file() and source.name not in (CONFIG, WEIGHT_INDEX) and not source.match(WEIGHTS):
            shutil.copyfile(source, merged / source.name)
    write_json(merged / CONFIG, {**merged_config, "use_cache": True})
    require_files(merged, NEEDED)
    weight_files(merged)
