"""The ``vllm serve`` call, read by vLLM's own parser, and the Unsloth calls, bound to the signatures in its source.

Both live in an environment of their own, made by ``make check-gpu-calls``. Unsloth cannot be
imported without a GPU, so its signatures are read from the source that would run.
"""

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepsearch_rl.serve.adapters import Adapter
from deepsearch_rl.serve.launch import VllmConfig, adapter_flags, vllm_serve_command
from deepsearch_rl.train.art.service import lora_serve_command
from deepsearch_rl.train.art.unsloth import unsloth_settings
from deepsearch_rl.train.merge import (
    MergeConfig,
    unsloth_load_arguments,
    unsloth_save_arguments,
)
from deepsearch_rl.train.rl.rl_config import RlConfig
from tests.gpu_profile.check_environment import ENVIRONMENT, PYTHON

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"{ENVIRONMENT} is not built; run `make check-gpu-calls`"
    ),
]
READ_SERVE_FLAGS = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve = ServeSubcommand().subparser_init(parser.add_subparsers())
flags = [part for part in sys.argv[1:] if part.startswith("--")]
values, unknown = parser.parse_known_args(sys.argv[1:])
unknown += [flag for flag in flags if flag not in serve._option_string_actions]
plain = {name: value for name, value in vars(values).items() if isinstance(value, (str, int, float, bool))}
print(json.dumps({"unknown": unknown, "values": plain}))
"""


def read_by_vllm(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1"}
    call = [PYTHON, "-c", READ_SERVE_FLAGS, *command[1:]]
    result = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def gpu(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "profiles/gpu/params.yaml").read_text())


def test_vllm_reads_our_serve_call_as_we_mean_it(gpu: dict[str, Any]) -> None:
    config = VllmConfig.model_validate(gpu["serving"]["vllm"])
    read = read_by_vllm(
        [*vllm_serve_command(Path("models/gpu/sft"), config, 8123), "--no-such-flag"]
    )
    assert read["unknown"] == ["--no-such-flag", "--no-such-flag"]
    expected = {
        "model_tag": "models/gpu/sft",
        "host": "127.0.0.1",
        "port": 8123,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enforce_eager": config.enforce_eager,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "generation_config": "vllm",
        "return_tokens_as_token_ids": True,
        "enable_lora": False,
        "seed": config.seed,
    }
    assert {name: read["values"].get(name) for name in expected} == expected


def test_vllm_reads_rls_serve_call_as_we_mean_it(gpu: dict[str, Any]) -> None:
    config = RlConfig.model_validate(gpu["rl"])
    _, *switches, program = lora_serve_command(Path("models/gpu/sft"), config, 8192, 0, 8123)[:4]
    assert (switches, program) == (
        ["VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", "VLLM_SERVER_DEV_MODE=1"],
        ".venvs/serve/bin/vllm",
    )
    read = read_by_vllm(lora_serve_command(Path("models/gpu/sft"), config, 8192, 0, 8123)[3:])
    assert not read["unknown"]
    expected = {
        "enable_lora": True,
        "max_loras": 2,
        "max_lora_rank": 8,
        "enable_sleep_mode": True,
        "max_num_seqs": 128,
    }
    assert {name: read["values"].get(name) for name in expected} == expected


def test_vllm_reads_the_call_with_an_adapter_as_we_mean_it(gpu: dict[str, Any]) -> None:
    config = VllmConfig.model_validate(gpu["serving"]["vllm"])
    base, folder = Path("models/gpu/sft"), Path("models/gpu/rl_adapter/sft")
    for rank, served in ((8, 8), (9, 16), (512, 512)):
        read = read_by_vllm(
            vllm_serve_command(base, config, 8123, adapter_flags(Adapter(folder, base, rank)))
        )
        names = ("enable_lora", "max_lora_rank", "max_loras")
        assert (read["unknown"], [read["values"][name] for name in names]) == (
            [],
            [True, served, 1],
        )


def arguments_of(file: str, owner: str | None, function: str) -> set[str]:
    """The argument names of a function, or of a class's method, in Unsloth's source."""
    source = next(ENVIRONMENT.glob(f"lib/python*/site-packages/unsloth/{file}"))
    body: list[ast.stmt] = ast.parse(source.read_text(encoding="utf-8")).body
    if owner is not None:
        body = next(
            node for node in body if isinstance(node, ast.ClassDef) and node.name == owner
        ).body
    found = next(
        node for node in body if isinstance(node, ast.FunctionDef) and node.name == function
    )
    return {argument.arg for argument in (*found.args.args, *found.args.kwonlyargs)}


def test_unsloths_loader_takes_our_arguments_and_arts(gpu: dict[str, Any]) -> None:
    loader = arguments_of("models/loader.py", "FastLanguageModel", "from_pretrained")
    config = MergeConfig.model_validate(gpu["unsloth_merge"])
    assert unsloth_load_arguments(Path("adapter"), config).keys() <= loader
    assert unsloth_load_arguments(Path("adapter"), config)["load_in_4bit"] is False
    settings = unsloth_settings(RlConfig.model_validate(gpu["rl"]), 0, "work")
    assert settings["init_args"].keys() <= loader
    assert settings["peft_args"].keys() <= arguments_of(
        "models/llama.py", "FastLlamaModel", "get_peft_model"
    )


def test_unsloths_merge_takes_our_arguments() -> None:
    ours = unsloth_save_arguments(Path("models/gpu/rl_merged/sft"))
    for function in ("unsloth_save_pretrained_merged", "unsloth_generic_save_pretrained_merged"):
        assert ours.keys() | {"tokenizer"} <= arguments_of("save.py", None, function)
    assert ours["save_method"] == "merged_16bit"
