"""ms-swift's commands, and what its trainer leaves: checkpoints, their states and printed metrics."""

import ast
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

from deepsearch_rl.core.errors import ArtifactError, CommandError
from deepsearch_rl.core.files import read_json, read_record
from deepsearch_rl.core.processes import ProcessGuard, stream_lines
from deepsearch_rl.train.finite import bad_numbers

# The last file that a checkpoint gets
TRAINER_STATE = "trainer_state.json"

TRAINER_LOG = "logging.jsonl"

# As in "train_dataset": "207.6±1.96, min=206.0, max=210.0, size=10"
_DATASET_SIZE = re.compile(r'"(?:train|val)_dataset": "[^"]*\bsize=(\d+)"')


def swift_command(subcommand: str, flags: Mapping[str, object]) -> list[str]:
    """Return the call ``swift <subcommand> --name value ...`` with booleans as ms-swift writes them."""
    command = ["swift", subcommand]
    for name, value in flags.items():
        text = str(value)
        command += [f"--{name}", text.lower() if isinstance(value, bool) else text]

    return command


def run_swift(
    command: Sequence[str], log_path: Path, on_line: Callable[[str], object] = lambda _: None
) -> None:
    """Run ``["swift", subcommand, *flags]`` to its end; raise CommandError for an exit code other than 0.

    ``swift.cli.<subcommand>`` is run directly, 3 s sooner than through the ``swift`` launcher,
    unless NPROC_PER_NODE or NNODES is set: the launcher then starts torchrun, with a process per
    GPU. Every line of output that is not blank is appended to the log and given to ``on_line``; a
    carriage return ends one too.
    """
    program, subcommand, *flags = command
    is_distributed = {"NPROC_PER_NODE", "NNODES"} & os.environ.keys()
    module = ["main", subcommand] if is_distributed else [subcommand]
    log_path.parent.mkdir(parents=True, exist_ok=True)

    with ProcessGuard() as guard, log_path.open("a", encoding="utf-8") as log:
        # -u: a step is shown when it is done, not when a buffer is full
        python = [sys.executable, "-u", "-m"]
        process = guard.start([*python, f"{program}.cli.{module[0]}", *module[1:], *flags])

        def keep(line: str) -> None:
            log.write(f"{line}\n")
            on_line(line)

        tail = "\n".join(stream_lines(process, keep))

    if process.returncode != 0:
        raise CommandError(
            f"`{program} {subcommand}` ended with exit code {process.returncode}; its output is in "
            f"{log_path}, the end is:\n"
            f"{tail}"
        )


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
        losses: dict[Any, Any] = {}
        for entry in entries:
            if "eval_loss" in entry:
                losses[entry.get("step")] = entry["eval_loss"]

        lines: list[dict[str, Any] | None] = []
        for entry in entries:
            # An evaluation, or the summary at the end
            if "loss" not in entry:
                lines.append(None)
                continue
            lines.append({**entry, "eval_loss": losses.get(entry.get("step"))})

        return lines

    @property
    def lines(self) -> list[SftLogLine]:
        """The training curve."""
        return [line for line in self.log_history if line]


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
        problem = _first_bad_step(read_record(folder / TRAINER_STATE, TrainerState))
        if problem:
            shutil.rmtree(folder)
            first = first or problem

    return first


def _first_bad_step(state: TrainerState) -> str:
    for line in state.lines:
        bad = bad_numbers(line.model_dump(exclude={"step"}))
        if bad:
            return f"step {line.step}: {bad}"
    return ""


def fitting_rows(scratch: Path) -> int | None:
    """Return how many rows the trainer kept, those held back with them; None where its log does not say.

    It leaves out rows that are longer than its limit, without a word, and logs at its end how many
    were left.
    """
    rows: int | None = None
    log = scratch / TRAINER_LOG
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        sizes = _DATASET_SIZE.findall(line)
        if sizes:
            rows = sum(map(int, sizes))

    return rows


def logged_metrics(line: str) -> Mapping[str, float]:
    """Return the metrics of the curve that a line of swift's output has, rounded to 8 digits; of a summary, none."""
    try:
        entry = ast.literal_eval(line[line.index("{") : line.rindex("}") + 1])
    except (ValueError, SyntaxError):
        # Another line, or NaN, which is a name and no literal
        return {}

    if not {"loss", "eval_loss"} & set(entry):
        return {}

    metrics: dict[str, float] = {}
    for name, value in entry.items():
        # Others, as speed and memory, are figures of the machine
        if name.removeprefix("eval_") in SftLogLine.model_fields:
            metrics[name] = float(value)

    return metrics
