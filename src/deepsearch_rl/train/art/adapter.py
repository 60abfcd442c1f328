"""The adapter of a policy: a new one on every linear layer, or that of a checkpoint."""

from pathlib import Path
from typing import cast

import peft
from transformers import PreTrainedModel

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.train.rl.rl_config import RlConfig


def with_adapter(
    model: PreTrainedModel, config: RlConfig, checkpoint: Path | None
) -> peft.PeftModel:
    """Return the model with an adapter on every linear layer: a new one, or a checkpoint's.

    Raises ArtifactError if the checkpoint does not fit the model.
    """
    assert config.lora is not None
    if checkpoint is None:
        settings = peft.LoraConfig(
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        return cast(peft.PeftModel, peft.get_peft_model(model, settings))

    try:
        return peft.PeftModel.from_pretrained(model, checkpoint, is_trainable=True)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"the adapter of {checkpoint} does not fit the model that rl starts from, a "
            f"{model.config.model_type} with {model.config.num_hidden_layers} layers of size "
            f"{model.config.hidden_size}: {str(error).splitlines()[0]} Start from the model that "
            "the adapter was trained on."
        ) from error
