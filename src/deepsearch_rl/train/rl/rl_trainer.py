"""The protocol between the RL loop and the engines that train and serve a policy.

A trainer samples, updates, keeps its checkpoints and serves the newest policy. Batches, rewards, dev score, choice of
the checkpoint, log and resume belong to :mod:`deepsearch_rl.train.rl.loop`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.core.records import Question, Trajectory


@dataclass(frozen=True, slots=True)
class RlTask:
    """What one RL run works on: ``train`` questions are rolled out, ``dev`` questions choose the checkpoint.

    RL starts from the merged model folder ``start``, called ``start_name`` in params, e.g. ``sft``;
    ``weights`` is the digest of its weights. ``scratch`` holds checkpoints and the log of the
    running stage; give the same task the same folder. ``seed`` seeds question order, adapter and
    sampler.
    """

    start: Path
    start_name: str
    weights: str
    train: Sequence[Question]
    dev: Sequence[Question]
    agent: AgentConfig
    retrieval_url: str
    scratch: Path
    seed: int


@dataclass(frozen=True, slots=True)
class RolloutSampling:
    """How a batch of questions is rolled out: ``samples`` rollouts each, sampled at ``temperature``.

    Equal seeds draw equal random numbers for equal questions. The engine records tokens and
    log-probabilities of ``trained`` rollouts.
    """

    samples: int
    temperature: float
    seed: int
    trained: bool


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout; its engine trains on ``capture``, and the loop adds the ``parts`` of its reward.

    ``left_out`` is the engine's reason not to train on it; empty if there is none.
    """

    trajectory: Trajectory
    capture: Any = None
    left_out: str = ""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def reward(self) -> float:
        """The sum of its parts."""
        return sum(self.parts.values())


class RlTrainer(Protocol):
    """An engine of one policy: the start model at step 0; an update makes the next (Q questions, G rollouts each)."""

    @property
    def hardware(self) -> Mapping[str, str]:
        """``device`` and ``dtype`` of the training, for the manifest."""
        ...

    async def start(self, step: int) -> int:
        """Serve the policy of ``step``, or else of the newest whole checkpoint before it, and return its step.

        Checkpoints of later steps, which a killed run never logged, are deleted.
        """
        ...

    async def roll_out(
        self, questions: Sequence[Question], sampling: RolloutSampling
    ) -> list[list[Rollout]]:
        """Answer every question with the served policy; return Q groups in order."""
        ...

    async def update(
        self, rollouts_QG: Sequence[Sequence[Rollout]], rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Make the next step's policy and its checkpoint; return metrics by the log's names.

        Groups may have lost rollouts, but none is empty. Raises StalePolicyError, before anything
        has changed, if the rollouts were not sampled from the newest policy
        (:mod:`deepsearch_rl.train.rl.agreement`).
        """
        ...

    def require_whole(self, step: int) -> None:
        """Raise ArtifactError if a step's checkpoint could not be published."""
        ...

    async def serve(self) -> None:
        """Serve the policy of the last update; no rollout is running."""
        ...

    def save(self, step: int, folder: Path) -> None:
        """Write a step's adapter, or all weights, to an existing folder, without optimizer state."""
        ...

    def keep_only(self, steps: set[int]) -> None:
        """Delete the checkpoints of all other steps."""
        ...

    async def close(self) -> None:
        """Stop server and training; may be called before :meth:`start`."""
        ...
