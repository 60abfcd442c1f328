"""The protocol between the RL loop and the engines that train and serve a policy.

An engine is a module of ``training/backends`` with an entry in ``backends/make.py``. It samples, updates, keeps its
checkpoints and serves the newest policy. Batches, rewards, dev score, choice of the checkpoint, log and resume belong
to :mod:`deepsearch_rl.training.rl.loop`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.records import Question, Trajectory


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
    """An engine that trains one policy. The policy of step 0 is the start model; every update makes the next step.

    Shapes: Q questions with G rollouts each.
    """

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
        """Return what the server of the newest policy writes after ``messages`` with the search tool.

        Raises EndpointError if the server does not answer.
        """
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
