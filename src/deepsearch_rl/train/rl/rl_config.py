"""Params section ``rl``; the losses that it names are in :mod:`deepsearch_rl.train.rl.policy_loss`."""

import math
from typing import Literal, Self

from pydantic import (
    Field,
    FiniteFloat,
    NonNegativeInt,
    field_validator,
    model_validator,
)

from deepsearch_rl.core.hardware import Threads
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.train.rewards import ThinkLength, find_reward
from deepsearch_rl.train.rl.watchdog import WatchdogConfig

# The agent loop's name in veRL: ``actor_rollout_ref.rollout.agent.default_agent_loop``.
AGENT_LOOP = "deepsearch"
EVERY_ADDRESS = ("0.0.0.0", "::")


class CriticConfig(Record):
    """The value model of ``loss.algorithm: ppo``, which starts from the policy's weights, and its GAE."""

    learning_rate: float = Field(gt=0)
    warmup_steps: int = Field(default=0, ge=0, description="in which its learning rate rises")
    alone_steps: int = Field(
        default=0, ge=0, description="first training steps that update the critic alone"
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="discount per token")
    lam: float = Field(default=1.0, ge=0, le=1, description="GAE's lambda")
    value_clip: float = Field(
        default=0.5, gt=0, description="largest change of a value in one update"
    )


class VerlConfig(Record):
    """The machines, and how veRL shares the model among them; raises ValueError for shares that do not exist."""

    python: NonEmpty = Field(description="path of the Python of veRL's environment")
    address: NonEmpty | None = Field(
        default=None,
        description="`host:port` of a Ray cluster, or `auto`; null: Ray is started here",
    )
    nodes: int = Field(default=1, ge=1)
    retrieval_host: NonEmpty | None = Field(
        default=None,
        description="address of this machine at which other nodes search; null: 127.0.0.1 alone",
    )
    retrieval_port: int = Field(default=0, ge=0, le=65535, description="0: a free one")
    gpus_per_node: int = Field(ge=1, description="on a cpu: processes that train")
    rollout: Literal["vllm", "sglang", "own"] = Field(
        description="what samples; own: our engine, on a cpu alone"
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that share one sampler")
    agent_workers: int = Field(default=8, ge=1, description="processes that step episodes")
    strategy: Literal["fsdp", "fsdp2"] = "fsdp2"
    param_offload: bool = Field(default=False, description="weights rest in main memory")
    optimizer_offload: bool = Field(default=False, description="so do the optimizer's moments")
    attention: Literal["sdpa", "flash_attention_2"] = Field(
        default="sdpa", description="flash_attention_2 also trains without padding"
    )
    save_every: int | None = Field(
        default=None,
        ge=1,
        description="steps between checkpoints, the most that a run loses where it stops; null: dev.every",
    )
    critic: CriticConfig | None = None

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.nodes > 1 and self.address is None:
            raise ValueError(
                f"nodes: {self.nodes} needs the address of a Ray cluster that has them (address: HOST:6379, or auto "
                "on its head)"
            )
        if self.nodes > 1 and self.retrieval_host is None:
            raise ValueError(
                f"nodes: {self.nodes} needs retrieval_host, the address of this machine at which the other nodes reach "
                "its retrieval server"
            )
        if self.retrieval_host in EVERY_ADDRESS:
            raise ValueError(
                f"retrieval_host: {self.retrieval_host} is no address that another node can ask: name this machine's "
                "in the cluster's network"
            )
        if self.gpus_per_node % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel: {self.tensor_parallel} does not divide gpus_per_node: {self.gpus_per_node}"
            )
        return self


AlgorithmName = Literal[
    "grpo", "gspo", "gspo_token", "dr_grpo", "rloo", "reinforce_pp", "cispo", "ppo"
]
Aggregation = Literal["token", "sequence", "sequence_art", "constant"]
KlEstimate = Literal["k1", "k2", "k3"]


class LossConfig(Record):
    """The policy-gradient loss (:mod:`deepsearch_rl.train.rl.policy_loss`)."""

    algorithm: AlgorithmName
    aggregation: Aggregation | None = Field(
        description="mean over tokens; null: that of the algorithm's source"
    )
    sample_std: bool = Field(
        description="divide by the sample's standard deviation as veRL, not the population's"
    )
    unit_advantages: bool = Field(
        description="divide a step's advantages by their mean absolute value, as ART"
    )
    epsilon: float = Field(gt=0, description="lower clip range of the ratio")
    epsilon_high: float = Field(gt=0, description="upper clip range of the ratio")
    dual_clip: float | None = Field(
        gt=1, description="largest ratio of a negative advantage; null is off"
    )
    truncated_importance_sampling: float | None = Field(
        gt=0, description="cap of the ratio as a loss weight; null is off"
    )
    kl_penalty: float = Field(
        ge=0, description="weight of the KL to the start model in the advantage"
    )
    kl_loss: float = Field(ge=0, description="weight of the KL to the start model in the loss")
    kl_estimate: KlEstimate = Field(description="Schulman's estimate in the loss")
    entropy_bonus: float = Field(ge=0, description="weight of the entropy, which the loss rewards")


class DevConfig(Record):
    """How checkpoints are compared."""

    every: int = Field(
        ge=1, description="steps between two evaluations; step 0 and the last are always evaluated"
    )
    questions: int = Field(ge=1, description="questions of the dev split")
    samples: int = Field(ge=1, description="answers per question")
    temperature: float = Field(ge=0)


class GateConfig(Record):
    """What the start is asked before the first step, to say what RL can find (:func:`health.gate_warning`)."""

    questions: int = Field(ge=1, description="of the dev split")
    samples: int = Field(ge=2, description="answers per question, at rl.temperature")
    min_f1: float = Field(
        ge=0, le=1, description="F1 of one answer below which a start is reported as too weak"
    )


class LoraConfig(Record):
    """The adapter on every linear layer, or on those of the upper layers."""

    rank: int = Field(ge=1)
    alpha: int = Field(ge=1)
    layers: int | None = Field(
        default=None,
        ge=1,
        description="the last so many alone, where backward passes end; null: all",
    )


class BackendConfig(Record):
    """Where a policy is trained and sampled from; raises ValueError for a pair that does not exist."""

    engine: Literal["art", "verl"] = Field(
        description="our loop on ART's services, or whole runs by veRL"
    )
    service: Literal["own", "unsloth"] = Field(
        description="what trains behind ART: our service, or ART's with Unsloth"
    )
    device: Literal["cpu", "cuda"] = Field(
        description="of the training; on cuda, vLLM samples, on a cpu our engine"
    )
    verl: VerlConfig | None = Field(default=None, description="of engine: verl")

    @model_validator(mode="after")
    def _exists(self) -> Self:
        if (self.engine == "verl") != (self.verl is not None):
            raise ValueError("engine: verl and the settings below verl need each other")
        if self.verl and (self.verl.rollout == "own") != (self.device == "cpu"):
            raise ValueError(
                f"verl.rollout: {self.verl.rollout} does not sample on device: {self.device}; on a "
                "cpu it is own"
            )
        if self.service == "unsloth" and self.device == "cpu":
            raise ValueError("service: unsloth needs device: cuda; on a CPU set service: own")
        return self


class SamplerConfig(Record):
    """The server that rollouts are sampled from; a device reads its own fields only."""

    slots: int = Field(ge=2, description="cpu: conversations that the server keeps")
    program: NonEmpty | None = Field(
        description="cuda: path of the command `vllm`, e.g. in the serve environment"
    )
    gpu_memory_utilization: float = Field(
        gt=0, le=1, description="cuda: share of the GPU's memory that vLLM takes"
    )
    enforce_eager: bool = Field(description="cuda: no CUDA graphs")
    sleep: bool = Field(description="cuda: vLLM gives its memory back during updates")
    max_num_seqs: int = Field(ge=1, description="cuda: rollouts decoded together")
    tool_call_parser: NonEmpty = Field(
        description="cuda: vLLM's name of the model's tool call format"
    )
    reasoning_parser: NonEmpty | None = Field(
        description="cuda: vLLM's name of the model's think format; null: none"
    )
    timeout_s: float = Field(
        gt=0, description="cuda: for the server's start, and for each adapter, sleep and wake-up"
    )


class OptimizerConfig(Record):
    """AdamW, and how its learning rate changes (:func:`learning_rate`)."""

    beta2: float = Field(gt=0, lt=1)
    weight_decay: float = Field(ge=0)
    max_grad_norm: float = Field(gt=0, description="a longer gradient is shortened to this norm")
    warmup_steps: int = Field(
        ge=0, description="first training steps, in which the learning rate rises"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        description="of the learning rate after them"
    )


class RlConfig(Record):
    """Reinforcement learning from search; raises UnknownNameError for a reward that does not exist."""

    backend: BackendConfig
    starts: tuple[str, ...] = Field(description="models that RL starts from; one rl stage each")
    dataset: str = Field(
        description="its train split is rolled out, its dev split chooses the checkpoint"
    )
    steps: dict[str, NonNegativeInt] = Field(description="training steps per start")
    epochs: float = Field(
        gt=0, description="passes over the train split that no start's steps may exceed"
    )
    patience: int | None = Field(
        ge=1, description="evaluations without a better dev score that end a run; null: none"
    )
    groups_per_step: int = Field(ge=1, description="questions per step")
    group_size: int = Field(ge=2, description="rollouts per question")
    concurrency: int = Field(ge=1, description="rollouts at once")
    temperature: float = Field(
        gt=0, description="of the rollouts that are trained on, and of all their log-probabilities"
    )
    learning_rate: float = Field(gt=0)
    optimizer: OptimizerConfig
    minibatches: int | None = Field(
        ge=1, description="optimizer steps per training step; null: one per rollout"
    )
    rewards: dict[str, FiniteFloat] = Field(min_length=1, description="weights by reward")
    think_length: ThinkLength = Field(description="tokens of a thought that short_think rewards")
    shuffle_rewards: bool = Field(
        description="control experiment: shuffle rewards inside every group"
    )
    gate: GateConfig
    max_sequence_tokens: int = Field(
        ge=1, description="of a rollout that is trained on; a multiple of logprob_chunk"
    )
    max_batch_tokens: int = Field(
        ge=1, description="of one forward pass, padding counted; a longer rollout goes alone"
    )
    logprob_chunk: int = Field(ge=1, description="tokens whose logits are held at once")
    gradient_checkpointing: bool = Field(
        description="compute activations twice and hold those of one layer"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        description="of base and products; adapters are float32"
    )
    threads: Threads = Field(
        description="on a cpu; null: as many as cores. One: two forward passes are computed side by side"
    )
    lora: LoraConfig | None = Field(description="null trains all weights")
    loss: LossConfig
    max_mismatch: float = Field(
        gt=0,
        description="median over a step's rollouts of mean |sampler - trainer| of the log-probabilities, nats",
    )
    dev: DevConfig
    sampler: SamplerConfig
    kept_checkpoints: int = Field(
        ge=2, description="newest checkpoints kept beside the best; the newest may be damaged"
    )
    watchdog: WatchdogConfig

    @field_validator("rewards")
    @classmethod
    def _known_rewards(cls, weights: dict[str, float]) -> dict[str, float]:
        for name in weights:
            find_reward(name)
        return weights

    @model_validator(mode="after")
    def _critic_of_ppo(self) -> Self:
        verl = self.backend.verl
        if (self.loss.algorithm == "ppo") != (verl is not None and verl.critic is not None):
            raise ValueError(
                "loss.algorithm: ppo and backend.verl.critic need each other; no other engine has a critic"
            )

        return self


def learning_rate(config: RlConfig, step: int, steps: int) -> float:
    """Return the learning rate of a training step s of S, counted from 1; it is above 0 in all of them.

    With W warm-up steps it is ``rl.learning_rate`` times ``s / (W + 1)`` up to step W. From then on
    it is that times 1 (``constant``), ``1 - p`` (``linear``) or ``(1 + cos(pi p)) / 2``
    (``cosine``), with ``p = (s - W - 1) / (S - W)``.
    """
    warmup = config.optimizer.warmup_steps
    schedule = config.optimizer.schedule
    if step <= warmup:
        return config.learning_rate * step / (warmup + 1)
    progress = (step - warmup - 1) / (steps - warmup)
    factors = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
    }
    return config.learning_rate * factors[schedule]
