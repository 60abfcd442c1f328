"""ART on a GPU: ``art.LocalBackend`` as it is. Unsloth trains, ART's own vLLM runtime serves.

The pure part, :func:`unsloth_settings`, says everything that differs from ART's defaults; the published run's settings
come to it from params. The service of :class:`UnslothBackend` adds the one method that ART's lacks: the trainer's own
log-probabilities of given tokens (module ``unsloth_service``).
"""

import os
from typing import Any

from art import dev
from art.local.backend import LocalBackend
from art.local.service import ModelService
from art.model import TrainableModel
from art.utils.output_dirs import get_model_dir
from mp_actors import move_to_child_process

from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.training.backends.art.trainer import ArtTrainer, model_settings
from deepsearch_rl.training.rl.config import RlConfig
from deepsearch_rl.training.rl.trainer import RlTask

LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def unsloth_settings(config: RlConfig, seed: int) -> dev.InternalModelConfig:
    """Return all of ART's model settings: a QLoRA (nf4 base, 16-bit adapter), served by vLLM beside the 16-bit base.

    Optimizer settings are those of ART's own defaults, with which the published runs were made.
    ``enforce_eager`` and no prefix caching keep the served probabilities as close to the trainer's as vLLM allows.
    """
    return {
        **model_settings(config),
        "rollout_weights_mode": "lora",
        "init_args": {"max_seq_length": config.max_sequence_tokens, "load_in_4bit": True, "random_state": seed},
        "engine_args": {
            "max_model_len": config.max_sequence_tokens,
            "max_lora_rank": config.lora.rank,
            "lora_target_modules": LINEAR_LAYERS,
            "generation_config": "vllm",
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "enable_sleep_mode": True,
            "seed": seed,
        },
        "peft_args": {
            "r": config.lora.rank,
            "lora_alpha": config.lora.alpha,
            "target_modules": LINEAR_LAYERS,
            "use_gradient_checkpointing": "unsloth",
            "random_state": seed,
        },
        "trainer_args": {
            "optim": "paged_adamw_8bit",
            "learning_rate": config.learning_rate,
            "lr_scheduler_type": "constant",
            "adam_beta1": 0.9,
            "adam_beta2": 0.99,
            "weight_decay": 0.1,
            "max_grad_norm": 0.1,
            "num_generations": 2,  # trl refuses fewer; the groups are ART's
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": True,
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "seed": seed,
        },
    }


def require_unsloth() -> None:
    """Check for the GPU and for the packages of ART's service; raise UnavailableError with what is missing."""
    require_gpu("rl with the unsloth backend", packages=["unsloth", "bitsandbytes", "trl"])


def make_unsloth_trainer(task: RlTask, config: RlConfig) -> ArtTrainer:
    """Return the trainer; its step folders lie below ``task.scratch``."""
    backend, settings = UnslothBackend(path=str(task.scratch)), unsloth_settings(config, task.seed)
    return ArtTrainer(task, config, backend, settings, {"device": "cuda", "dtype": "bfloat16"})


class UnslothBackend(LocalBackend):
    """``art.LocalBackend`` whose service also returns the trainer's own log-probabilities."""

    async def _get_service(self, model: TrainableModel[Any, Any]) -> ModelService:
        if model.name not in self._services:
            from deepsearch_rl.training.backends.art.unsloth_service import make_service  # noqa: PLC0415 - imports trl

            os.environ["IMPORT_UNSLOTH"] = "1"  # read by ART's child process, which must import unsloth before torch
            service = make_service(model, get_model_dir(model=model, art_path=self._path))
            self._services[model.name] = move_to_child_process(service, process_name="model-service")
        return self._services[model.name]
