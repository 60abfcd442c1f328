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

import contextlib
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepsearch_rl.chat.prompts import (
    TRAINED_WITH,
    PromptDigests,
    TrainedWith,
    require_trained_with,
    served_with,
)
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
from deepsearch_rl.train.attention import (
    ATTENTION_FIX,
    attention_problem,
)
from deepsearch_rl.train.curves import record_step
from deepsearch_rl.train.finite import NotFiniteError, not_finite_metrics
from deepsearch_rl.train.model_folder import (
    ADAPTER_FILES,
    LOWEST_LOSS,
    MANIFEST,
    TRAIN_LOG,
    weight_files,
)
from deepsearch_rl.train.row_lengths import require_fitting_row, trained_rows
from deepsearch_rl.train.swift_call import SftConfig, swift_sft_command
from deepsearch_rl.train.swift_rows import SwiftRow
from deepsearch_rl.train.swift_run import run_swift
from deepsearch_rl.train.trainer_state import (
    TRAINER_STATE,
    TrainerState,
    logged_metrics,
    newest_checkpoint,
    remove_not_finite,
    whole_checkpoints,
)

ADAPTER_CONFIG, ADAPTER_WEIGHTS = ADAPTER_FILES
_STEP = re.compile(r"'global_step/max_steps': '(\d+)/(\d+)'")


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
        ConfigError: the model was trained with another prompt or tool than the rows hold, rows
            hold several, or all of them are too long.
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


def require_attention(config: SftConfig) -> None:
    """Raise UnavailableError, with the reason, if this environment cannot load what the attention needs."""
    problem = attention_problem(Path(sys.executable), config.attention)
    if problem:
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
        # A model learns one prompt: rows of two would be served by neither
        prompts.add(row.prompt_digests())

    if not count:
        raise ArtifactError(
            f"{rows} holds no rows to train on; look at the drop counts of the filter stage."
        )

    if len(prompts) > 1:
        raise ConfigError(
            f"the rows in {rows} have {len(prompts)} different system prompts or tool schemas, and "
            "a model is trained with one; run the stages synthesize and filter again."
        )

    return count, prompts.pop()


def _not_finite_sentence(problem: str) -> str:
    return (
        f"swift sft computed no number ({problem}), and every later step would be one of NaN. "
        "Checkpoints from there on are not kept. Lower sft.learning_rate, train in float32, or "
        "look for a row that is broken."
    )


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


def canonical_adapter_config(config: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return PEFT's settings without what differs between equal runs: absolute paths and the order of a set."""
    return {
        **config,
        "base_model_name_or_path": str(model),
        "target_modules": sorted(config["target_modules"]),
    }
