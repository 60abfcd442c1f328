"""Reinforcement learning from search: rollouts, updates by an engine, the best step by dev F1.

One step: the policy as it is answers every question of the step's batch ``group_size`` times, the
engine updates the policy from the rewards, which are compared inside each question's group.
Rollouts that infrastructure broke are counted and not trained on. ``train_log.jsonl`` gets one line
per step; a killed run continues after the last step with a line.

With ``rl.max_refills`` a step rolls out further questions in place of those whose rewards are all
equal (dynamic sampling, DAPO, arXiv 2503.14476). The log counts a step's questions; the next step
begins after them.

With ``rl.rollouts_ahead`` the next step is rolled out while the policy is updated, by the policy
before that update: one step off policy. The first step after every start is on policy, so that a
run that was killed does not end with the bytes of one that was not.
"""

import asyncio
import itertools
import logging
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from transformers import AutoTokenizer

from deepsearch_rl.conversation.trained_with import TRAINED_WITH, served_with
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import (
    AppendLog,
    atomic_directory,
    read_json,
    read_jsonl,
    sha256_json,
    write_json,
    write_jsonl,
)
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Question
from deepsearch_rl.serving.opened_thought import prompt_opens_thought
from deepsearch_rl.training.rewards.rewards import PolicyText, reward_parts
from deepsearch_rl.training.rl.checkpoints import kept_steps, origin
from deepsearch_rl.training.rl.health import alarms_at_end, alarms_of_log, gate_warning
from deepsearch_rl.training.rl.heartbeat import begin
from deepsearch_rl.training.rl.question_order import batch
from deepsearch_rl.training.rl.step_rollouts import (
    Groups,
    progress_note,
    rollout_metrics,
    trainable,
)
from deepsearch_rl.training.rl.task_checks import require_task, require_thoughts_sent_back
from deepsearch_rl.training.rl.trainer import RlConfig, RlTask, RlTrainer, Rollout, Sampling
from deepsearch_rl.training.runs.curves import TrainingStep, record_step, standard_error
from deepsearch_rl.training.runs.finite import NotFiniteError

_LOG = logging.getLogger(__name__)
TRAIN_LOG = "train_log.jsonl"
BAD_UPDATE = "bad_update.json"
"""File of the scratch folder that says which step's update was not finite, and how often."""
MIN_DEV_SHARE = 0.9
"""Share of a dev score's rollouts that infrastructure must have left whole for it to be a score."""


def train_policy(task: RlTask, config: RlConfig, trainer: RlTrainer, output: Path) -> None:
    """Train from ``task.start``; write the best adapter, ``train_log.jsonl`` and ``manifest.json``.

    Raises:
        StalePolicyError: the server does not serve the policy that was just trained.
        ConfigError: params have no number of steps for this start, more of them than ``rl.epochs``,
            another protocol, thoughts not sent back, or rollouts that are longer than what is
            trained on; or the start was trained with another prompt, tool or chat template.
        UnknownNameError: a type in ``rl.type_shares`` that no train question has.
        ArtifactError: a split without a question.
        EndpointError: all rollouts of a step failed.
    """
    served = served_with(task.start, task.agent.prompt_digests())
    require_task(task, config, served)
    policy = policy_text(task.start, config)
    require_thoughts_sent_back(task, opens_thought=policy.opens_thought)

    lines = asyncio.run(_Run(task, config, trainer, policy).train())
    best = best_line(lines)
    manifest = {
        "start": task.start_name,
        "steps": lines[-1].step,
        "best_step": best.step,
        "best_dev_f1": best.dev_f1,
        **_gate_figures(lines[0], config),
        "alarms": [alarm._asdict() for alarm in alarms_of_log(lines)],
        "backend": f"{config.backend.engine}, {config.backend.service}",
        **trainer.hardware,
        "seed": task.seed,
        TRAINED_WITH: served.model_dump(),
        **origin(task.scratch),
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


def policy_text(start: Path, config: RlConfig) -> PolicyText:
    """Return how to read the policy that starts from a model folder."""
    tokenizer = AutoTokenizer.from_pretrained(start)
    return PolicyText(
        count_tokens=lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"]),
        think_length=config.think_length,
        opens_thought=prompt_opens_thought(start),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """The running training."""

    task: RlTask
    config: RlConfig
    trainer: RlTrainer
    policy: PolicyText

    async def train(self) -> list[TrainingStep]:
        """Train the steps that have no line in the log yet and return the whole log."""
        steps = self.config.steps[self.task.start_name]
        log_path = self.task.scratch / TRAIN_LOG

        try:
            lines, done = await self._resume(log_path)
            with (
                AppendLog(log_path) as log,
                ProgressBar(f"rl@{self.task.start_name}", steps, "steps", done=done) as bar,
            ):
                ahead: Groups | None = None
                for step in range(len(lines), steps + 1):
                    if step and self._is_stopped(lines, steps):
                        break

                    figures, ahead = await self._step(step, steps, lines, ahead)
                    begin("save", step)
                    lines.append(self._with_alarms(lines, figures))
                    record_step(lines[-1].model_dump())
                    log.append(lines[-1])
                    self._discard_checkpoints(step, lines)
                    bar.advance(min(step, 1), note=progress_note(lines[-1]))
        finally:
            await self.trainer.close()

        return lines

    async def _resume(self, log_path: Path) -> tuple[list[TrainingStep], int]:
        """Start the engine; return the lines of the log and the last step whose policy it has."""
        AppendLog(log_path).close()  # cuts off a line that a kill left unfinished
        lines = list(read_jsonl(log_path, TrainingStep))
        begin("start", len(lines))
        done = await self.trainer.start(max(0, len(lines) - 1))

        # The newest checkpoints were damaged: their steps are made again.
        if done + 1 < len(lines):
            lines = lines[: done + 1]
            write_jsonl(log_path, lines)

        if lines:
            self.trainer.require_whole(best_line(lines).step)
        return lines, done

    def _is_stopped(self, lines: Sequence[TrainingStep], steps: int) -> bool:
        """Whether the log ends the training early: no patience left, or an alarm of ``rl.stop_on``."""
        if evaluations_since_best(lines) >= (self.config.patience or steps + 2):
            return True

        alarms = set(self.config.stop_on) & set(alarms_at_end(lines))
        if not alarms:
            return False
        names = ", ".join(sorted(alarms))
        _LOG.warning("rl@%s ends: rl.stop_on names %s", self.task.start_name, names)
        return True

    async def _step(
        self,
        step: int,
        steps: int,
        lines: Sequence[TrainingStep],
        ahead: Groups | None,
    ) -> tuple[dict[str, float | None], Groups | None]:
        """Make the policy of a step and evaluate it; step 0 is the start.

        Return the figures of its line, and the next step's rollouts if they were made meanwhile.
        """
        metrics: dict[str, float] = {}
        following: Groups | None = None
        if step:
            first = sum(int(line.metrics["questions"]) for line in lines[1:])
            metrics, following = await self._update(step, first, ahead)

        begin("dev", step)
        if step == 0:
            metrics = await self._gate()

        dev: dict[str, float | None] = {"dev_f1": None}
        if step % self.config.dev.every == 0 or step == steps:
            dev.update(await self._dev_f1())

        return {"step": step, **dev, **metrics}, following

    def _discard_checkpoints(self, step: int, lines: Sequence[TrainingStep]) -> None:
        """Keep the checkpoints of the newest steps, and the best after each of them."""
        newest = range(len(lines), max(0, len(lines) - self.config.keep.last), -1)
        bests = [best_line(lines[:end]).step for end in newest]
        self.trainer.keep_only(kept_steps(step, bests, self.config.keep))

    def _with_alarms(
        self,
        lines: Sequence[TrainingStep],
        figures: Mapping[str, float | None],
    ) -> TrainingStep:
        """Return the next line of the log, with a metric for each alarm that it gives.

        Say those that begin with it.
        """
        line = TrainingStep.model_validate(figures)
        alarms = alarms_at_end([*lines, line])
        before = alarms_at_end(lines) if lines else {}

        for name in sorted(alarms.keys() - before.keys()):
            _LOG.warning(
                "rl@%s, step %d, %s: %s.", self.task.start_name, line.step, name, alarms[name]
            )

        return TrainingStep.model_validate({**figures, **{f"alarm/{name}": 1.0 for name in alarms}})

    async def _gate(self) -> dict[str, float]:
        """Return the start's F1 on dev questions, of one answer and of the best of several."""
        gate = self.config.gate
        questions = self.task.dev[: gate.questions]
        sampling = Sampling(gate.samples, self.config.temperature, self._seed(-2), trained=False)
        kept = await self._answers_by(questions, sampling)
        f1_QG = [
            [score_rollout(rollout.trajectory).f1 for rollout in rollouts_G] for rollouts_G in kept
        ]
        pass_1 = fmean(map(fmean, f1_QG))
        pass_k = fmean(map(max, f1_QG))
        if warning := gate_warning(pass_1, pass_k, gate.samples, gate.min_f1):
            _LOG.warning("rl@%s: %s.", self.task.start_name, warning)
        return {"pass_1": pass_1, "pass_k": pass_k}

    async def _update(
        self,
        step: int,
        first: int,
        ahead: Groups | None,
    ) -> tuple[dict[str, float], Groups | None]:
        """Make and serve the policy of a step from its rollouts.

        They are made here unless they were made ``ahead``.
        Its questions are those from number ``first`` on. Return the metrics of rollouts and update,
        and the next step's rollouts if they were made meanwhile.
        """
        kept_QG, rewards_QG, metrics = await self._rewarded(step, first, ahead)
        update = self._finite_update(step, kept_QG, rewards_QG)
        size = self.config.groups_per_step

        if not self.config.rollouts_ahead or step == self.config.steps[self.task.start_name]:
            metrics = metrics | await update
            following = None
        else:
            rollouts = asyncio.create_task(self._roll_out(step + 1, first + size, size))
            try:
                metrics |= await update
                begin("roll out", step)
                following = await rollouts
            finally:
                rollouts.cancel()

        await self.trainer.serve()
        return metrics, following

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

    async def _rewarded(
        self, step: int, first: int, ahead: Groups | None
    ) -> tuple[Groups, list[list[float]], dict[str, float]]:
        """Return the rollouts of a step to train on, their rewards, and the metrics of all.

        A refill rolls out as many further questions as groups with a signal, unequal rewards, are
        missing.
        """
        config = self.config
        missing = config.groups_per_step
        refills = 0
        rollouts_QG: Groups = []

        while True:
            begin("roll out", step)
            rollouts_QG += ahead or await self._roll_out(step, first + len(rollouts_QG), missing)
            begin("update", step)

            kept_QG = trainable(rollouts_QG)
            signal_QG = [
                group for group in kept_QG if len({rollout.reward for rollout in group}) > 1
            ]
            missing = config.groups_per_step - len(signal_QG)
            if not missing or refills == config.max_refills:
                break
            refills += 1

        rollouts = list(itertools.chain.from_iterable(rollouts_QG))
        reward_Q = [fmean(rollout.reward for rollout in group) for group in rollouts_QG]
        metrics = rollout_metrics(rollouts, self.task.agent.max_searches)
        metrics |= standard_error("reward", reward_Q)
        metrics["questions"] = len(rollouts_QG)
        metrics["left_out"] = float(len(rollouts) - sum(map(len, kept_QG)))
        metrics["groups_without_signal"] = 1 - len(signal_QG) / len(rollouts_QG)

        if config.max_refills:
            metrics["refills"] = refills
            kept_QG = signal_QG

        rewards_QG = [[rollout.reward for rollout in group] for group in kept_QG]
        if config.shuffle_rewards:
            shuffler = random.Random(f"{self.task.seed}/{step - 1}")
            for rewards_G in rewards_QG:
                shuffler.shuffle(rewards_G)

        return kept_QG, rewards_QG, metrics

    async def _roll_out(self, step: int, first: int, count: int) -> Groups:
        """Return the rollouts of ``count`` questions from number ``first`` on, with their rewards."""
        questions = batch(self.task, self.config.type_shares, first, count)
        seed = self._seed(step - 1, self._bad_tries(step))
        sampling = Sampling(self.config.group_size, self.config.temperature, seed, trained=True)
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

    async def _dev_f1(self) -> dict[str, float]:
        questions = self.task.dev[: self.config.dev.questions]
        dev = self.config.dev
        sampling = Sampling(dev.samples, dev.temperature, self._seed(-1), trained=False)

        f1_Q: list[float] = []
        for group in await self._answers_by(questions, sampling):
            f1_Q.append(fmean(score_rollout(rollout.trajectory).f1 for rollout in group))
        return {"dev_f1": fmean(f1_Q), **standard_error("dev_f1", f1_Q)}

    async def _answers_by(self, questions: Sequence[Question], sampling: Sampling) -> Groups:
        """Return the rollouts of dev questions that infrastructure left whole: they choose a checkpoint.

        Raises EndpointError if they are less than :data:`MIN_DEV_SHARE`.
        """
        groups = await self.trainer.roll_out(questions, sampling)
        kept = trainable(groups)
        whole = sum(map(len, kept))
        wanted = sum(map(len, groups))

        if whole < MIN_DEV_SHARE * wanted:
            raise EndpointError(
                f"{wanted - whole} of the {wanted} rollouts of a dev score were failed by a server, and the "
                "others are too few to choose a checkpoint by. Check the servers and run the command again, which goes "
                "on from the last step."
            )

        return kept

    def _seed(self, draw: int, tries: int = 0) -> int:
        """Return the seed of a roll-out; all dev runs share one draw and thus their random numbers."""
        parts = [self.task.seed, draw, tries] if tries else [self.task.seed, draw]
        return int(sha256_json(parts)[:12], 16)


def best_line(lines: Sequence[TrainingStep]) -> TrainingStep:
    """Return the line with the best dev F1, the earliest of equals; without any, the first line."""
    evaluated = [line for line in lines if line.dev_f1 is not None]
    return max(evaluated, key=lambda line: (line.dev_f1 or 0.0, -line.step), default=lines[0])


def evaluations_since_best(lines: Sequence[TrainingStep]) -> int:
    """Return how many dev scores came after the best one without being better."""
    best = best_line(lines).step
    return sum(line.dev_f1 is not None and line.step > best for line in lines)
