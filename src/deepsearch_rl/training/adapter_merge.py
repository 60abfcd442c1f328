"""Merging the adapter that reinforcement learning made, and proving that the merged model is the trained one.

Backends: ``peft`` adds the adapter to the base in the base's own 16- or 32-bit weights; ``unsloth`` (GPU) does the
same from its own loader, ``save_pretrained_merged(..., save_method="merged_16bit")``. Neither ever merges into a base
that was loaded in 4 bits, although the adapter may have been trained beside one: the rounded base would be kept.
"""

import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from pydantic import Field
from transformers import AutoModelForCausalLM, AutoTokenizer

from deepsearch_rl.errors import ConfigError
from deepsearch_rl.files import atomic_directory, read_json, write_json
from deepsearch_rl.records import Record
from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.training.greedy import QUESTIONS, fixed_prompts, greedy_answers, require_same_answers
from deepsearch_rl.training.model_folder import ADAPTER_FILES, CONFIG, complete_folder, require_files

MANIFEST = "manifest.json"


class AdapterMergeConfig(Record):
    """Params section ``unsloth_merge``."""

    backend: Literal["peft", "unsloth"]
    dtype: Literal["float32", "bfloat16"] = Field(description="of the base and of the merged weights")
    max_sequence_tokens: int = Field(ge=1, description="context that unsloth prepares its model for")
    prompts: int = Field(ge=1, le=len(QUESTIONS), description="fixed prompts that both models answer greedily")
    max_tokens: int = Field(ge=1, description="longest of those answers")
    tie_tolerance: float = Field(ge=0, description="logit difference at which answers may part; 0 in float32")


def unsloth_load_arguments(adapter: Path, config: AdapterMergeConfig) -> dict[str, Any]:
    """Keyword arguments of ``unsloth.FastLanguageModel.from_pretrained``."""
    return {
        "model_name": str(adapter),
        "max_seq_length": config.max_sequence_tokens,
        "dtype": getattr(torch, config.dtype),
        "load_in_4bit": False,
    }


def unsloth_save_arguments(folder: Path) -> dict[str, Any]:
    """Keyword arguments of the model's ``save_pretrained_merged``, without ``tokenizer``."""
    return {"save_directory": str(folder), "save_method": "merged_16bit"}


def merge_rl_adapter(config: AdapterMergeConfig, start: Path, adapter: Path, output: Path) -> None:
    """Merge, check, and write the whole model folder at once.

    Args:
        config: how, and what is checked.
        start: model folder that RL started from.
        adapter: PEFT folder that RL made.
        output: folder that appears when the merged model has answered as the unmerged one.

    Raises:
        UnavailableError: the backend is ``unsloth`` and there is no GPU.
        ArtifactError: ``start`` or ``adapter`` is not whole.
        ConfigError: ``start`` holds quantized weights.
        CheckFailedError: the merged model answers differently; nothing is kept.
    """
    if config.backend == "unsloth":
        require_gpu("unsloth_merge with the unsloth backend", packages=["unsloth"])
    require_files(start, [CONFIG])
    require_files(adapter, ADAPTER_FILES)
    if "quantization_config" in read_json(start / CONFIG):
        raise ConfigError(f"{start} holds quantized weights; merge into the 16-bit model that they were made from.")
    prompts = fixed_prompts(AutoTokenizer.from_pretrained(start), config.prompts)
    unmerged: Any = PeftModel.from_pretrained(_load(start, config), adapter)
    expected = greedy_answers(unmerged, prompts, config.max_tokens)
    with atomic_directory(output) as partial:
        if config.backend == "unsloth":
            del unmerged  # its memory is needed
            _merge_with_unsloth(config, start, adapter, partial)
        else:
            unmerged.merge_and_unload().save_pretrained(partial)
        complete_folder(start, partial)
        if (adapter / MANIFEST).is_file():  # names the training step that was kept
            shutil.copyfile(adapter / MANIFEST, partial / MANIFEST)
        require_same_answers(
            expected, greedy_answers(_load(partial, config), prompts, config.max_tokens), config.tie_tolerance
        )


def _load(folder: Path, config: AdapterMergeConfig) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, config.dtype))
    return model.to("cuda") if config.backend == "unsloth" else model


def _merge_with_unsloth(config: AdapterMergeConfig, start: Path, adapter: Path, output: Path) -> None:
    loader = import_module("unsloth").FastLanguageModel
    with tempfile.TemporaryDirectory(prefix="deepsearch-") as scratch:
        local = Path(scratch, "adapter")
        shutil.copytree(adapter, local)
        settings = read_json(local / "adapter_config.json")  # unsloth loads the base that this file names
        write_json(local / "adapter_config.json", {**settings, "base_model_name_or_path": str(start.resolve())})
        model, tokenizer = loader.from_pretrained(**unsloth_load_arguments(local, config))
        model.save_pretrained_merged(tokenizer=tokenizer, **unsloth_save_arguments(output))
