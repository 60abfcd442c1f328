"""The empty Qwen3 model."""

import torch
from pydantic import Field
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from deepsearch_rl.records import Record
from deepsearch_rl.training.pretrain.vocabulary import END_OF_TEXT, TURN_END


class ModelConfig(Record):
    """Shape of a Qwen3 model with tied embeddings."""

    hidden_size: int = Field(ge=8, description="width of the residual stream")
    layers: int = Field(ge=1, description="number of decoder layers")
    heads: int = Field(ge=1, description="number of query heads")
    kv_heads: int = Field(ge=1, description="number of key and value heads; divides heads")
    head_dim: int = Field(ge=2, description="width of a head")
    mlp_size: int = Field(ge=8, description="width of the gated feed-forward layer")
    rope_theta: float = Field(gt=1, description="base of the rotary position angles")
    initializer_range: float = Field(gt=0, description="standard deviation of the first weights")
    context_tokens: int = Field(ge=128, description="longest sequence that the model promises to handle")


def build_model(config: ModelConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A float32 model with random weights drawn from ``seed``, its generation settings included."""
    torch.manual_seed(seed)
    end, padding = (tokenizer.get_vocab()[token] for token in (TURN_END, END_OF_TEXT))
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.mlp_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_tokens,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            initializer_range=config.initializer_range,
            tie_word_embeddings=True,
            use_cache=True,  # saved as it is: without it a server recomputes every token of every turn
            eos_token_id=end,
            pad_token_id=padding,
            dtype="float32",
        )
    )
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.7, eos_token_id=end, pad_token_id=padding)
    return model
