"""Merging the SFT adapter into its base model with ms-swift: a plain Hugging Face folder comes out.

:func:`complete_folder` is shared with the merge after reinforcement learning: whatever tool merged the weights, the
folder serves exactly as its base does, because every file but the weights is the base's own.
"""

import shutil
from pathlib import Path
from typing import Literal

from pydantic import Field

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import atomic_directory, read_json, write_json
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.training.swift_run import run_swift

WEIGHTS = "*.safetensors"
WEIGHT_INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
NEEDED = (CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json")


class MergeConfig(Record):
    """Params section ``merge``."""

    device: Literal["cpu", "cuda"] = Field(description="where weights are added; never guessed")
    dtype: Literal["float32", "bfloat16"] = Field(description="of the merged weights")
    model_type: NonEmpty = Field(description="ms-swift's name of the architecture, e.g. qwen3")
    template: NonEmpty = Field(description="ms-swift's name of the chat template, e.g. qwen3_nothinking")


def swift_export_command(config: MergeConfig, base: Path, adapter: Path, output: Path) -> list[str]:
    """The ``swift export --merge_lora`` call; ``output`` must not exist."""
    flags = {
        "model": base,
        "model_type": config.model_type,
        "template": config.template,
        "adapters": adapter,
        "load_args": "false",  # everything that swift would read from the adapter's args.json is said here
        "merge_lora": "true",
        "torch_dtype": config.dtype,
        "device_map": config.device,
        "output_dir": output,
    }
    return ["swift", "export", *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]


def merge_adapter(config: MergeConfig, base: Path, adapter: Path, work: Path, output: Path) -> None:
    """Merge ``adapter`` into ``base`` and write the whole model folder at once.

    Args:
        config: where and how.
        base: model folder that the adapter was trained on.
        adapter: PEFT folder.
        work: untracked folder for the tool's log.
        output: folder that appears when the model is whole.

    Raises:
        UnavailableError: params name a GPU and there is none.
        ArtifactError: ``base`` or ``adapter`` is not whole, or the merged folder would not serve.
        CommandError: ``swift export`` failed.
    """
    if config.device == "cuda":
        require_gpu("merge", packages=["swift"])
    require_files(base, [CONFIG])
    require_files(adapter, ["adapter_config.json", "adapter_model.safetensors"])
    with atomic_directory(output) as partial:
        partial.rmdir()  # swift export makes the folder itself, and refuses one that exists
        run_swift(swift_export_command(config, base, adapter, partial), work / "merge" / "swift.log", lambda _: None)
        complete_folder(base, partial)


def require_files(folder: Path, names: list[str]) -> None:
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
    require_files(merged, list(NEEDED))
    if not any(merged.glob(WEIGHTS)):
        raise ArtifactError(f"{merged} holds no weights after merging.")
