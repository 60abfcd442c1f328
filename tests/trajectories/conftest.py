"""The generated world, scripted servers, and a model folder with the real tokenizer of the tiny profile."""

from pathlib import Path

import pytest
from transformers import Qwen3Config

from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.toy.pretrained_model import world_tokenizer
from tests.agent.conftest import agent_config, chat_server, mcp_server, searches
from tests.worlds import smoke, world, world_server

__all__ = [
    "agent_config",
    "chat_server",
    "mcp_server",
    "searches",
    "smoke",
    "world",
    "world_server",
]


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
