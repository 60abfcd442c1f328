"""RL with arranged rewards and a failed tool, and with ``--stale`` a sampler that is one step behind.

    python -m tools.preflight.arranged_rl PARAMS START [--stale]

The first group's rewards are equal, those of the others differ, and one rollout's tool has failed,
so that an update does not depend on what a model of random weights answers. A stale sampler must
end the run with StalePolicyError. The engine is the profile's own.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import CheckFailedError, DeepsearchError, StalePolicyError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Question, StopReason
from deepsearch_rl.train.curves import curve_path
from deepsearch_rl.train.rl import engines
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, Rollout, RolloutSampling
from deepsearch_rl.train.rl.worker import rl_run, train

# Rollouts that are made for each one that is kept. A model of random weights writes many that
# come back in other tokens, which are not trained on.
SPARE = 4


class ArrangedTrainer:
    """An engine's trainer with other rewards; if ``is_stale``, it samples from the start model for ever."""

    def __init__(self, trainer: Any, is_stale: bool) -> None:
        self._trainer = trainer
        self._is_stale = is_stale
        self._first: list[list[Rollout]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    async def roll_out(
        self, questions: Sequence[Question], sampling: RolloutSampling
    ) -> list[list[Rollout]]:
        """Roll out; of trained rollouts, the last group's first counts as failed, and others can be trained on."""
        if not sampling.trained:
            return await self._trainer.roll_out(questions, sampling)
        if self._first and self._is_stale:
            return self._first

        more = replace(sampling, samples=SPARE * sampling.samples)
        rollouts_QG: list[list[Rollout]] = []
        for group in await self._trainer.roll_out(questions, more):
            whole_first = sorted(group, key=lambda rollout: bool(rollout.left_out))
            rollouts_QG.append(whole_first[: sampling.samples])

        rollout = rollouts_QG[-1][0]
        failed = rollout.trajectory.model_copy(
            update={"stop_reason": StopReason.TOOL_ERROR, "answer": ""}
        )
        rollouts_QG[-1][0] = Rollout(failed, rollout.capture)
        self._first = rollouts_QG
        return rollouts_QG

    async def update(
        self, rollouts_QG: Sequence[Sequence[Rollout]], rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Update from rewards that are equal in the first group and rise in the others."""
        arranged_QG: list[list[float]] = []
        for group, rewards_G in enumerate(rewards_QG):
            rising_G = [float(place) for place in range(len(rewards_G))]
            arranged_QG.append(rising_G if group else [0.0] * len(rewards_G))

        return await self._trainer.update(rollouts_QG, arranged_QG)


def arrange(is_stale: bool) -> None:
    """Have every engine of our own loop make an :class:`ArrangedTrainer`."""
    in_our_loop = engines.in_our_loop

    def arranged(make_trainer: Any) -> Any:
        def make(task: RlTask, config: RlConfig) -> Any:
            return ArrangedTrainer(make_trainer(task, config), is_stale)

        return in_our_loop(make)

    engines.in_our_loop = arranged


def main() -> None:
    """Command line; an error, and a stale sampler that was not noticed, end it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("params", type=Path)
    parser.add_argument("start")
    parser.add_argument("--stale", action="store_true")
    arguments = parser.parse_args()
    arrange(arguments.stale)

    try:
        profile = load_profile(arguments.params)
        scratch = profile.work / "arranged" / ("stale" if arguments.stale else "full")
        curve = curve_path(profile.work, f"arranged-{scratch.name}")
        run = rl_run(profile, profile.section("rl", RlConfig), arguments.start, scratch, curve)
        # In this process, where the engines are arranged
        train(run)

        if arguments.stale:
            raise CheckFailedError(
                "a sampler that is one step behind was not noticed. The check of sampler against trainer (section rl) "
                "is too wide, or does not see what was sampled."
            )
    except StalePolicyError as error:
        if not arguments.stale:
            sys.exit(f"error: {error}")
        sys.stderr.write(f"noticed: {error}\n")
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
