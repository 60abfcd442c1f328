"""RL with a step of which everything is arranged, and a second one whose rollouts are the first one's.

    python -m scripts.preflight.stale_policy PARAMS START

Step 1 has a group of equal rewards, groups whose rewards differ, and a rollout whose tool failed. In step 2 the sampler
is one step behind: the run must stop with StalePolicyError. The engine is the profile's own.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepsearch_rl.errors import CheckFailedError, DeepsearchError, StalePolicyError
from deepsearch_rl.profile import load_profile
from deepsearch_rl.records import Question, StopReason
from deepsearch_rl.training.rl.trainer import RlConfig, RlTask, Rollout, Sampling
from stages import rl


class StaleSampler:
    """A trainer whose sampler stays at the start model; all else is the trainer that it is given."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._first: list[list[Rollout]] = []
        self._greedy: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    async def roll_out(self, questions: Sequence[Question], sampling: Sampling) -> list[list[Rollout]]:
        """Roll out once; answer every later call for training with the first one's rollouts."""
        if not sampling.trained:
            return await self._trainer.roll_out(questions, sampling)
        if not self._first:
            self._first = await self._trainer.roll_out(questions, sampling)
            last = self._first[-1]
            failed = last[0].trajectory.model_copy(update={"stop_reason": StopReason.TOOL_ERROR, "answer": None})
            last[0] = Rollout(failed, last[0].capture)
        return self._first

    async def sample_greedily(self, *arguments: Any) -> Any:
        """Answer as the start model did."""
        self._greedy = self._greedy or await self._trainer.sample_greedily(*arguments)
        return self._greedy

    async def update(
        self, rollouts_QG: Sequence[Sequence[Rollout]], rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Update from rewards that are equal in the first group, and rise in the others."""
        rewards = [[float(place * (group > 0)) for place, _ in enumerate(row)] for group, row in enumerate(rewards_QG)]
        return await self._trainer.update(rollouts_QG, rewards)


def main() -> None:
    """Run the stage's own main; succeed where the stale policy stopped it."""
    params, start = sys.argv[1:]
    open_engine = rl.open_engine

    def open_stale(name: str) -> Any:
        make_trainer = open_engine(name)

        def make(task: RlTask, config: RlConfig) -> StaleSampler:
            return StaleSampler(make_trainer(task, config))

        return make

    rl.open_engine = open_stale
    try:
        rl.main(load_profile(Path(params)), start)
        raise CheckFailedError(
            "a sampler that is one step behind was not noticed: the run went on. The check of sampler against trainer "
            "(section rl) is too wide for this machine, or does not see what was sampled."
        )
    except StalePolicyError as error:
        sys.stdout.write(f"caught: {error}\n")
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
