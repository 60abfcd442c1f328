"""Reinforcement learning from search: rollouts, updates by an engine, the best step by dev F1.

One step: the current policy answers every question of the step's batch ``group_size`` times, and the
engine updates the policy from the rewards, which are compared inside each question's group.
Rollouts that infrastructure broke are counted and not trained on. ``train_log.jsonl`` gets one line
per step; a killed run continues after the last step with a line.
"""

import asyncio
import itertools
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from deepsearch_rl.chat.prompts import TRAINED_WITH
from deepsearch_rl.core.files import (
    AppendLog,
    atomic_directory,
    read_json,
    read_jsonl,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.train.curves import TrainingStep, standard_error
from deepsearch_rl.train.finite import NotFiniteError
from deepsearch_rl.train.rewards import PolicyText, reward_parts
from deepsearch_rl.train.rl.health import gate_warning
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, RlTrainer, Rollout, RolloutSampling
from deepsearch_rl.train.rl.rollouts import (
    DevScores,
    Groups,
    batch,
    progress_note,
    roll_out_seed,
    rollout_metrics,
    trainable,
)
from deepsearch_rl.train.rl.run_log import TRAIN_LOG, RunLog, best_line
from deepsearch_rl.train.rl.task_checks import check_task
from deepsearch_rl.train.rl.watchdog import begin

# File of the scratch folder that says which step's update was not finite, and how often
BAD_UPDATE = "bad_update.json"


def train_policy(task: RlTask, config: RlConfig, trainer: RlTrainer, output: Path) -> None:
    """Train from ``task.start``; write the best adapter, ``train_log.jsonl`` and ``manifest.json``.

    Raises:
        StalePolicyError: the server does not serve the policy that was just trained.
        EndpointError: all rollouts of a step failed.
        Other errors: as :func:`~deepsearch_rl.train.rl.task_checks.check_task`.
    """
    served, policy = check_task(task, config)
    run = _Run(task, config, trainer, policy, DevScores(task, config, trainer))
    run_log = asyncio.run(run.train())
    lines = run_log.lines
    best = best_line(lines)
    manifest = {
        "start": task.start_name,
        "steps": lines[-1].step,
        "best_step": best.step,
        "best_dev_f1": best.dev_f1,
        **_gate_figures(lines[0], config),
        "alarms": [alarm.model_dump() for alarm in run_log.alarms.began],
        "backend": f"{config.backend.engine}, {config.backend.service}",
        **trainer.hardware,
        "seed": task.seed,
        TRAINED_WITH: served.model_dump(),
    }

    with atomic_directory(output) as partial:
        trainer.save(best.step, partial)
        shutil.copyfile(task.scratch / TRAIN_LOG, partial / TRAIN_LOG)
        write_json(partial / "manifest.json", manifest)


def _gate_figures(start: TrainingStep, config: RlConfig) -> dict[str, object]:
    """Return what the manifest says of the gate, which the line of step 0 holds."""
    pass_1 = start.metrics["pass_1"]
    pass_k = start.metrics["pass_k"]
    samples = config.gate.samples
    return {
        "gate": {"pass_1": pass_1, "pass_k": pass_k, "samples": samples},
        "gate_warning": gate_warning(pass_1, pass_k, samples, config.gate.min_f1),
    }


def _rewards(rollouts_QG: Groups) -> list[list[float]]:
    rewards_QG: list[list[float]] = []
    for group in rollouts_QG:
        rewards_QG.append([rollout.reward for rollout in group])

    return rewards_QG


def _has_signal(group: Sequence[Rollout]) -> bool:
    """Return whether the rewards of a group differ: advantages of equal ones are zero."""
    return len({rollout.reward for rollout in group}) > 1


@dataclass(frozen=True, slots=True)
class _Run:
    """The running training."""

    task: RlTask
    config: RlConfig
    trainer: RlTrainer
    policy: PolicyText
    dev_scores: DevScores

    async def train(self) -> RunLog:
        """Train the steps that have no line in the log yet and return the whole log."""
        steps = self.config.steps[self.task.start_name]
        log_path = self.task.scratch / TRAIN_LOG

        try:
            run_log, done = await self._resume(log_path)
            with (
                AppendLog(log_path) as log,
                ProgressBar(f"rl@{self.task.start_name}", steps, "steps", done=done) as bar,
            ):
                for step in range(len(run_log.lines), steps + 1):
                    if step and run_log.is_stopped(self.config):
                        break

                    figures = await self._step(step, steps)
                    begin("save", step)
                    line = run_log.add(figures)
                    log.append(line)

                    self.trainer.keep_only(run_log.kept_steps(self.config.kept_checkpoints))
                    bar.advance(min(step, 1), note=progress_note(line))
        finally:
            await self.trainer.close()

        return run_log

    async def _resume(self, log_path: Path) -> tuple[RunLog, int]:
        """Start the engine; return the log so far and the last step whose policy the engine has."""
        # Cuts off a line that a kill left unfinished
        AppendLog(log_path).close()
        lines = list(read_jsonl(log_path, TrainingStep))
        begin("start", len(lines))
        done = await self.trainer.start(max(0, len(lines) - 1))

        # The newest checkpoints were damaged: their steps are made again.
        if done + 1 < len(lines):
            lines = lines[: done + 1]
            write_jsonl(log_path, lines)

        if lines:
            self.trainer.require_whole(best_line(lines).step)
        return RunLog(f"rl@{self.task.start_name}", lines), done

    async def _step(self, step: int, steps: int) -> dict[str, float | None]:
        """Make the policy of a step, evaluate it, and return the figures of its line; step 0 is the start."""
        metrics = await self._update(step) if step else {}

        begin("dev", step)
        if step == 0:
            # What RL can find is asked of the start alone
            metrics = await self.dev_scores.gate()
            # The watchdog's limit is that of one score
            begin("dev", step)

        dev: dict[str, float | None] = {"dev_f1": None}
        if step % self.config.dev.every == 0 or step == steps:
            dev.update(await self.dev_scores.dev_f1())

        return {"step": step, **dev, **metrics}

    async def _update(self, step: int) -> dict[str, float]:
        """Make and serve the policy of a step; return the metrics of its rollouts and of the update."""
        kept_QG, rewards_QG, metrics = await self._rewarded(step)
        metrics |= await self._finite_update(step, kept_QG, rewards_QG)
        await self.trainer.serve()
        return metrics

    async def _finite_update(
        self, step: int, rollouts_QG: Groups, rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Have the engine update; note one that is not finite: its next try has other rollouts."""
        try:
            return await self.trainer.update(rollouts_QG, rewards_QG)
        except NotFiniteError:
            tries = self._bad_tries(step) + 1
            write_json(self.task.scratch / BAD_UPDATE, {"step": step, "tries": tries})
            raise

    def _bad_tries(self, step: int) -> int:
        """Return how many updates of this step were not finite."""
        path = self.task.scratch / BAD_UPDATE
        noted = read_json(path) if path.is_file() else {}
        return int(noted["tries"]) if noted.get("step") == step else 0

    async def _rewarded(self, step: int) -> tuple[Groups, list[list[float]], dict[str, float]]:
        """Return the rollouts of a step to train on, their rewards, and the metrics of all."""
        begin("roll out", step)
        rollouts_QG = await self._roll_out(step)
        begin("update", step)
        kept_QG = trainable(rollouts_QG)
        signals = sum(map(_has_signal, kept_QG))

        # Of all rollouts, those of failed servers too: a step that leaves many out shows it here
        rollouts = list(itertools.chain.from_iterable(rollouts_QG))
        reward_Q = list(map(fmean, _rewards(rollouts_QG)))
        metrics = rollout_metrics(rollouts, self.task.agent.max_searches)
        metrics |= standard_error("reward", reward_Q)
        metrics["questions"] = len(rollouts_QG)
        metrics["left_out"] = float(len(rollouts) - sum(map(len, kept_QG)))
        metrics["groups_without_signal"] = 1 - signals / len(rollouts_QG)

        rewards_QG = _rewards(kept_QG)
        # A control: rewards that say nothing must teach nothing
        if self.config.shuffle_rewards:
            shuffler = random.Random(f"{self.task.seed}/{step - 1}")
            for rewards_G in rewards_QG:
                shuffler.shuffle(rewards_G)

        return kept_QG, rewards_QG, metrics

    async def _roll_out(self, step: int) -> Groups:
        """Return the rollouts of a step's questions with their rewards."""
        size = self.config.groups_per_step
        questions = batch(self.task, (step - 1) * size, size)
        seed = roll_out_seed(self.task.seed, step - 1, self._bad_tries(step))
        sampling = RolloutSampling(
            self.config.group_size, self.config.temperature, seed, trained=True
        )
        rollouts_QG = await self.trainer.roll_out(questions, sampling)
        weights = self.config.rewards
        policy = self.policy

        rewarded_QG: Groups = []
        for question, group in zip(questions, rollouts_QG, strict=True):
            rewarded_G: list[Rollout] = []
            for rollout in group:
                parts = reward_parts(weights, rollout.trajectory, question, policy)
                rewarded_G.append(replace(rollout, parts=parts))

            rewarded_QG.append(rewarded_G)

        return rewarded_QG
