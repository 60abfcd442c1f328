"""Supervised fine-tuning with ms-swift: a LoRA on the teacher's successful trajectories.

The loss is on assistant tokens alone (reasoning, tool calls and answers), which ms-swift derives
from the roles of the rows; ``loss_scale`` restricts it to the last turn where each turn is a row of
its own. All checkpoints that are on disk at the end are published; the stage `choose_checkpoint`
takes one of them.

On a CPU, rows go through one at a time with gradients accumulated over a batch: without padding,
attention needs no mask and skips its upper half, which makes a token cost 90 us instead of 125 us
(three layers of 128, one thread), for the same gradient, because ms-swift divides the loss by the
tokens of the whole batch.
"""

import ast
import contextlib
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from deepsearch_rl.conversation.prompt_digests import PromptDigests
from deepsearch_rl.conversation.trained_with import TRAINED_WITH, require_trained_with, served_with
from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.core.files import (
    atomic_directory,
    read_json,
    read_jsonl,
    read_record,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.training.runs.curves import record_step
from deepsearch_rl.training.runs.finite import NotFiniteError, bad_numbers, not_finite_metrics
from deepsearch_rl.training.runs.model_folder import (
    ADAPTER_FILES,
    LOWEST_LOSS,
    MANIFEST,
    TRAIN_LOG,
    weight_files,
)
from deepsearch_rl.training.runs.swift_run import run_swift, swift_command
from deepsearch_rl.training.sft.attention import (
    ATTENTION_FIX,
    ATTENTION_PACKAGES,
    attention_problem,
)
from deepsearch_rl.trajectories.rows.convert import SwiftRow

ADAPTER_CONFIG, ADAPTER_WEIGHTS = ADAPTER_FILES
TRAINER_STATE = "trainer_state.json"  # the last file that a checkpoint gets
_STEP = re.compile(r"'global_step/max_steps': '(\d+)/(\d+)'")


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
        return [
            "swift",
            *ATTENTION_PACKAGES[self.attention],
            *(["liger_kernel"] if self.liger_kernel else []),
        ]

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


class SftLogLine(BaseModel):
    """One line of ``train_log.jsonl``: means since the line before."""

    step: int
    loss: float
    learning_rate: float
    token_acc: float | None = Field(
        default=None,
        description="share of trained tokens whose most likely token is right; None with liger_kernel (no logits)",
    )
    grad_norm: float
    eval_loss: float | None = Field(
        default=None, description="on the rows held back, at the steps with a checkpoint"
    )


class TrainerState(BaseModel):
    """How far a run is, and what it logged (``logging.jsonl`` repeats steps after a resume)."""

    global_step: int = Field(ge=0)
    max_steps: int = Field(ge=0)
    log_history: tuple[SftLogLine | None, ...] = Field(
        description="None for a summary, and for an evaluation"
    )
    best_global_step: int | None = Field(
        default=None, description="the evaluation with the lowest loss so far"
    )

    @field_validator("log_history", mode="before")
    @classmethod
    def _with_evaluations(
        cls, entries: list[dict[str, Any]] | None
    ) -> list[dict[str, Any] | None] | None:
        """Give every line the loss of its step's evaluation, which is an entry of its own."""
        if entries is None:
            return None
        losses = {
            entry.get("step"): entry["eval_loss"] for entry in entries if "eval_loss" in entry
        }
        return [
            {**entry, "eval_loss": losses.get(entry.get("step"))} if "loss" in entry else None
            for entry in entries
        ]

    @property
    def lines(self) -> list[SftLogLine]:
        """The training curve."""
        return [line for line in self.log_history if line]


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
        "save_total_limit": config.kept_checkpoints,  # besides the best one
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
        "check_model": False,  # asks a hub, and retries for 10 s without one
        "use_cpu": config.device == "cpu",
        "dataloader_num_workers": 0 if config.device == "cpu" else 4,
    }
    if resume_from is not None:
        flags["resume_from_checkpoint"] = resume_from
    return swift_command("sft", flags)


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
        ConfigError: the model was trained with another prompt or tool than the rows hold, or rows
            hold several.
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
    served = served_with(model, prompts)
    require_trained_with(model, served, f"the rows in {rows}")
    remove_not_finite(scratch)
    checkpoint = newest_checkpoint(scratch)
    state = checkpoint and read_record(checkpoint / TRAINER_STATE, TrainerState)

    if state is None or state.global_step < state.max_steps:
        command = swift_sft_command(config, model, rows, scratch, seed, checkpoint)
        with contextlib.ExitStack() as stack:
            run_swift(command, scratch / "swift.log", _progress(stack))
        if problem := remove_not_finite(scratch):
            raise NotFiniteError(_not_finite_sentence(problem))
        checkpoint = newest_checkpoint(scratch)

    if checkpoint is None:
        raise ArtifactError(
            f"swift sft left no checkpoint in {scratch}; its output is in swift.log there."
        )

    state = read_record(checkpoint / TRAINER_STATE, TrainerState)

    packages = ("ms-swift", "transformers", "peft", "torch")
    manifest = {
        "tool": "ms-swift",
        "device": config.device,
        "dtype": config.dtype,
        "seed": seed,
        "rows": count,
        "steps": state.global_step,
        **({LOWEST_LOSS: state.best_global_step} if config.eval_share else {}),
        "final_loss": state.lines[-1].loss,
        TRAINED_WITH: served.model_dump(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }

    with atomic_directory(output) as partial:
        for step, source in whole_checkpoints(scratch).items():
            adapter = partial / str(step)
            adapter.mkdir()
            shutil.copyfile(source / ADAPTER_WEIGHTS, adapter / ADAPTER_WEIGHTS)
            settings = canonical_adapter_config(read_json(source / ADAPTER_CONFIG), model)
            write_json(adapter / ADAPTER_CONFIG, settings)

        write_jsonl(partial / TRAIN_LOG, state.lines)
        write_json(partial / MANIFEST, manifest)


def require_attention(config: SftConfig) -> None:
    """Raise UnavailableError, with the reason, if this environment cannot load what the attention needs."""
    if problem := attention_problem(Path(sys.executable), config.attention):
        raise UnavailableError(f"what sft needs does not load: {problem}; {ATTENTION_FIX}.")


def read_rows(rows: Path) -> tuple[int, PromptDigests]:
    """Return how many rows a file holds, and the digests of the prompt and the tools that all of them have.

    Raise ArtifactError where there is none, ConfigError where rows differ in them, RecordError for
    what is no row.
    """
    count = 0
    prompts: set[PromptDigests] = set()
    for row in read_jsonl(rows, SwiftRow) if rows.is_file() else ():
        count += 1
        prompts.add(row.prompt_digests())

    if not count:
        raise ArtifactError(
            f"{rows} holds no rows to train on; look at the drop counts of the filter stage."
        )

    if len(prompts) > 1:
        raise ConfigError(
            f"the rows in {rows} have {len(prompts)} different system prompts or tool schemas, and a model is trained "
            "with one; run the stages synthesize and filter again."
        )

    return count, prompts.pop()


def whole_checkpoints(scratch: Path) -> dict[int, Path]:
    """Return the checkpoints by step, in order; one that a killed run left half-written is none."""
    checkpoints: dict[int, Path] = {}
    for folder in scratch.glob("checkpoint-*"):
        with contextlib.suppress(ArtifactError):
            if read_json(folder / TRAINER_STATE):
                checkpoints[int(folder.name.rpartition("-")[2])] = folder

    return dict(sorted(checkpoints.items()))


def newest_checkpoint(scratch: Path) -> Path | None:
    """Return the last whole checkpoint, None if there is none."""
    return next(reversed(whole_checkpoints(scratch).values()), None)


def remove_not_finite(scratch: Path) -> str:
    """Remove the checkpoints whose training had a loss or a gradient that is not finite; return the first such step.

    As in ``step 12: grad_norm nan``; empty where there is none.
    """
    first = ""
    for folder in whole_checkpoints(scratch).values():
        state = read_record(folder / TRAINER_STATE, TrainerState)
        problems = (
            (line.step, bad_numbers(line.model_dump(exclude={"step"}))) for line in state.lines
        )
        if problem := next((f"step {step}: {bad}" for step, bad in problems if bad), ""):
            shutil.rmtree(folder)
            first = first or problem

    return first


def _not_finite_sentence(problem: str) -> str:
    return (
        f"swift sft computed no number ({problem}), and every later step would be one of NaN. Checkpoints from there "
        "on are not kept. Lower sft.learning_rate, train in float32, or look for a row that is broken."
    )


def _progress(stack: contextlib.ExitStack) -> Callable[[str], None]:
    """Return a reader of swift's output that shows and records the steps done; the first one gives the total."""
    bar: ProgressBar | None = None
    last_step = 0

    def read(line: str) -> None:
        """Advance the bar to the step that a line names; other lines are ignored. Raise NotFiniteError at NaN."""
        nonlocal bar, last_step
        if problem := not_finite_metrics(line):
            raise NotFiniteError(_not_finite_sentence(f"after step {last_step}: {problem}"))
        match = _STEP.search(line)
        if match is None:
            return
        step = int(match[1])
        total = int(match[2])
        metrics = logged_metrics(line)
        bar = bar or stack.enter_context(ProgressBar("sft", total, "steps"))
        bar.advance(
            step - last_step, note=f"loss {metrics['loss']:.3f}" if "loss" in metrics else ""
        )
        last_step = step
        if metrics:
            record_step({"step": step, **metrics})

    return read


def logged_metrics(line: str) -> Mapping[str, float]:
    """Return the metrics of the curve that a line of swift's output has, rounded to 8 digits; of a summary, none."""
    try:
        entry = ast.literal_eval(line[line.index("{") : line.rindex("}") + 1])
    except (ValueError, SyntaxError):  # no such line, or NaN, which is a name
        return {}

    if not {"loss", "eval_loss"} & set(entry):
        return {}
    names = (name for name in entry if name.removeprefix("eval_") in SftLogLine.model_fields)
    return {name: float(entry[name]) for name in names}


def canonical_adapter_config(config: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return PEFT's settings without what differs between equal runs: absolute paths and the order of a set."""
    return {
        **config,
        "base_model_name_or_path": str(model),
        "target_modules": sorted(config["target_modules"]),
    }
