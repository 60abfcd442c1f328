"""Merging the SFT adapter into its base model with ms-swift, which makes a plain Hugging Face folder."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from deepsearch_rl.files import atomic_directory
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.training.model_folder import ADAPTER_FILES, CONFIG, complete_folder, require_files
from deepsearch_rl.training.swift_run import run_swift, swift_command


class MergeConfig(Record):
    """Params section ``merge``."""

    device: Literal["cpu", "cuda"] = Field(description="where weights are added; never guessed")
    dtype: Literal["float32", "bfloat16"] = Field(description="of the merged weights")
    model_type: NonEmpty = Field(description="ms-swift's name of the architecture, e.g. qwen3")
    template: NonEmpty = Field(description="ms-swift's name of the chat template, e.g. qwen3_nothinking")


def swift_export_command(config: MergeConfig, base: Path, adapter: Path, output: Path) -> list[str]:
    """Return the ``swift export --merge_lora`` call; ``output`` must not exist."""
    flags = {
        "model": base,
        "model_type": config.model_type,
        "template": config.template,
        "adapters": adapter,
        "load_args": False,  # all that swift would read from the adapter's args.json is given here
        "merge_lora": True,
        "torch_dtype": config.dtype,
        "device_map": config.device,
        "output_dir": output,
    }
    return swift_command("export", flags)


def merge_adapter(config: MergeConfig, base: Path, adapter: Path, work: Path, output: Path) -> None:
    """Merge a PEFT folder into the model folder that it was trained on and write the whole model folder at once.

    The tool's log goes to ``work``.

    Raises:
        UnavailableError: params name a GPU and there is none.
        ArtifactError: ``base`` or ``adapter`` is not whole, or the merged folder would not serve.
        CommandError: ``swift export`` failed.
    """
    if config.device == "cuda":
        require_gpu("merge", packages=["swift"])
    require_files(base, [CONFIG])
    require_files(adapter, ADAPTER_FILES)
    with atomic_directory(output) as partial:
        partial.rmdir()  # swift export makes the folder itself, and refuses one that exists
        run_swift(swift_export_command(config, base, adapter, partial), work / "merge" / "swift.log")
        complete_folder(base, partial)
