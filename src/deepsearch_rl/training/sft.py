"""Supervised fine-tuning with ms-swift: a LoRA on the teacher's successful trajectories.

The loss is on assistant tokens alone (reasoning, tool calls and answers), which ms-swift derives from the roles of the
rows; ``loss_scale`` restricts it to the last turn where each turn is a row of its own.

On a CPU, rows go through one at a time with gradients accumulated over a batch: without padding, attention needs no
mask and skips its upper half, which makes a token cost 90 us instead of 125 us (three layers of 128, one thread), for
the same gradient, because ms-swift divides the loss by the tokens of the whole batch.
"""

import contextlib
import importlib.metadata
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import (
    atomic_directory,
    read_json,
    read_jsonl,
    read_record,
    sha256_file,
    sha256_json,
    write_json,
    write_jsonl,
)
from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.training.model_folder import ADAPTER_FILES, weight_files
from deepsearch_rl.training.step_times import stamp
from deepsearch_rl.training.swift_run import run_swift, swift_command
from deepsearch_rl.trajectories.convert import SwiftRow

ADAPTER_CONFIG, ADAPTER_WEIGHTS = ADAPTER_FILES
TRAINER_STATE = "trainer_state.json"  # the last file that a checkpoint gets
_STEP = re.compile(r"'global_step/max_steps': '(\d+)/(\d+)'")
_LOSS = re.compile(r"'loss': '?([\d.]+)")


class SftConfig(Record):
    """Params section ``sft``."""

    device: Literal["cpu", "cuda"] = Field(description="where training runs; never guessed")
    dtype: Literal["float32", "bfloat16"] = Field(description="of weights and activations")
    model_type: NonEmpty = Field(description="ms-swift's name of the architecture, e.g. qwen3")
    template: NonEmpty = Field(description="ms-swift's name of the chat template, e.g. qwen3_nothinking")
    agent_template: NonEmpty = Field(description="ms-swift's name of the tool call format, e.g. hermes")
    loss_scale: NonEmpty = Field(description="ms-swift's name of the tokens with loss: default, last_round, ...")
    lora_rank: int = Field(ge=1)
    lora_alpha: int = Field(ge=1, description="the adapter is scaled by alpha / rank")
    lora_dropout: float = Field(ge=0, lt=1)
    learning_rate: float = Field(gt=0, description="peak of the cosine schedule")
    warmup_ratio: float = Field(ge=0, lt=1, description="share of the steps with a rising learning rate")
    weight_decay: float = Field(ge=0)
    epochs: int = Field(ge=1)
    rows_per_forward: int = Field(ge=1, description="rows (packs, where rows are packed) of one forward pass")
    forwards_per_step: int = Field(ge=1, description="forward passes whose gradients make one update")
    max_length: int = Field(ge=1, description="longest row in tokens; longer rows are left out")
    packing: bool = Field(description="fill rows of max_length with several conversations; needs flash attention")
    attention: Literal["sdpa", "flash_attn"]
    gradient_checkpointing: bool = Field(description="recompute activations: a third slower, far less memory")
    save_steps: int = Field(ge=1, description="steps between checkpoints, from which a killed run goes on")


class SftLogLine(BaseModel):
    """One line of ``train_log.jsonl``: means since the line before."""

    step: int
    loss: float
    learning_rate: float
    token_acc: float = Field(description="share of trained tokens whose most likely token is right")
    grad_norm: float


class TrainerState(BaseModel):
    """How far a run is, and what it logged (``logging.jsonl`` repeats steps after a resume)."""

    global_step: int = Field(ge=0)
    max_steps: int = Field(ge=0)
    log_history: tuple[
        Annotated[SftLogLine | None, BeforeValidator(lambda entry: entry if "loss" in entry else None)], ...
    ] = Field(description="None for a summary, which has no loss")

    @property
    def lines(self) -> list[SftLogLine]:
        """The training curve."""
        return [line for line in self.log_history if line]


def swift_sft_command(
    config: SftConfig, model: Path, rows: Path, scratch: Path, seed: int, resume_from: Path | None = None
) -> list[str]:
    """Return the ``swift sft`` call.

    ``rows`` are ms-swift's, JSON Lines; ``scratch`` is for checkpoints; ``seed`` is that of adapter, dropout and data
    order; ``resume_from`` is a checkpoint of an earlier call with the same arguments.
    """
    flags: dict[str, object] = {
        "model": model,
        "model_type": config.model_type,
        "template": config.template,
        "agent_template": config.agent_template,
        "loss_scale": config.loss_scale,
        "preserve_thinking": True,  # a row holds what is to be seen of earlier turns
        "dataset": rows,
        "output_dir": scratch,
        "add_version": False,
        "tuner_type": "lora",
        "target_modules": "all-linear",
        "lora_rank": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "torch_dtype": config.dtype,
        "fp16": False,  # torch_dtype alone leaves mixed precision on
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
        "save_strategy": "steps",
        "save_steps": config.save_steps,
        "save_total_limit": 2,  # the newest may be half-written when the run is killed
        "logging_steps": 5,
        "report_to": "none",
        "seed": seed,
        "data_seed": seed,
        "check_model": False,  # asks a hub, and retries for 10 s without one
        "use_cpu": config.device == "cpu",
        "dataloader_num_workers": 0 if config.device == "cpu" else 4,
    }
    if resume_from is not None:
        flags["resume_from_checkpoint"] = resume_from
    return swift_command("sft", flags)


def train_adapter(config: SftConfig, model: Path, rows: Path, seed: int, work: Path, output: Path) -> None:
    """Train on a base model and ms-swift's rows; write adapter, ``train_log.jsonl`` and ``manifest.json`` at once.

    Checkpoints are in ``work`` under a name made from all inputs, so that a killed run continues.

    Raises:
        UnavailableError: params name a GPU and there is none.
        ArtifactError: there is no model, there are no rows to train on, or the trainer's state does not fit.
        RecordError: a line is not a row; names file, line and field.
        CommandError: ``swift sft`` failed.
    """
    if config.device == "cuda":
        require_gpu("sft", packages=["swift", "flash_attn|kernels"] if config.attention == "flash_attn" else ["swift"])
    count = sum(1 for _ in read_jsonl(rows, SwiftRow)) if rows.is_file() else 0
    if not count:
        raise ArtifactError(f"{rows} holds no rows to train on; look at the drop counts of the filter stage.")
    key = sha256_json([config.model_dump(), seed, *(sha256_file(path) for path in (rows, *weight_files(model)))])
    scratch = work / f"sft-{key[:12]}"
    checkpoint = newest_checkpoint(scratch)
    state = checkpoint and read_record(checkpoint / TRAINER_STATE, TrainerState)
    reached: dict[int, int] = {}
    if state is None or state.global_step < state.max_steps:
        command = swift_sft_command(config, model, rows, scratch, seed, checkpoint)
        with contextlib.ExitStack() as stack:
            run_swift(command, scratch / "swift.log", _progress(stack, reached))
        checkpoint = newest_checkpoint(scratch)
    if checkpoint is None:
        raise ArtifactError(f"swift sft left no checkpoint in {scratch}; its output is in swift.log there.")
    state = read_record(checkpoint / TRAINER_STATE, TrainerState)
    _stamp(state.lines, reached)
    packages = ("ms-swift", "transformers", "peft", "torch")
    manifest = {
        "tool": "ms-swift",
        "device": config.device,
        "dtype": config.dtype,
        "seed": seed,
        "rows": count,
        "steps": state.global_step,
        "final_loss": state.lines[-1].loss,
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }
    with atomic_directory(output) as partial:
        shutil.copyfile(checkpoint / ADAPTER_WEIGHTS, partial / ADAPTER_WEIGHTS)
        settings = read_json(checkpoint / ADAPTER_CONFIG)
        write_json(partial / ADAPTER_CONFIG, canonical_adapter_config(settings, model))
        write_jsonl(partial / "train_log.jsonl", state.lines)
        write_json(partial / "manifest.json", manifest)


def newest_checkpoint(scratch: Path) -> Path | None:
    """Return the last whole checkpoint, None if there is none; a killed run may leave one that is not whole."""
    checkpoints = []
    for folder in scratch.glob("checkpoint-*"):
        with contextlib.suppress(ArtifactError):
            if read_json(folder / TRAINER_STATE):
                checkpoints.append(folder)
    return max(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _stamp(lines: Sequence[SftLogLine], reached: Mapping[int, int]) -> None:
    """Note when the steps of the log were reached; those before a resume, at the resume."""
    for line in lines:
        if times := [time_ms for step, time_ms in reached.items() if step >= line.step]:
            stamp(line.model_dump(), min(times))


def _progress(stack: contextlib.ExitStack, reached: dict[int, int]) -> Callable[[str], None]:
    """Return a reader of swift's output that shows the steps done; the first line with steps gives the total.

    It notes in ``reached`` when (ms since 1970) each step was.
    """
    bar: ProgressBar | None = None
    last_step = 0

    def read(line: str) -> None:
        """Advance the bar to the step that a line names; other lines are ignored."""
        nonlocal bar, last_step
        step, loss = _STEP.search(line), _LOSS.search(line)
        if step is None:
            return
        done, total = int(step[1]), int(step[2])
        bar = bar or stack.enter_context(ProgressBar("sft", total, "steps"))
        bar.advance(done - last_step, note=f"loss {float(loss[1]):.3f}" if loss else "")
        last_step = done
        reached.setdefault(done, int(time.time() * 1000))

    return read


def canonical_adapter_config(config: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return PEFT's settings without what differs between equal runs: absolute paths and the order of a set."""
    return {**config, "base_model_name_or_path": str(model), "target_modules": sorted(config["target_modules"])}
