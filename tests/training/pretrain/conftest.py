import pytest
from transformers import PreTrainedTokenizerFast

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.training.pretrain.lessons import LessonConfig, Level
from deepsearch_rl.training.pretrain.prepare import PretrainConfig, world_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return world_tokenizer(load_prompt("tiny"), subwords=400, context_tokens=1024)


@pytest.fixture
def level() -> Level:
    return Level(
        tokens=1200,
        passages=(3, 3),
        facts=(0, 2),
        fillers=(1, 3),
        questions=(2, 4),
        repeating=0.25,
        reasoning=0.2,
        searching=0.1,
        continuing=0.1,
        demonstrations=0.2,
    )


@pytest.fixture
def lesson_config() -> LessonConfig:
    return LessonConfig(
        strange_names=0.2, unanswerable=0.2, without_system=0.4, wrong_query=0.0, wrong_answer=0.0, hops=(0.5, 0.5)
    )


@pytest.fixture
def pretrain_config(level: Level, lesson_config: LessonConfig) -> PretrainConfig:
    shape = {"hidden_size": 16, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_size": 16}
    rates = {"muon_learning_rate": 0.02, "adam_learning_rate": 0.003, "warmup": 0.1, "decay": 0.5}
    return PretrainConfig.model_validate(
        {
            "prompt": "tiny",
            "subwords": 300,
            "model": {**shape, "rope_theta": 10000, "initializer_range": 0.05, "context_tokens": 1024},
            "lessons": lesson_config,
            "levels": [level, level.model_copy(update={"searching": 0.0})],
            "optimizer": {**rates, "batch_tokens": 256, "pool": 8},
        }
    )
