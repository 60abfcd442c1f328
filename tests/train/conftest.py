"""The smoke profile's world with its retrieval server, and an untrained policy."""

from pathlib import Path
from typing import cast

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.agent.conftest import agent_config, chat_server, mcp_server, searches
from tests.policies import model_folder, policy_folder
from tests.worlds import smoke, world, world_server

__all__ = [
    "agent_config",
    "chat_server",
    "mcp_server",
    "model_folder",
    "policy_folder",
    "searches",
    "smoke",
    "world",
    "world_server",
]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights with a byte-level tokenizer, ChatML's tokens and no chat template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        ["a few words"],
        trainers.BpeTrainer(
            vocab_size=300,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=512,
            eos_token_id=cast(int, tokenizer.eos_token_id),
        )
    )
    folder = tmp_path_factory.mktemp("llama")
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    (folder / "optimizer.pt").write_bytes(b"of a training run")
    return folder
