"""The ``swift`` calls of every profile, read by ms-swift's own argument parser."""

import re
from pathlib import Path

import pytest
import yaml
from swift.arguments import ExportArguments, SftArguments
from swift.utils.utils import _patch_get_type_hints
from transformers import HfArgumentParser

from deepsearch_rl.train.merge import swift_export_command
from deepsearch_rl.train.merge_config import MergeConfig
from deepsearch_rl.train.sft import SftConfig, swift_sft_command
from tests.gpu_profile.test_params import GPU_PROFILES

PROFILES = (
    "params.yaml",
    "profiles/smoke/params.yaml",
    *(f"profiles/{name}/params.yaml" for name in GPU_PROFILES if name != "search_r1"),
)


def parse(arguments: type, command: list[str]) -> dict[str, object]:
    """The values that swift's parser reads from a command, before it opens any model; every flag must be its own."""
    with _patch_get_type_hints():
        parser = HfArgumentParser([arguments])  # pyright: ignore[reportArgumentType]
    flags = [part for part in command if part.startswith("--")]
    assert [flag for flag in flags if flag not in parser._option_string_actions] == []
    values, unknown = parser.parse_known_args(command[2:])
    assert unknown == []
    return vars(values)


def test_an_adapter_of_the_last_layers_alone_names_them_to_swift(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 12}')
    section = yaml.safe_load((root / "params.yaml").read_text())["sft"] | {"lora_layers": 3}
    command = swift_sft_command(
        SftConfig.model_validate(section), tmp_path, Path("train.jsonl"), Path("work/x"), 7
    )
    pattern = re.compile(str(parse(SftArguments, command)["target_regex"]))
    names = [f"model.layers.{layer}.mlp.up_proj" for layer in range(12)]
    assert [name for name in names if pattern.fullmatch(name)] == names[-3:]


@pytest.mark.parametrize("params", PROFILES)
def test_swift_reads_our_fine_tuning_call_as_we_mean_it(
    root: Path, tmp_path: Path, params: str
) -> None:
    config = SftConfig.model_validate(yaml.safe_load((root / params).read_text())["sft"])
    # Which layers get an adapter depends on how many there are
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 30}')
    folders = (tmp_path, Path("data/x/sft/train.jsonl"), Path("work/x"))
    read = parse(SftArguments, swift_sft_command(config, *folders, 7, Path("work/x/checkpoint-5")))
    assert (read["model"], read["dataset"]) == (
        str(tmp_path),
        ["data/x/sft/train.jsonl"],
    )
    assert read["resume_from_checkpoint"] == "work/x/checkpoint-5"
    assert (read["lora_rank"], read["lora_alpha"], read["lora_dropout"]) == (
        config.lora_rank,
        config.lora_alpha,
        config.lora_dropout,
    )
    assert (read["learning_rate"], read["lr_scheduler_type"]) == (config.learning_rate, "cosine")
    assert (read["per_device_train_batch_size"], read["gradient_accumulation_steps"]) == (
        config.rows_per_forward,
        config.forwards_per_step,
    )
    assert (read["torch_dtype"], read["fp16"], read["bf16"]) == (
        config.dtype,
        False,
        config.dtype == "bfloat16",
    )
    assert (read["packing"], read["attn_impl"], read["max_length"]) == (
        config.packing,
        config.attention,
        config.max_length,
    )
    assert (read["use_cpu"], read["add_version"], read["seed"]) == (
        config.device == "cpu",
        False,
        7,
    )
    assert (read["loss_scale"], read["preserve_thinking"]) == (config.loss_scale, True)
    assert (read["split_dataset_ratio"], read["eval_strategy"]) == (
        config.eval_share,
        "steps" if config.eval_share else "no",
    )
    assert (
        read["save_steps"],
        read["eval_steps"],
        read["save_total_limit"],
        read["logging_steps"],
    ) == (
        config.save_steps,
        config.save_steps,
        config.kept_checkpoints,
        config.log_steps,
    )
    assert (read["use_liger_kernel"], read["report_to"]) == (config.liger_kernel, ["tensorboard"])
    assert (read["logging_dir"], read["per_device_eval_batch_size"]) == (
        "work/x/tensorboard",
        config.rows_per_forward,
    )


@pytest.mark.parametrize("params", PROFILES)
def test_swift_reads_our_merge_call_as_we_mean_it(root: Path, params: str) -> None:
    config = MergeConfig.model_validate(yaml.safe_load((root / params).read_text())["merge"])
    command = swift_export_command(
        config, Path("models/x/base"), Path("models/x/sft_adapter"), Path("models/x/sft")
    )
    read = parse(ExportArguments, command)
    assert (read["merge_lora"], read["load_args"]) == (True, False)
    assert (read["model"], read["adapters"]) == ("models/x/base", ["models/x/sft_adapter"])
    assert (read["output_dir"], read["torch_dtype"]) == ("models/x/sft", config.dtype)


def test_a_flag_that_swift_does_not_know_is_noticed() -> None:
    with pytest.raises(AssertionError, match="lora_rnk"):
        parse(SftArguments, ["swift", "sft", "--lora_rnk", "3"])
