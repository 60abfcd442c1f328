"""Supervised fine-tuning with ms-swift: a LoRA on the teacher's successful trajectories.

The loss is on assistant tokens alone (reasoning, tool calls and answers), which ms-swift derives
from the roles of the rows; ``loss_scale`` restricts it to the last turn where each turn is a row of
its own. Every checkpoint that is on disk at the end is published; the stage `choose_checkpoint`
picks one.

On a CPU, rows go through one at a time with gradients accumulated over a batch: without padding,
attention needs no mask and skips its upper half, which makes a token cost 90 us instead of 125 us
(three layers of 128, one thread), for the same gradient, because ms-swift divides the loss by the
tokens of the whole batch.
"""

import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from deepsearch_rl.chat.prompts import (
    TRAINED_WITH,
    TrainedWith,
    require_trained_with,
    served_with,
)
from deepsearch_rl.core.errors import ArtifactError, UnavailableError
from deepsearch_rl.core.files import (
    atomic_directory,
    read_json,
    read_record,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.hardware import Threads, require_gpu
from deepsearch_rl.core.model_config import CONFIG, require_context
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Record
from deepsearch_rl.train.curves import record_step
from deepsearch_rl.train.finite import NotFiniteError, not_finite_metrics
from deepsearch_rl.train.model_folder import (
    ADAPTER_FILES,
    LOWEST_LOSS,
    MANIFEST,
    TRAIN_LOG,
    layers_pattern,
    weight_files,
)
from deepsearch_rl.train.swift import (
    TRAINER_STATE,
    TrainerState,
    logged_metrics,
    newest_checkpoint,
    remove_not_finite,
    run_swift,
    swift_command,
    whole_checkpoints,
)
from deepsearch_rl.train.swift_names import (
    SwiftAgentTemplate,
    SwiftLossScale,
    SwiftModelType,
    SwiftTemplate,
)
from deepsearch_rl.train.swift_rows import read_rows, require_fitting_row, trained_rows

# What each attention imports. In place of flash_attn, transformers can fetch a built kernel from
# a hub when it loads the model (package ``kernels``). That does not count: whether there is one
# for this torch shows only then.
ATTENTION_PACKAGES = {
    "sdpa": (),
    "flash_attn": ("flash_attn",),
    "flash_attention_3": ("flash_attn_interface",),
}

ATTENTION_FIX = "build it there, or set sft.attention to sdpa and sft.packing to false"


class SftConfig(Record):
    """Params section ``sft``."""

    device: Literal["cpu", "cuda"] = Field(description="where training runs; never guessed")
    dtype: Literal["float32", "bfloat16"] = Field(description="of weights and activations")
    threads: Threads = Field(description="on a cpu; null: as many as cores")
    model_type: SwiftModelType = Field(
        description="ms-swift's name of the architecture, e.g. qwen3"
    )
    template: SwiftTemplate = Field(
        description="ms-swift's name of the chat template, e.g. qwen3_nothinking"
    )
    agent_template: SwiftAgentTemplate = Field(
        description="ms-swift's name of the tool call format, e.g. hermes"
    )
    loss_scale: SwiftLossScale = Field(
        description="ms-swift's name of the tokens with loss: default, last_round, ..."
    )
    lora_rank: int = Field(ge=1)
    lora_alpha: int = Field(ge=1, description="the adapter is scaled by alpha / rank")
    lora_dropout: float = Field(ge=0, lt=1)
    lora_layers: int | None = Field(
        ge=1,
        description="the adapter is in the last so many layers, and nothing below learns; null: in all",
    )
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


_STEP = re.compile(r"'global_step/max_steps': '(\d+)/(\d+)'")

ADAPTER_CONFIG, ADAPTER_WEIGHTS = ADAPTER_FILES


def train_adapter(
    config: SftConfig, model: Path, rows: Path, seed: int, scratch: Path, output: Path
) -> None:
    """Train on a base model and ms-swift's rows; write an adapter a checkpoint, a log and a manifest at once.

    The adapters are in ``<step>/`` of ``output``. A killed run continues from its checkpoints in
    ``scratch``, which the caller keeps apart for every other model, row and setting.

    Raises:
        UnavailableError: params name a GPU and there is none.
        ArtifactError: there is no model, there are no rows to train on, or the trainer's state does
            not fit.
        ConfigError: the model was trained with another prompt or tool than the rows hold, or reads
            less than sft.max_length; rows hold several prompts, or all of them are too long.
        RecordError: a line is not a row; names file, line and field.
        CommandError: ``swift sft`` failed.
        NotFiniteError: the loss or the gradient became NaN or infinite; checkpoints from there on
            are removed.
    """
    if config.device == "cuda":
        require_gpu("sft", packages=config.packages)
        require_attention(config)

    count, prompts = read_rows(rows)
    # Refuses a folder without weights before the trainer is started
    weight_files(model)
    require_context(model, {"sft.max_length": config.max_length})
    served = served_with(model, prompts)
    require_trained_with(model, served, f"the rows in {rows}")
    remove_not_finite(scratch)
    checkpoint = newest_checkpoint(scratch)
    state = checkpoint and read_record(checkpoint / TRAINER_STATE, TrainerState)

    if state is None or state.global_step < state.max_steps:
        require_fitting_row(rows, model, config.max_length)
        command = swift_sft_command(config, model, rows, scratch, seed, checkpoint)
        with contextlib.ExitStack() as stack:
            done = state.global_step if state else 0
            run_swift(command, scratch / "swift.log", _progress(stack, done))
        # A trainer may end well after a step of NaN
        problem = remove_not_finite(scratch)
        if problem:
            raise NotFiniteError(_not_finite_sentence(problem))
        checkpoint = newest_checkpoint(scratch)

    if checkpoint is None:
        raise ArtifactError(
            f"swift sft left no checkpoint in {scratch}; its output is in swift.log there."
        )

    if not config.packing:
        # The log counts packs where rows are packed
        count = trained_rows(count, scratch, config.max_length)
    state = read_record(checkpoint / TRAINER_STATE, TrainerState)
    manifest = _manifest(config, seed, count, state, served)
    with atomic_directory(output) as partial:
        _copy_adapters(scratch, model, partial)
        write_jsonl(partial / TRAIN_LOG, state.lines)
        write_json(partial / MANIFEST, manifest)


def _manifest(
    config: SftConfig, seed: int, rows: int, state: TrainerState, served: TrainedWith
) -> dict[str, object]:
    manifest: dict[str, object] = {
        "tool": "ms-swift",
        "device": config.device,
        "dtype": config.dtype,
        "seed": seed,
        "rows": rows,
        "steps": state.global_step,
    }
    # Without rows held back there is no loss to choose a checkpoint by
    if config.eval_share:
        manifest[LOWEST_LOSS] = state.best_global_step

    packages = ("ms-swift", "transformers", "peft", "torch")
    manifest["final_loss"] = state.lines[-1].loss
    manifest[TRAINED_WITH] = served.model_dump()
    manifest["versions"] = {name: importlib.metadata.version(name) for name in packages}
    return manifest


def _copy_adapters(scratch: Path, model: Path, output: Path) -> None:
    """Copy the adapter of every whole checkpoint into a folder named by its step."""
    for step, source in whole_checkpoints(scratch).items():
        adapter = output / str(step)
        adapter.mkdir()
        shutil.copyfile(source / ADAPTER_WEIGHTS, adapter / ADAPTER_WEIGHTS)
        settings = canonical_adapter_config(read_json(source / ADAPTER_CONFIG), model)
        write_json(adapter / ADAPTER_CONFIG, settings)


def canonical_adapter_config(config: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return PEFT's settings without what differs between equal runs: absolute paths and the order of a set."""
    modules = config["target_modules"]
    return {
        **config,
        "base_model_name_or_path": str(model),
        "target_modules": modules if isinstance(modules, str) else sorted(modules),
    }


def _progress(stack: contextlib.ExitStack, done: int) -> Callable[[str], None]:
    """Return a reader of swift's output that shows and records the steps done; the first one gives the total.

    ``done`` steps are those of the checkpoint that training goes on from.
    """
    bar: ProgressBar | None = None
    last_step = done

    def read(line: str) -> None:
        """Advance the bar to the step that a line names; other lines are ignored. Raise NotFiniteError at NaN."""
        nonlocal bar, last_step
        problem = not_finite_metrics(line)
        if problem:
            raise NotFiniteError(_not_finite_sentence(f"after step {last_step}: {problem}"))
        match = _STEP.search(line)
        if match is None:
            return
        step = int(match[1])
        total = int(match[2])
        metrics = logged_metrics(line)
        bar = bar or stack.enter_context(ProgressBar("sft", total, "steps", done=done))
        # A line of an evaluation has eval_loss alone
        note = f"loss {metrics['loss']:.3f}" if "loss" in metrics else ""
        bar.advance(step - last_step, note=note)
        last_step = step
        if metrics:
            record_step({"step": step, **metrics})

    return read


def _not_finite_sentence(problem: str) -> str:
    return (
        f"swift sft computed no number ({problem}), and every later step would be one of NaN. "
        "Checkpoints from there on are not kept. Lower sft.learning_rate, train in float32, or "
        "look for a row that is broken."
    )


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
        **_target_flags(config.lora_layers, model),
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


def _target_flags(layers: int | None, model: Path) -> dict[str, object]:
    """Return the flag that names the layers with an adapter: backward passes end at the lowest one."""
    if layers is None:
        return {"target_modules": "all-linear"}
    return {"target_regex": layers_pattern(layers, read_json(model / CONFIG)["num_hidden_layers"])}


def _optimisation_flags(config: SftConfig) -> dict[str, object]:
    """Return the flags of adapter, precision, optimizer and batches."""
    return {
        "tuner_type": "lora",
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


def require_attention(config: SftConfig) -> None:
    """Raise UnavailableError, with the reason, if this environment cannot load what the attention needs."""
    problem = attention_problem(Path(sys.executable), config.attention)
    if problem:
        raise UnavailableError(f"what sft needs does not load: {problem}; {ATTENTION_FIX}.")


def attention_problem(interpreter: Path, attention: str) -> str:
    """Return why an interpreter cannot load what an attention needs; empty where it can.

    The packages are imported in a process of their own: a flash attention that was built for
    another torch is installed, and does not load.
    """
    for name in ATTENTION_PACKAGES[attention]:
        command = [interpreter, "-c", f"import {name}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"{name} for sft.attention: {attention}, in python.sft ({reason})"

    return ""
