"""Adapters served beside their base: the same answers as merged, and what does not fit named before a server starts."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import read_json, write_json
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.serve.adapters import CONFIG, Adapter, read_adapter
from deepsearch_rl.serve.launch import (
    ServingConfig,
    VllmConfig,
    adapter_flags,
    serve_model,
    vllm_serve_command,
)
from tests.conftest import ROOT
from tests.model_servers import CPU_SERVING, running_engine, serve_here

REQUEST = {
    "messages": [{"role": "user", "content": "Who?"}],
    "temperature": 0,
    "max_tokens": 8,
    "logprobs": True,
}


@pytest.fixture
def adapter(policy_folder: Path, tmp_path: Path) -> Path:
    """A LoRA of rank 4 with random weights, large enough to change the policy's answers."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    settings: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 64,
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
    }
    model = peft.get_peft_model(base, peft.LoraConfig(**settings, init_lora_weights=False))
    model.save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


def tokens_of(endpoint: Endpoint) -> list[str]:
    """What a server's model writes greedily, token by token."""
    body = {**REQUEST, "model": endpoint.model}
    answer: Any = httpx.post(f"{endpoint.base_url}/chat/completions", json=body, timeout=60).json()
    return [token["token"] for token in answer["choices"][0]["logprobs"]["content"]]


def tokens_here(folder: Path) -> list[str]:
    """What a whole model writes, served in this process."""
    with running_engine(folder) as engine, serve_here(engine, folder) as endpoint:
        return tokens_of(endpoint)


@pytest.mark.slow
def test_an_adapter_writes_what_the_merged_model_writes_and_its_server_is_gone_after_the_block(
    adapter: Path, policy_folder: Path, tmp_path: Path
) -> None:
    merged = shutil.copytree(policy_folder, tmp_path / "merged")
    base: Any = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    adapted: Any = peft.PeftModel.from_pretrained(base, str(adapter))
    adapted.merge_and_unload().save_pretrained(str(merged))
    with serve_model(adapter, ServingConfig.model_validate(CPU_SERVING)) as endpoint:
        written = tokens_of(endpoint)
    assert written == tokens_here(merged) != tokens_here(policy_folder)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{endpoint.base_url}/models")


def test_an_adapter_names_its_base_and_vllm_is_started_for_its_rank(
    adapter: Path, policy_folder: Path
) -> None:
    assert read_adapter(adapter) == Adapter(adapter, policy_folder, 4)
    assert read_adapter(policy_folder) is None
    gpu = (
        load_profile(ROOT / "profiles" / "gpu" / "params.yaml")
        .section("serving", ServingConfig)
        .vllm
    )
    assert isinstance(gpu, VllmConfig)
    command = vllm_serve_command(
        policy_folder, gpu, 8000, adapter_flags(Adapter(adapter, policy_folder, 9))
    )
    assert command[command.index("--served-model-name") + 1] == "base"
    assert command[command.index("--max-lora-rank") + 1] == "16"
    assert command[-2:] == ["--lora-modules", f"policy={adapter}"]
    assert "--enable-lora" in command
    assert "--no-enable-lora" not in command
    assert "--no-enable-lora" in vllm_serve_command(policy_folder, gpu, 8000)
    with pytest.raises(ConfigError, match=r"rank 600, .* up to rank 512"):
        adapter_flags(Adapter(adapter, policy_folder, 600))


def test_an_adapter_without_its_base_or_of_other_weights_is_named(
    adapter: Path, policy_folder: Path, tmp_path: Path
) -> None:
    config = read_json(adapter / CONFIG)
    write_json(adapter / CONFIG, {**config, "base_model_name_or_path": str(tmp_path / "away")})
    with pytest.raises(ArtifactError, match=r"away.*base_model_name_or_path"):
        read_adapter(adapter)
    other = shutil.copytree(policy_folder, tmp_path / "other")
    settings = AutoModelForCausalLM.from_pretrained(policy_folder).config
    settings.intermediate_size *= 2
    AutoModelForCausalLM.from_config(settings).save_pretrained(str(other))
    write_json(adapter / CONFIG, {**config, "base_model_name_or_path": str(other)})
    with pytest.raises(
        ArtifactError,
        match=r"does not fit the weights in .*other: .*mlp.* trained from another model",
    ):
        read_adapter(adapter)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"[]"])
def test_damaged_weights_of_an_adapter_are_named(adapter: Path, content: bytes) -> None:
    (adapter / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"adapter_model\.safetensors is damaged"):
        read_adapter(adapter)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "of kind 'IA3' without a rank `r`.*merged into its base"),
        ({"r": 0}, "adapter_config.json, field 'r'"),
        (["r"], "adapter_config.json"),
    ],
    ids=["another kind", "no rank", "no object"],
)
def test_a_config_of_no_lora_is_named(tmp_path: Path, config: object, words: str) -> None:
    write_json(tmp_path / CONFIG, config)
    with pytest.raises(ArtifactError, match=words):
        read_adapter(tmp_path)
