"""Params section ``rl``. Sources of the losses: GRPO, arXiv 2402.03300; GSPO, arXiv 2507.18071."""

from typing import Literal

from pydantic import Field, FiniteFloat, field_validator

from deepsearch_rl.errors import look_up
from deepsearch_rl.records import Record
from deepsearch_rl.training.rl.rewards import REWARDS, ThinkLength


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

    @field_validator("rewards")
    @classmethod
    def _known_rewards(cls, weights: dict[str, float]) -> dict[str, float]:
        for name in weights:
            look_up("reward", name, REWARDS)
        return weights
