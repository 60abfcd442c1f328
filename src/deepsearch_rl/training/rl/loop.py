"""Reinforcement learning from search: rollouts by the agent, updates by an engine, the best checkpoint by dev F1.

One step: the policy as it is answers every question of the step's batch ``group_size`` times, the engine updates the
policy from the rewards, which are compared inside each question's group, and the canary proves that the server took
over the update. ``train_log.jsonl`` gets one line per step; a killed run continues after the last step with a line.
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

from pydantic import BaseModel, ConfigDict, Field
from transformers import AutoTokenizer

from deepsearch_rl.agent.chat_messages import OPEN_THINK, RETRIEVE_TOOL
from deepsearch_rl.agent.config import FUNCTION_CALLING
from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.answers import score_rollout
from deepsearch_rl.errors import ArtifactError, ConfigError, StalePolicyError
from deepsearch_rl.files import AppendLog, atomic_directory, read_jsonl, sha256_json, write_json
from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.records import Question, Trajectory
from deepsearch_rl.training.rl.checkpoints import kept_steps, origin
from deepsearch_rl.training.rl.heartbeat import begin
from deepsearch_rl.training.rl.rewards import PolicyText, reward_parts
from deepsearch_rl.training.rl.trainer import CanaryConfig, RlConfig, RlTask, RlTrainer, Sampling
from deepsearch_rl.training.step_times import stamp

_LOG = logging.getLogger(__name__)
TRAIN_LOG = "train_log.jsonl"


class RlLogLine(BaseModel):
    """One step of ``train_log.jsonl``: its number and its metrics by name."""

    model_config = ConfigDict(extra="allow", frozen=True)

    step: int
    canary: float = Field(default=0.0, description="largest difference of the canary's log-probabilities")
    dev_f1: float | None = None

    @property
    def metrics(self) -> Mapping[str, float]:
        """What rollouts and update say of themselves; empty at step 0."""
        return self.model_extra or {}


def train_policy(task: RlTask, config: RlConfig, trainer: RlTrainer, output: Path) -> None:
    """Train from ``task.start`` and write the best checkpoint's adapter, ``train_log.jsonl`` and ``manifest.json``.

    Raises:
        StalePolicyError: the server does not serve the policy that was just trained.
        ConfigError: params have no number of steps for this start, another protocol, or thoughts not sent back.
        ArtifactError: a split without a question.
    """
    if task.start_name not in config.steps:
        raise ConfigError(f"rl.steps has no entry for the start {task.start_name!r}; add one.")
    if task.agent.protocol != FUNCTION_CALLING:
        raise ConfigError(f"rl trains function_calling, not {task.agent.protocol}; change agent.protocol.")
    for split, questions in (("train", task.train), ("dev", task.dev)):
        if not questions:
            raise ArtifactError(f"the {split} split of rl.dataset {config.dataset!r} has no question.")
    policy = policy_text(task.start, config)
    if policy.opens_thought and not task.agent.history_reasoning:
        raise ConfigError(
            f"{task.start} thinks before every turn, and rl trains a rollout as one conversation with all its "
            "thoughts; set agent.history_reasoning: true, so that this is what the model is served."
        )
    lines = asyncio.run(_Run(task, config, trainer, policy, Canary(task, config.canary)).train())
    best, start_f1 = best_line(lines), lines[1].metrics["f1"] if len(lines) > 1 else None
    manifest = {
        "start": task.start_name,
        "steps": lines[-1].step,
        "best_step": best.step,
        "best_dev_f1": best.dev_f1,
        "sampled_f1_at_start": start_f1,
        "below_gate": start_f1 is not None and start_f1 < config.gate_f1,
        "backend": config.backend,
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


class Canary:
    """The proof that the served policy is the one just trained: a fixed conversation and its tokens.

    The server answers it greedily and reports the log-probability of every token; the trainer scores the same tokens
    after the same prompt. The two differ if the server still has the weights of an older step, if the two render
    prompts differently, or if sampling settings bend the distribution. The conversation is the first dev question after
    the agent's system prompt, rendered with the start model's tokenizer.
    """

    def __init__(self, task: RlTask, config: CanaryConfig) -> None:
        self._config = config
        contents = {"system": load_prompt(task.agent.prompt), "user": task.dev[0].question}
        self._messages = [{"role": role, "content": content} for role, content in contents.items()]
        self._prompt_ids = AutoTokenizer.from_pretrained(task.start).apply_chat_template(
            self._messages, tools=[RETRIEVE_TOOL], add_generation_prompt=True, return_dict=False
        )

    async def check(self, trainer: RlTrainer, step: int) -> float:
        """Return the largest difference of log-probabilities; raise StalePolicyError if it exceeds the tolerance."""
        sampled = await trainer.sample_greedily(self._messages, self._config.max_tokens)
        scores = await trainer.logprobs([*self._prompt_ids, *sampled.token_ids])
        trained = scores[-len(sampled.token_ids) :]
        difference = max(abs(ours - theirs) for ours, theirs in zip(sampled.logprobs, trained, strict=True))
        if difference > self._config.tolerance:
            raise StalePolicyError(
                f"the model server does not serve the policy of step {step} that was just trained: log-probabilities "
                f"of the canary prompt differ by {difference:.2g}, more than {self._config.tolerance:g}. Nothing of "
                "this step was kept; check that the server took over the new weights and renders prompts as the "
                "trainer does."
            )
        return difference


@dataclass(frozen=True, slots=True)
class _Run:
    """The running training."""

    task: RlTask
    config: RlConfig
    trainer: RlTrainer
    policy: PolicyText
    canary: Canary

    async def train(self) -> list[RlLogLine]:
        """Train the steps that have no line in the log yet and return the whole log."""
        steps, log_path = self.config.steps[self.task.start_name], self.task.scratch / TRAIN_LOG
        try:
            with AppendLog(log_path) as log:  # cuts off a line that a kill left unfinished
                lines = list(read_jsonl(log_path, RlLogLine))
                done = max(0, len(lines) - 1)
                begin("start", len(lines))
                await self.trainer.start(done)
                with ProgressBar(f"rl@{self.task.start_name}", steps, "steps", done=done) as bar:
                    for step in range(len(lines), steps + 1):
                        metrics = await self._update(step) if step else {}
                        evaluated = step % self.config.dev.every == 0 or step == steps
                        begin("dev", step)
                        dev_f1 = await self._dev_f1() if evaluated else None
                        canary = await self.canary.check(self.trainer, step)
                        begin("save", step)
                        lines.append(RlLogLine(step=step, dev_f1=dev_f1, canary=canary, **metrics))
                        log.append(lines[-1])
                        stamp(lines[-1].model_dump())
                        self.trainer.keep_only(kept_steps(step, best_line(lines).step, self.config.keep))
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
        shuffler = random.Random(f"{self.task.seed}/{draw}") if config.shuffle_rewards else None
        return metrics | await self.trainer.update(rollouts_QG, group_rewards(parts_QG, shuffler))

    async def _dev_f1(self) -> float:
        questions = self.task.dev[: self.config.dev.questions]
        sampling = Sampling(1, self.config.dev.temperature, self._seed(-1), trained=False)
        groups = await self.trainer.roll_out(questions, sampling)
        return sum(score_rollout(rollout.trajectory).f1 for (rollout,) in groups) / len(questions)

    def _seed(self, draw: int) -> int:
        """Return the seed of a roll-out; all dev runs share one draw and thus their random numbers."""
        return int(sha256_json([self.task.seed, draw])[:12], 16)


def best_line(lines: Sequence[RlLogLine]) -> RlLogLine:
    """Return the line of the step with the best dev F1, the earliest of equals."""
    evaluated = [line for line in lines if line.dev_f1 is not None]
    return max(evaluated, key=lambda line: (line.dev_f1 or 0.0, -line.step))


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
