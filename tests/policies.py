"""Fixture of an untrained policy: the tiny profile's tokenizer and template over a model of random weights."""

from pathlib import Path

import pytest
from transformers import Qwen3Config

from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.toy.pretrained_model import ModelShape, build_model, world_tokenizer
from tests.shared_folders import shared_folder

CONTEXT_TOKENS = 512


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy, which all processes share: a test that changes it takes a copy."""
    return shared_folder(tmp_path_factory, "policy", _make_policy)


def _make_policy(folder: Path) -> None:
    tokenizer = world_tokenizer(load_prompt("tiny"), 400, CONTEXT_TOKENS)
    shape = {
        "hidden_size": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "mlp_size": 64,
    }
    rest = {
        "rope_theta": 10000,
        "initializer_range": 0.2,
        "first_attention_norm": 1.0,
        "first_mlp_norm": 1.0,
        "context_tokens": 2 * CONTEXT_TOKENS,  # as much as tiny asks for
    }
    model = build_model(ModelShape.model_validate({**shape, **rest}), tokenizer, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer, chat template and config as the tiny profile makes them, without weights."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = world_tokenizer(load_prompt("tiny"), 400, 2048)
    tokenizer.save_pretrained(folder)
    Qwen3Config(vocab_size=len(tokenizer), architectures=["Qwen3ForCausalLM"]).save_pretrained(
        folder
    )
    return folder
