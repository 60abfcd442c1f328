"""Params section ``sft``, and the ``swift sft`` call that it becomes."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.train.attention import ATTENTION_PACKAGES
from deepsearch_rl.train.swift_run import swift_command


class SftConfig(Record):
    """Params section ``sft``."""

    device: Literal["cpu", "cuda"] = Field(description="where training runs; never guessed")
    dtype: Literal["float32", "bfloat16"] = Field(description="of weights and activations")
    model_type: NonEmpty = Field(description="ms-swift's name of the architecture, e.g. qwen3")
    template: NonEmpty = Field(
        description="ms-swift's name of the chat template, e.g. qwen3_nothinking"
    )
    agent_template: NonEmpty = Field(
        description="ms-swift's name of the tool call format, e.g. hermes"
    )
    loss_scale: NonEmpty = Field(
        description="ms-swift's name of the tokens with loss: default, last_round, ..."
    )
    lora_rank: int = Field(ge=1)
    lora_alpha: int = Field(ge=1, description="the adapter is scaled by alpha / rank")
    lora_dropout: float = Field(ge=0, lt=1)
    learning_rate: float = Field(gt=0, description="peak of the cosine schedule")
    warmup_ratio: float = Field(
        ge=0, lt=1, description="share of the steps with a rising learning rate"
    )
    weight_decay: float = Field(ge=0)
    epochs: int = Field(ge=1)
    rows_per_forward: int = Field(
        ge=1, description="rows (packs, where rows are packed) of one forward pass"
    )
    forwards_per_step: int = Field(
        ge=1, description="forward passes whose gradients make one update"
    )
    max_length: int = Field(ge=1, description="longest row in tokens; longer rows are left out")
    packing: bool = Field(
        description="fill rows of max_length with several conversations; needs flash attention"
    )
    attention: Literal["sdpa", "flash_attn", "flash_attention_3"]
    gradient_checkpointing: bool = Field(
        description="recompute activations: a third slower, far less memory"
    )
    liger_kernel: bool = Field(
        description="fused GPU kernels for normalisation and loss (package liger-kernel)"
    )
    eval_share: float = Field(
        ge=0, lt=1, description="share of the rows held back, whose loss is measured"
    )
    save_steps: int = Field(
        ge=1, description="steps between checkpoints, from which a killed run goes on"
    )
    kept_checkpoints: int = Field(
        ge=2, description="newest checkpoints on disk; the newest may be half-written"
    )
    log_steps: int = Field(ge=1, description="steps between the lines of the training curve")

    @property
    def packages(self) -> list[str]:
        """What training on a GPU imports besides torch."""
        packages = ["swift", *ATTENTION_PACKAGES[self.attention]]
        if self.liger_kernel:
            # In a list, where `make params` finds the packages that no file imports
            packages += ["liger_kernel"]
        return packages

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.packing and self.attention == "sdpa":
            raise ValueError(
                "packing needs flash attention: set attention to flash_attn, or packing to false"
            )

        if self.eval_share and self.save_steps % self.log_steps:
            raise ValueError(
                f"save_steps {self.save_steps} is no multiple of log_steps {self.log_steps}"
            )

        return self


def swift_sft_command(
    config: SftConfig,
    model: Path,
    rows: Path,
    scratch: Path,
    seed: int,
    resume_from: Path | None = None,
) -> list[str]:
    """Return the ``swift sft`` call.

    ``rows`` are ms-swift's, JSON Lines; ``scratch`` is for checkpoints; ``seed`` is that of
    adapter, dropout and data order; ``resume_from`` is a checkpoint of an earlier call with the
    same arguments.
    """
    flags: dict[str, object] = {
        "model": model,
        "model_type": config.model_type,
        "template": config.template,
        "agent_template": config.agent_template,
        "loss_scale": config.loss_scale,
        # A row holds what is to be seen of earlier turns
        "preserve_thinking": True,
        "dataset": rows,
        "output_dir": scratch,
        "add_version": False,
        **_optimisation_flags(config),
        "save_strategy": "steps",
        "save_steps": config.save_steps,
        # Besides the best one
        "save_total_limit": config.kept_checkpoints,
        "split_dataset_ratio": config.eval_share,
        "eval_strategy": "steps" if config.eval_share else "no",
        "eval_steps": config.save_steps,
        "per_device_eval_batch_size": config.rows_per_forward,
        "use_liger_kernel": config.liger_kernel,
        "logging_steps": config.log_steps,
        "report_to": "tensorboard",
        "logging_dir": scratch / "tensorboard",
        "seed": seed,
        "data_seed": seed,
        # It asks a hub, and retries for 10 s without one
        "check_model": False,
        "use_cpu": config.device == "cpu",
        "dataloader_num_workers": 0 if config.device == "cpu" else 4,
    }
    if resume_from is not None:
        flags["resume_from_checkpoint"] = resume_from
    return swift_command("sft", flags)


def _optimisation_flags(config: SftConfig) -> dict[str, object]:
    """Return the flags of adapter, precision, optimizer and batches."""
    return {
        "tuner_type": "lora",
        "target_modules": "all-linear",
        "lora_rank": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "torch_dtype": config.dtype,
        # torch_dtype alone leaves mixed precision on
        "fp16": False,
        "bf16": config.dtype == "bfloat16",
        "attn_impl": config.attention,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": config.warmup_ratio,
        "weight_decay": config.weight_decay,
        "num_train_epochs": config.epochs,
        "per_device_train_batch_size": config.rows_per_forward,
        "gradient_accumulation_steps": config.forwards_per_step,
        "gradient_checkpointing": config.gradient_checkpointing,
        "max_length": config.max_length,
        "truncation_strategy": "delete",
        "packing": config.packing,
    }
