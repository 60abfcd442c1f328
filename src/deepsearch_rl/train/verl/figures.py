"""veRL's figures of a run, as the steps that the log of every engine has.

veRL writes a file of JSON lines for each start of its trainer. A start that goes on from an earlier
checkpoint writes some steps again: the newer figures of a step count.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from deepsearch_rl.core.records import Record
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.run_log import RunLog

# Our names of veRL's figures
FIGURES: Mapping[str, str] = {
    "critic/score/mean": "reward",
    "actor/entropy": "entropy",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "actor/loss": "loss",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/ppo_kl": "kl_to_old",
    "actor/kl_loss": "kl",
    "rollout_corr/log_ppl_abs_diff": "mismatch_mean",
    "response_length/mean": "response_tokens",
    "num_turns/mean": "rounds",
    "timing_s/step": "step_s",
    "critic/grad_norm": "critic_grad_norm",
    "critic/vf_loss": "value_loss",
    "critic/vf_explained_var": "value_explained",
}


class VerlLine(Record):
    """A line of veRL's file logger."""

    step: int
    data: dict[str, Any]


class VerlSteps:
    """The log of a run, which grows with veRL's files; ``lines`` are those of an earlier start."""

    def __init__(self, run: str, lines: Sequence[TrainingStep]) -> None:
        self._run = run
        self._lines: list[TrainingStep] = []
        self.log = RunLog(run, ())
        self._go_back(lines)

    @property
    def last(self) -> int | None:
        """The newest step; None before the first one."""
        return self._lines[-1].step if self._lines else None

    def take(self, lines: Sequence[TrainingStep]) -> list[TrainingStep]:
        """Add the steps that are new in veRL's log, and return them.

        Steps that are trained again, because a start goes on from an earlier checkpoint, take the
        place of those before.
        """
        # Steps that were trained again have other figures
        unchanged = 0
        for old, new in zip(self._lines, lines, strict=False):
            if old != new:
                break
            unchanged += 1
        if unchanged < len(self._lines):
            self._go_back(lines[:unchanged])

        for line in lines[unchanged:]:
            self._lines.append(line)
            self.log.add(line.model_dump())
        return list(lines[unchanged:])

    def _go_back(self, lines: Sequence[TrainingStep]) -> None:
        """Let the log have these steps alone; they are in the curve already."""
        self._lines = list(lines)
        self.log = RunLog(self._run, ())
        for line in lines:
            self.log.restore(line.model_dump())


def read_logs(logs: Path, config: RlConfig) -> list[TrainingStep]:
    """Return a line for each step in veRL's logs, one of each start; a step trained again replaces the one before."""
    figures: dict[int, dict[str, Any]] = {}
    for path in sorted(logs.glob("*.jsonl")):
        # A line that is being written has no end
        for text in path.read_bytes().split(b"\n")[:-1]:
            line = TypeAdapter(VerlLine).validate_json(text)
            # A start that goes on validates again the step that it goes on from
            figures = {step: known for step, known in figures.items() if step <= line.step}
            figures.setdefault(line.step, {}).update(line.data)
    return [_step_line(step, figures[step], config) for step in sorted(figures)]


def _step_line(step: int, figures: Mapping[str, Any], config: RlConfig) -> TrainingStep:
    """Return a step's figures by our names."""
    dev = f"val-aux/{config.dataset}/"
    own: dict[str, float | None] = {"step": step, "dev_f1": None}
    for name, value in figures.items():
        # veRL's value was no finite number
        if value is None:
            continue
        if name in FIGURES:
            own[FIGURES[name]] = float(value)
        elif name.startswith(dev) and name.endswith(f"/mean@{config.dev.samples}"):
            own["dev_" + name.removeprefix(dev).rpartition("/")[0]] = float(value)
    return TrainingStep.model_validate(own)
