"""ART on a GPU: Unsloth trains, ART's own vLLM runtime serves.

The pure part, :func:`unsloth_settings`, says everything that differs from ART's defaults; the published run's settings
come to it from params. Importing this module imports trl.
"""

import asyncio
import os
from typing import Any

import torch
from art import dev
from art.model import TrainableModel
from art.unsloth.service import UnslothService
from art.unsloth.train import UnslothTrainContext, gc_and_empty_cuda_cache

from deepsearch_rl.training.backends.art.trainer import ArtTrainer, model_settings
from deepsearch_rl.training.rl.trainer import RlConfig, RlTask

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


def make_unsloth_trainer(task: RlTask, config: RlConfig) -> ArtTrainer:
    """Return the trainer."""
    os.environ["IMPORT_UNSLOTH"] = "1"  # read by ART's child process, which must import unsloth before torch
    settings = unsloth_settings(config, task.seed)

    def make_service(model: TrainableModel[Any, Any], folder: str) -> ScoringUnslothService:
        # The settings are complete: ART's get_model_config (which imports Megatron to look up defaults) is not asked.
        return ScoringUnslothService(model.name, model.base_model, settings, folder)

    return ArtTrainer(task, config, make_service, settings, {"device": "cuda", "dtype": "bfloat16"})


class ScoringUnslothService(UnslothService):
    """ART's service with the trainer's own view of given tokens."""

    async def trainer_logprobs(self, token_ids: list[int]) -> list[float]:
        """Return the trained policy's log-probabilities of all tokens but the first, without the server.

        One GPU holds either the server's weights or the trainer's, so the server sleeps during this, as in training.
        """
        await self._sleep_runtime()
        gc_and_empty_cuda_cache()
        self._state.reload_to_gpu()
        try:
            return await asyncio.to_thread(_logprobs, self._state, token_ids)
        finally:
            self._state.offload_to_cpu()
            gc_and_empty_cuda_cache()
            await self._wake_runtime()


def _logprobs(state: UnslothTrainContext, token_ids: list[int]) -> list[float]:
    os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] = "0"  # ART's loss sets it to 1, and then `logits` are hidden states
    model: Any = state.peft_model
    model.eval()
    tokens_S = torch.tensor(token_ids, device=model.device)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        logits_SV = model(input_ids=tokens_S[None]).logits[0, :-1].float()
    logprobs_S = logits_SV.log_softmax(dim=-1).gather(1, tokens_S[1:, None])[:, 0]
    return logprobs_S.tolist()
