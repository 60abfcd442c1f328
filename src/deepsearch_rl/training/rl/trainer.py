"""Params section ``rl``, and the protocol between the RL loop and the engines that train and serve a policy.

An engine is a module of ``training/backends`` with an entry in ``backends/make.py``. It samples, updates, keeps its
checkpoints and serves the newest policy. Batches, rewards, dev score, choice of the checkpoint, log and resume belong
to :mod:`deepsearch_rl.training.rl.loop`. Sources of the losses: GRPO, arXiv 2402.03300; GSPO, arXiv 2507.18071.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, FiniteFloat, field_validator

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.errors import look_up
from deepsearch_rl.records import Question, Record, Trajectory
from deepsearch_rl.training.rl.checkpoints import KeepConfig
from deepsearch_rl.training.rl.rewards import REWARDS, ThinkLength
from deepsearch_rl.training.rl.watchdog import WatchdogConfig


class LossConfig(Record):
    """The policy-gradient loss, as ART computes it."""

    algorithm: Literal["grpo", "gspo"] = Field(description="one importance ratio per token, or one per rollout")
    epsilon: float = Field(gt=0, description="lower clip range of the ratio")
    epsilon_high: float = Field(gt=0, description="upper clip range of the ratio")
    truncated_importance_sampling: float | None = Field(description="cap of the ratio as a loss weight; null is off")
    kl_penalty: float = Field(ge=0, description="weight of the KL to the start model in the advantage")
    scale_rewards: bool = Field(description="divide advantages by the group's standard deviation")


class DevConfig(Record):
    """How checkpoints are compared."""

    every: int = Field(ge=1, description="steps between two evaluations; step 0 and the last are always evaluated")
    questions: int = Field(ge=1, description="questions of the dev split")
    temperature: float = Field(ge=0)


class CanaryConfig(Record):
    """The check that the served policy is the trained one."""

    max_tokens: int = Field(ge=1, description="tokens compared")
    tolerance: float = Field(gt=0, description="largest difference of two log-probabilities")


class LoraConfig(Record):
    """The adapter on every linear layer."""

    rank: int = Field(ge=1)
    alpha: int = Field(ge=1)


class RlConfig(Record):
    """Reinforcement learning from search; raises UnknownNameError for a reward that does not exist."""

    backend: str = Field(description="name of the engine that trains and serves the policy (backends/make.py)")
    starts: tuple[str, ...] = Field(description="models that RL starts from; one rl stage each")
    dataset: str = Field(description="its train split is rolled out, its dev split chooses the checkpoint")
    steps: dict[str, int] = Field(description="training steps per start")
    groups_per_step: int = Field(ge=1, description="questions per step")
    group_size: int = Field(ge=2, description="rollouts per question")
    temperature: float = Field(gt=0, description="of the rollouts; engines report log-probabilities of temperature 1")
    learning_rate: float = Field(gt=0)
    minibatches: int = Field(ge=1, description="optimizer steps per training step")
    rewards: dict[str, FiniteFloat] = Field(min_length=1, description="weights by reward")
    think_length: ThinkLength = Field(description="tokens of a thought that short_think rewards")
    shuffle_rewards: bool = Field(description="control experiment: shuffle rewards inside every group")
    gate_f1: float = Field(ge=0, le=1, description="sampled training F1 below which a start is reported as too weak")
    max_sequence_tokens: int = Field(ge=1, description="of a rollout that is trained on; a multiple of logprob_chunk")
    logprob_chunk: int = Field(ge=1, description="tokens whose logits are held at once (unsloth)")
    slots: int = Field(ge=2, description="conversations that the server keeps (cpu)")
    lora: LoraConfig
    loss: LossConfig
    dev: DevConfig
    canary: CanaryConfig
    keep: KeepConfig
    watchdog: WatchdogConfig

    @field_validator("rewards")
    @classmethod
    def _known_rewards(cls, weights: dict[str, float]) -> dict[str, float]:
        for name in weights:
            look_up("reward", name, REWARDS)
        return weights


@dataclass(frozen=True, slots=True)
class RlTask:
    """What one RL run works on: it rolls out the ``train`` questions, and the ``dev`` questions choose the checkpoint.

    RL starts from the merged model folder ``start``, which params call ``start_name``, e.g. ``sft``. ``scratch`` is for
    checkpoints and the log of the running stage; the same task must get the same folder. ``seed`` is that of question
    order, adapter and sampler.
    """

    start: Path
    start_name: str
    train: Sequence[Question]
    dev: Sequence[Question]
    agent: AgentConfig
    retrieval_url: str
    scratch: Path
    seed: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a batch of questions is rolled out: ``samples`` rollouts each, with the ``temperature`` of every model call.

    Equal seeds draw equal random numbers for equal questions. ``trained`` rollouts are trained on, so the engine
    records their tokens and log-probabilities.
    """

    samples: int
    temperature: float
    seed: int
    trained: bool


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout; ``capture`` is what its engine needs to train on it and means nothing to the loop."""

    trajectory: Trajectory
    capture: Any = None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens that the server wrote and the log-probabilities that it reported for them."""

    token_ids: list[int]
    logprobs: list[float]


class RlTrainer(Protocol):
    """An engine of one policy: the start model at step 0; an update makes the next (Q questions, G rollouts each)."""

    @property
    def hardware(self) -> Mapping[str, str]:
        """``device`` and ``dtype`` of the training, for the manifest."""
        ...

    async def start(self, step: int) -> None:
        """Serve the policy of ``step``; delete checkpoints of later steps, which a killed run never logged."""
        ...

    async def roll_out(self, questions: Sequence[Question], sampling: Sampling) -> list[list[Rollout]]:
        """Answer every question with the newest policy; return Q groups in the order of the questions."""
        ...

    async def update(
        self, rollouts_QG: Sequence[Sequence[Rollout]], rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Make and serve the policy of the next step and keep its checkpoint; return metrics by the log's names."""
        ...

    async def sample_greedily(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> SampledTokens:
        """Return what the newest policy's server writes after ``messages`` with the tool, or raise EndpointError."""
        ...

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Return the trainer's own log-probability of every token but the first."""
        ...

    def save(self, step: int, folder: Path) -> None:
        """Write the adapter of a step's checkpoint to an existing folder, without what only a resume needs."""
        ...

    def keep_only(self, steps: set[int]) -> None:
        """Delete the checkpoints of all other steps."""
        ...

    async def close(self) -> None:
        """Stop server and training; may be called before :meth:`start`."""
        ...
