"""Reinforcement learning from search: rollouts by the agent, updates by an engine, the best checkpoint by dev F1.

One step: the policy as it is answers every question of the step's batch ``group_size`` times, the engine updates the
policy from the rewards, which are compared inside each question's group. Rollouts that infrastructure broke are counted
and not trained on. ``train_log.jsonl`` gets one line per step; a killed run continues after the last step with a line.
"""

import asyncio
import logging
import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from transformers import AutoTokenizer

from deepsearch_rl.agent.chat_messages import OPEN_THINK
from deepsearch_rl.agent.config import FUNCTION_CALLING
from deepsearch_rl.answers import score_rollout
from deepsearch_rl.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.files import AppendLog, atomic_directory, read_jsonl, sha256_json, write_json, write_jsonl
from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.records import Question, StopReason, Trajectory
from deepsearch_rl.training.curves import record_step
from deepsearch_rl.training.rl.checkpoints import kept_steps, origin
from deepsearch_rl.training.rl.heartbeat import begin
from deepsearch_rl.training.rl.rewards import PolicyText, reward_parts
from deepsearch_rl.training.rl.trainer import RlConfig, RlTask, RlTrainer, Rollout, Sampling

_LOG = logging.getLogger(__name__)
TRAIN_LOG = "train_log.jsonl"
PartsT = TypeVar("PartsT")
BROKEN = frozenset({StopReason.TOOL_ERROR, StopReason.MODEL_ERROR, StopReason.DEADLINE})
"""How a rollout ends that infrastructure broke: a search or a model call failed, or time ran out."""


class RlLogLine(BaseModel):
    """One step of ``train_log.jsonl``: its number and its metrics by name."""

    model_config = ConfigDict(extra="allow", frozen=True)

    step: int
    dev_f1: float | None = None

    @property
    def metrics(self) -> Mapping[str, float]:
        """What rollouts and update say of themselves; empty at step 0."""
        return self.model_extra or {}


def train_policy(task: RlTask, config: RlConfig, trainer: RlTrainer, output: Path) -> None:
    """Train from ``task.start`` and write the best checkpoint's adapter, ``train_log.jsonl`` and ``manifest.json``.

    Raises:
        StalePolicyError: the server does not serve the policy that was just trained.
        ConfigError: params have no number of steps for this start, more of them than ``rl.epochs``, another protocol,
            or thoughts not sent back.
        ArtifactError: a split without a question.
        EndpointError: all rollouts of a step failed.
    """
    if task.start_name not in config.steps:
        raise ConfigError(f"rl.steps has no entry for the start {task.start_name!r}; add one.")
    if task.agent.protocol != FUNCTION_CALLING:
        raise ConfigError(f"rl trains function_calling, not {task.agent.protocol}; change agent.protocol.")
    for split, questions in (("train", task.train), ("dev", task.dev)):
        if not questions:
            raise ArtifactError(f"the {split} split of rl.dataset {config.dataset!r} has no question.")
    drawn, limit = config.steps[task.start_name] * config.groups_per_step, config.epochs * len(task.train)
    if drawn > limit:
        raise ConfigError(
            f"rl.steps.{task.start_name} x rl.groups_per_step are {drawn} questions, more than rl.epochs = "
            f"{config.epochs:g} over the {len(task.train)} train questions of {config.dataset}; lower the steps to "
            f"{int(limit // config.groups_per_step)} or raise rl.epochs."
        )
    policy = policy_text(task.start, config)
    if policy.opens_thought and not task.agent.history_reasoning:
        raise ConfigError(
            f"{task.start} thinks before every turn, and rl trains a rollout as one conversation with all its "
            "thoughts; set agent.history_reasoning: true, so that this is what the model is served."
        )
    lines = asyncio.run(_Run(task, config, trainer, policy).train())
    best, start_f1 = best_line(lines), lines[1].metrics["f1"] if len(lines) > 1 else None
    manifest = {
        "start": task.start_name,
        "steps": lines[-1].step,
        "best_step": best.step,
        "best_dev_f1": best.dev_f1,
        "sampled_f1_at_start": start_f1,
        "below_gate": start_f1 is not None and start_f1 < config.gate_f1,
        "backend": f"{config.backend.engine}, {config.backend.service}",
        **trainer.hardware,
        "seed": task.seed,
        **origin(task.scratch),
    }
    with atomic_directory(output) as partial:
        trainer.save(best.step, partial)
        shutil.copyfile(task.scratch / TRAIN_LOG, partial / TRAIN_LOG)
        write_json(partial / "manifest.json", manifest)


def policy_text(start: Path, config: RlConfig) -> PolicyText:
    """Return how to read the policy that starts from a model folder, from its tokenizer and chat template."""
    tokenizer = AutoTokenizer.from_pretrained(start)
    turns = [{"role": "user", "content": "?"}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return PolicyText(
        count_tokens=lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]),
        think_length=config.think_length,
        opens_thought=str(prompt).rstrip().endswith(OPEN_THINK),
    )


def batch(task: RlTask, step: int, size: int) -> list[Question]:
    """Return the questions of a step, counted from 0: consecutive slices of one shuffled order per epoch."""
    count = len(task.train)
    places = [divmod(place, count) for place in range(step * size, (step + 1) * size)]
    orders = {epoch: random.Random(f"{task.seed}/{epoch}").sample(task.train, count) for epoch, _ in places}
    return [orders[epoch][place] for epoch, place in places]


@dataclass(frozen=True, slots=True)
class _Run:
    """The running training."""

    task: RlTask
    config: RlConfig
    trainer: RlTrainer
    policy: PolicyText

    async def train(self) -> list[RlLogLine]:
        """Train the steps that have no line in the log yet and return the whole log."""
        steps, log_path = self.config.steps[self.task.start_name], self.task.scratch / TRAIN_LOG
        AppendLog(log_path).close()  # cuts off a line that a kill left unfinished
        lines = list(read_jsonl(log_path, RlLogLine))
        try:
            begin("start", len(lines))
            done = await self.trainer.start(max(0, len(lines) - 1))
            if done + 1 < len(lines):  # the newest checkpoints were damaged: their steps are made again
                lines = lines[: done + 1]
                write_jsonl(log_path, lines)
            with (
                AppendLog(log_path) as log,
                ProgressBar(f"rl@{self.task.start_name}", steps, "steps", done=done) as bar,
            ):
                for step in range(len(lines), steps + 1):
                    if step and evaluations_since_best(lines) >= (self.config.patience or steps + 2):
                        break
                    metrics = await self._update(step) if step else {}
                    evaluated = step % self.config.dev.every == 0 or step == steps
                    begin("dev", step)
                    dev_f1 = await self._dev_f1() if evaluated else None
                    begin("save", step)
                    lines.append(RlLogLine(step=step, dev_f1=dev_f1, **metrics))
                    record_step(lines[-1].model_dump())
                    log.append(lines[-1])
                    self.trainer.keep_only(kept_steps(best_steps(lines), self.config.keep))
                    bar.advance(min(step, 1), note=_note(lines[-1]))
        finally:
            await self.trainer.close()
        return lines

    async def _update(self, step: int) -> dict[str, float]:
        """Make the policy of a step from the one before; return the metrics of rollouts and update."""
        config, draw = self.config, step - 1
        questions = batch(self.task, draw, config.groups_per_step)
        sampling = Sampling(config.group_size, config.temperature, self._seed(draw), trained=True)
        begin("roll out", step)
        rollouts_QG = await self.trainer.roll_out(questions, sampling)
        begin("update", step)
        parts_QG = [
            [reward_parts(config.rewards, rollout.trajectory, question, self.policy) for rollout in rollouts_G]
            for question, rollouts_G in zip(questions, rollouts_QG, strict=True)
        ]
        trajectories = [rollout.trajectory for rollouts_G in rollouts_QG for rollout in rollouts_G]
        metrics = rollout_metrics(trajectories, [parts for parts_G in parts_QG for parts in parts_G])
        if step == 1 and metrics["f1"] < config.gate_f1:
            text = "rl@%s starts at a sampled F1 of %.2f, below the gate of %.2f: expect it to learn little."
            _LOG.warning(text, self.task.start_name, metrics["f1"], config.gate_f1)
        kept_QG, kept_parts_QG = trainable(rollouts_QG, parts_QG)
        metrics["left_out"] = float(len(trajectories) - sum(map(len, kept_QG)))
        shuffler = random.Random(f"{self.task.seed}/{draw}") if config.shuffle_rewards else None
        return metrics | await self.trainer.update(kept_QG, group_rewards(kept_parts_QG, shuffler))

    async def _dev_f1(self) -> float:
        questions = self.task.dev[: self.config.dev.questions]
        sampling = Sampling(self.config.dev.samples, self.config.dev.temperature, self._seed(-1), trained=False)
        groups = await self.trainer.roll_out(questions, sampling)
        trainable(groups, groups)  # a server that fails everything says nothing of the policy
        return fmean(score_rollout(rollout.trajectory).f1 for rollouts_G in groups for rollout in rollouts_G)

    def _seed(self, draw: int) -> int:
        """Return the seed of a roll-out; all dev runs share one draw and thus their random numbers."""
        return int(sha256_json([self.task.seed, draw])[:12], 16)


def best_line(lines: Sequence[RlLogLine]) -> RlLogLine:
    """Return the line of the step with the best dev F1, the earliest of equals."""
    evaluated = [line for line in lines if line.dev_f1 is not None]
    return max(evaluated, key=lambda line: (line.dev_f1 or 0.0, -line.step))


def best_steps(lines: Sequence[RlLogLine]) -> list[int]:
    """Return the best step so far after every line; before the first dev score, the first line's."""
    steps: list[int] = []
    best, score = lines[0].step, -1.0
    for line in lines:
        if line.dev_f1 is not None and line.dev_f1 > score:
            best, score = line.step, line.dev_f1
        steps.append(best)
    return steps


def evaluations_since_best(lines: Sequence[RlLogLine]) -> int:
    """Return how many dev scores came after the best one without being better."""
    best = best_line(lines).step
    return sum(line.dev_f1 is not None and line.step > best for line in lines)


def trainable(
    rollouts_QG: Sequence[Sequence[Rollout]], parts_QG: Sequence[Sequence[PartsT]]
) -> tuple[list[list[Rollout]], list[list[PartsT]]]:
    """Leave out the rollouts of :data:`BROKEN`, whose reward of zero says nothing of the policy, and empty groups.

    Raises EndpointError if nothing is left: a server that fails everything must not use up steps.
    """
    kept_QG = [
        [pair for pair in zip(rollouts_G, parts_G, strict=True) if pair[0].trajectory.stop_reason not in BROKEN]
        for rollouts_G, parts_G in zip(rollouts_QG, parts_QG, strict=True)
    ]
    kept_QG = [kept_G for kept_G in kept_QG if kept_G]
    if not kept_QG:
        first = rollouts_QG[0][0].trajectory
        raise EndpointError(
            f"every rollout of the step failed; the first one ended with {first.stop_reason}: {first.error}. Nothing "
            "of the step was kept; check the server that this names and run the command again, which goes on from the "
            "last step."
        )
    return [[pair[0] for pair in kept_G] for kept_G in kept_QG], [[pair[1] for pair in kept_G] for kept_G in kept_QG]


def group_rewards(
    parts_QG: Sequence[Sequence[Mapping[str, float]]], shuffler: random.Random | None = None
) -> list[list[float]]:
    """Return the rewards of Q groups of G rollouts, each the sum of its parts.

    ``shuffler`` shuffles them inside every group: the control experiment in which a reward says nothing.
    """
    rewards_QG = [[sum(parts.values()) for parts in parts_G] for parts_G in parts_QG]
    if shuffler is not None:
        for rewards_G in rewards_QG:
            shuffler.shuffle(rewards_G)
    return rewards_QG


def rollout_metrics(trajectories: Sequence[Trajectory], parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return means over a step's rollouts: reward and parts, F1, lengths, tool calls, and the share of each failure."""
    n = len(trajectories)
    failures = Counter(trajectory.stop_reason for trajectory in trajectories if trajectory.failed)
    return {
        "reward": sum(sum(rewards.values()) for rewards in parts) / n,
        **{f"reward/{name}": sum(rewards[name] for rewards in parts) / n for name in parts[0]},
        "f1": sum(score_rollout(trajectory).f1 for trajectory in trajectories) / n,
        "response_tokens": fmean(trajectory.completion_tokens for trajectory in trajectories),
        "tool_calls": fmean(trajectory.tool_calls for trajectory in trajectories),
        "rounds": fmean(trajectory.rounds for trajectory in trajectories),
        **{f"failures/{kind}": count / n for kind, count in sorted(failures.items())},
    }


def _note(line: RlLogLine) -> str:
    values = {"reward": line.metrics.get("reward"), "F1": line.metrics.get("f1"), "dev F1": line.dev_f1}
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items() if value is not None)
