"""ART's own service on a GPU: Unsloth trains, ART's vLLM runtime serves.

The pure part, :func:`unsloth_settings`, says everything that differs from ART's defaults, and
:func:`require_honoured` which params this service cannot honour. ART pads every rollout to
``rl.max_sequence_tokens`` and makes an optimizer step for each; docs/training.md compares it with
our service. Importing this module imports trl.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import torch
from art import dev, types
from art.local.checkpoints import get_last_checkpoint_dir
from art.loss import shift_tensor
from art.model import TrainableModel
from art.preprocessing.pack import DiskPackedTensors, PackedTensors
from art.unsloth import train as unsloth_train
from art.unsloth.service import UnslothService

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.train.art.art_trainer import ArtTrainer
from deepsearch_rl.train.art.backend import model_settings
from deepsearch_rl.train.art.rows import OPTIMIZER_FILE, clipped, mean_kl, seal
from deepsearch_rl.train.art.service import memory_named
from deepsearch_rl.train.finite import require_finite_tensors
from deepsearch_rl.train.rl.agreement import agreement
from deepsearch_rl.train.rl.policy_loss import ALGORITHMS
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask

LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def require_honoured(config: RlConfig) -> None:
    """Raise ConfigError with every field of params that has a value which this service cannot honour."""
    whole = config.max_sequence_tokens
    loss = config.loss
    needed: dict[str, tuple[object, object, str]] = {
        "loss.aggregation": (
            loss.aggregation or ALGORITHMS[loss.algorithm].aggregation,
            "sequence_art",
            "ART's",
        ),
        "loss.unit_advantages": (loss.unit_advantages, True, "ART's"),
        "loss.dual_clip": (loss.dual_clip, None, "ART has none"),
        "loss.kl_loss": (loss.kl_loss, 0.0, "ART has none"),
        "loss.entropy_bonus": (loss.entropy_bonus, 0.0, "ART has none"),
        "temperature": (
            config.temperature,
            1.0,
            "ART's log-probabilities are those of temperature 1",
        ),
        "minibatches": (config.minibatches, None, "one optimizer step per rollout"),
        "max_batch_tokens": (
            config.max_batch_tokens,
            whole,
            "every rollout is padded to max_sequence_tokens",
        ),
        "gradient_checkpointing": (config.gradient_checkpointing, True, "Unsloth's own"),
        "dtype": (config.dtype, "bfloat16", "of base and products"),
        "optimizer.weight_decay": (config.optimizer.weight_decay, 0.1, "ART's"),
        "optimizer.warmup_steps": (config.optimizer.warmup_steps, 0, "ART has none"),
        "optimizer.schedule": (config.optimizer.schedule, "constant", "ART's"),
        "sampler.sleep": (config.sampler.sleep, True, "trainer and vLLM share one GPU"),
        "sampler.program": (config.sampler.program, None, "ART has a vLLM of its own"),
        "sampler.reasoning_parser": (config.sampler.reasoning_parser, None, "ART names none"),
        "sampler.tool_call_parser": (config.sampler.tool_call_parser, "hermes", "ART's"),
    }
    wrong: list[str] = []
    for name, (chosen, value, why) in needed.items():
        if chosen != value:
            wrong.append(f"rl.{name}: {value} ({why})")

    if loss.algorithm not in ("grpo", "gspo"):
        wrong.append("rl.loss.algorithm: grpo or gspo (ART's)")
    if config.lora is None:
        wrong.append("rl.lora: {rank, alpha} (it trains adapters)")
    elif config.lora.layers is not None:
        wrong.append("rl.lora.layers: null (its adapters are on all layers)")
    if whole % config.logprob_chunk:
        wrong.append(f"rl.logprob_chunk: a divisor of max_sequence_tokens = {whole}")
    if wrong:
        raise ConfigError(
            f"rl with service: unsloth needs {'; '.join(wrong)}. Set these, or service: own."
        )


def unsloth_settings(config: RlConfig, seed: int, folder: str) -> dev.InternalModelConfig:
    """Return all of ART's model settings: an adapter beside the 16-bit base, served by vLLM beside the same base.

    The optimizer is ART's own paged 8-bit AdamW. ART's runtime drops arguments that are false:
    prefix caching is on, and ``enforce_eager`` takes effect only if it is true. ``folder`` is where
    trl may write.
    """
    assert config.lora is not None, "checked by require_honoured"
    sampler = config.sampler
    return {
        **model_settings(config),
        "rollout_weights_mode": "lora",
        "init_args": {
            "max_seq_length": config.max_sequence_tokens,
            "load_in_4bit": False,
            "random_state": seed,
        },
        "engine_args": {
            "max_model_len": config.max_sequence_tokens,
            "max_lora_rank": config.lora.rank,
            "lora_target_modules": LINEAR_LAYERS,
            "generation_config": "vllm",
            "enforce_eager": sampler.enforce_eager,
            "gpu_memory_utilization": sampler.gpu_memory_utilization,
            "max_num_seqs": sampler.max_num_seqs,
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
            "output_dir": folder,
            "optim": "paged_adamw_8bit",
            "learning_rate": config.learning_rate,
            "lr_scheduler_type": "constant",
            "adam_beta1": 0.9,
            "adam_beta2": config.optimizer.beta2,
            "weight_decay": config.optimizer.weight_decay,
            "max_grad_norm": config.optimizer.max_grad_norm,
            # TRL refuses fewer; the groups are ART's
            "num_generations": 2,
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
    """Return the trainer; raise ConfigError for params that it cannot honour."""
    require_honoured(config)
    # Read by ART's child process, which must import unsloth before torch
    os.environ["IMPORT_UNSLOTH"] = "1"
    # It would call a hub
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"
    settings = unsloth_settings(config, task.seed, str(task.scratch / "trl"))

    def make_service(model: TrainableModel[Any, Any], folder: str) -> SealingUnslothService:
        # The settings are complete: ART's get_model_config (which imports Megatron to look up
        # defaults) is not asked.
        return SealingUnslothService(
            config, task.weights, model.name, model.base_model, settings, folder
        )

    return ArtTrainer(task, config, make_service, settings)


class SealingUnslothService(UnslothService):
    """ART's service with our measures of an update, and with checkpoints that hold the optimizer and are sealed."""

    def __init__(
        self,
        rl: RlConfig,
        weights: str,
        name: str,
        base: str,
        settings: dev.InternalModelConfig,
        folder: str,
    ) -> None:
        super().__init__(name, base, settings, folder)
        self._rl = rl
        self._weights = weights

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:
        """Serve the newest policy; a resumed trainer gets its optimizer back."""
        resumed = get_last_checkpoint_dir(self.output_dir)
        if resumed is not None and Path(resumed, OPTIMIZER_FILE).is_file():
            await self._state.load_optimizer_state(resumed)
        address = await super().start_openai_server(config)
        if resumed is None:
            self._seal_newest()
        return address

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: types.TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train as ART does, with the step's agreement, KL and clip fraction beside ART's metrics."""
        with memory_named(self._rl), measured(self._rl) as metrics:
            async for result in super().train(disk_packed_tensors, config, _config, verbose):
                yield {**result, **metrics}

        self._state.save_optimizer_state(str(get_last_checkpoint_dir(self.output_dir)))
        self._seal_newest()

    async def serve(self) -> None:
        """Do nothing: ART's training serves the policy that it made."""

    def _seal_newest(self) -> None:
        seal(Path(str(get_last_checkpoint_dir(self.output_dir))), self._weights)


@contextlib.contextmanager
def measured(config: RlConfig) -> Iterator[dict[str, float]]:
    """Yield metrics that ART's training fills in while the block runs; it raises StalePolicyError.

    ART scores all rollouts once before the first update of a step, and computes a loss per rollout.
    Both functions are names of its module ``art.unsloth.train``, which are replaced for the block.
    """
    metrics: dict[str, float] = {}
    module: Any = unsloth_train
    score = module._precalculate_new_logprobs
    compute_loss = module.loss_fn

    def score_and_compare(
        context: unsloth_train.UnslothTrainContext,
        packed: PackedTensors,
        train: types.TrainConfig,
        art: dev.TrainConfig,
    ) -> torch.Tensor:
        """Return what ART's function does, having compared it with the sampler and the start model."""
        trained_BS = score(context, packed, train, art).float()
        with context.peft_model.disable_adapter():
            reference_BS = score(context, packed, train, art).float()
        mask_BS = packed["assistant_mask"]
        for of, values_BS in (("policy", trained_BS), ("start model", reference_BS)):
            require_finite_tensors("the log-probability of the", [(of, values_BS[mask_BS])])

        # Equal on all tokens of a rollout: only the sign counts here
        advantages_B = packed["advantages"].sum(dim=1)
        sampled_BS = packed["logprobs"].where(mask_BS, float("nan"))
        compared = agreement(
            sampled_BS, trained_BS, reference_BS, advantages_B, config.loss, config.max_mismatch
        )
        metrics.update(compared)
        metrics["kl"] = mean_kl(trained_BS[mask_BS], reference_BS[mask_BS])
        return trained_BS

    def loss_and_clips(inputs: Any, new_logprobs: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Return what ART's function does, having counted what it clips."""
        mask_BS = shift_tensor(inputs["assistant_mask"], False)
        metrics["loss/clip_fraction"] = float(
            clipped(inputs, new_logprobs.detach(), config.loss)[mask_BS].mean()
        )
        return compute_loss(inputs, new_logprobs, *rest, **named)

    module._precalculate_new_logprobs = score_and_compare
    module.loss_fn = loss_and_clips

    try:
        yield metrics
    finally:
        module._precalculate_new_logprobs = score
        module.loss_fn = compute_loss
