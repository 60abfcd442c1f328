"""``rl.backend.verl``: what ``engine: verl`` is told beside the settings that all engines share."""

from typing import Literal, Self

from pydantic import Field, model_validator

from deepsearch_rl.core.records import NonEmpty, Record

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
