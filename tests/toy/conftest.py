import pytest
from transformers import PreTrainedTokenizerFast

from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.toy.curriculum import CurriculumStage, DocumentConfig
from deepsearch_rl.toy.pretrained_model import world_tokenizer
from deepsearch_rl.toy.pretraining import PretrainConfig
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
def tokenizer() -> PreTrainedTokenizerFast:
    return world_tokenizer(load_prompt("tiny"), subwords=400, context_tokens=1024)


@pytest.fixture(scope="session")
def stage() -> CurriculumStage:
    return CurriculumStage(
        tokens=1200,
        hops=(0.4, 0.4, 0.2),
        results=3,
        facts=(0, 2),
        fillers=(1, 3),
        copy_share=0.25,
        lookup_share=0.1,
        search_share=0.1,
        continuation_share=0.2,
        given_share=0.2,
    )


@pytest.fixture(scope="session")
def document_config() -> DocumentConfig:
    return DocumentConfig(
        in_domain=0.5,
        second_words=0.2,
        unanswerable=0.2,
        without_system=0.4,
        inferences=0.1,
        second_query=0.2,
        tool_continuations=0,
    )


@pytest.fixture(scope="session")
def pretrain_config(stage: CurriculumStage, document_config: DocumentConfig) -> PretrainConfig:
    shape = {
        "hidden_size": 16,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "mlp_size": 16,
    }
    rates = {
        "muon_learning_rate": 0.02,
        "muon_momentum": 0.95,
        "adam_learning_rate": 0.003,
        "adam_betas": (0.9, 0.98),
        "adam_epsilon": 0.001,
    }
    return PretrainConfig.model_validate(
        {
            "subwords": 300,
            "model": {
                **shape,
                "rope_theta": 10000,
                "initializer_range": 0.05,
                "first_attention_norm": 1.0,
                "first_mlp_norm": 1.0,
                "context_tokens": 1024,
            },
            "documents": document_config,
            "curriculum": [stage, stage.model_copy(update={"search_share": 0.0})],
            "optimizer": {
                **rates,
                "batch_tokens": 256,
                "threads": 2,
                "pool": 8,
                "warmup": 0.1,
                "decay": 0.5,
            },
        }
    )
