"""Merging an adapter into its base, with a proof that the merged model is the trained one.

Two stages do it in the same way: ``merge`` with the adapter of SFT, ``unsloth_merge`` with that of
RL. They differ in what they merge, and in the environment that they run in (``python.sft``,
``python.rl``), whose library is the usual backend:

    swift      ``swift export --merge_lora`` of ms-swift, which trained the SFT adapter
    peft       adds the adapter to the base in the base's own 16- or 32-bit weights
    unsloth    does the same from its own loader (GPU), ``save_pretrained_merged(...,
               save_method="merged_16bit")``

None ever merges into a base that was loaded in 4 bits, although the adapter may have been trained
beside one: the rounded base would be kept. :mod:`.proof` compares the merged folder with base and
adapter, whichever backend wrote it.
"""

import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_directory, read_json, write_json
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.train.merge_config import MergeConfig
from deepsearch_rl.train.merge_proof import (
    answer_unmerged,
    load_model,
    logprobs_of_new_process,
    require_trained_model,
)
from deepsearch_rl.train.model_folder import (
    ADAPTER_FILES,
    CONFIG,
    complete_folder,
    require_files,
)
from deepsearch_rl.train.swift_run import run_swift, swift_command


def merge_adapter(
    config: MergeConfig, start: Path, adapter: Path, work: Path, output: Path
) -> None:
    """Merge a PEFT folder into the model folder ``start``, check it, and write the whole folder at once.

    The log of ms-swift goes to ``work``.

    Raises:
        UnavailableError: params name a GPU and there is none.
        ArtifactError: ``start`` or ``adapter`` is not whole, or the merged folder would not serve.
        ConfigError: ``start`` holds quantized weights.
        CommandError: ``swift export``, or the process that loads the merged folder, failed.
        CheckFailedError: the merged model is another one than base and adapter; nothing is kept.
    """
    if config.device == "cuda":
        packages = {"swift": ["swift"], "peft": [], "unsloth": ["unsloth"]}
        require_gpu(f"a merge by {config.backend}", packages=packages[config.backend])
    require_files(start, [CONFIG])
    require_files(adapter, ADAPTER_FILES)

    if "quantization_config" in read_json(start / CONFIG):
        raise ConfigError(
            f"{start} holds quantized weights; merge into the 16-bit model that they were made from."
        )

    unmerged = answer_unmerged(config, start, adapter)
    # A merge that fails its proof leaves no folder.
    with atomic_directory(output) as partial:
        match config.backend:
            case "swift":
                _merge_by_swift(config, start, adapter, work / "swift.log", partial)
            case "peft":
                model: Any = PeftModel.from_pretrained(load_model(start, config), adapter)
                model.merge_and_unload().save_pretrained(partial)
            case "unsloth":
                _merge_by_unsloth(config, start, adapter, partial)

        complete_folder(start, partial, adapter)
        merged = logprobs_of_new_process(partial, config, unmerged.answers)
        require_trained_model(merged, unmerged.trained, unmerged.base, config.tolerance)


def _merge_by_swift(
    config: MergeConfig, start: Path, adapter: Path, log: Path, output: Path
) -> None:
    # Swift export makes the folder itself, and refuses one that exists
    output.rmdir()
    run_swift(swift_export_command(config, start, adapter, output), log)


def _merge_by_unsloth(config: MergeConfig, start: Path, adapter: Path, output: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="deepsearch-") as scratch:
        local = shutil.copytree(adapter, Path(scratch, "adapter"))

        # Unsloth loads the base that this file names.
        settings = read_json(local / ADAPTER_FILES[0])
        settings["base_model_name_or_path"] = str(start.resolve())
        write_json(local / ADAPTER_FILES[0], settings)

        loader = import_module("unsloth").FastLanguageModel
        model, tokenizer = loader.from_pretrained(**unsloth_load_arguments(local, config))
        model.save_pretrained_merged(tokenizer=tokenizer, **unsloth_save_arguments(output))


def swift_export_command(
    config: MergeConfig, start: Path, adapter: Path, output: Path
) -> list[str]:
    """Return the ``swift export --merge_lora`` call; ``output`` must not exist."""
    flags = {
        "model": start,
        "model_type": config.model_type,
        "template": config.template,
        "adapters": adapter,
        # All that swift would read from the adapter's args.json is given here
        "load_args": False,
        "merge_lora": True,
        "torch_dtype": config.dtype,
        "device_map": config.device,
        "output_dir": output,
    }
    return swift_command("export", flags)


def unsloth_load_arguments(adapter: Path, config: MergeConfig) -> dict[str, Any]:
    """Return the keyword arguments of ``unsloth.FastLanguageModel.from_pretrained``."""
    return {
        "model_name": str(adapter),
        "max_seq_length": config.max_sequence_tokens,
        "dtype": getattr(torch, config.dtype),
        "load_in_4bit": False,
    }


def unsloth_save_arguments(folder: Path) -> dict[str, Any]:
    """Return the keyword arguments of the model's ``save_pretrained_merged``, without ``tokenizer``."""
    return {"save_directory": str(folder), "save_method": "merged_16bit"}
