"""Scores of a policy on dev questions: they choose the checkpoint, and say before training what RL can find."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.train.curves import standard_error
from deepsearch_rl.train.dev_f1 import f1_by_question, mean_f1
from deepsearch_rl.train.rl.health import gate_warning
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, RlTrainer, RolloutSampling
from deepsearch_rl.train.rl.step_rollouts import reasons_text, roll_out_seed, sort_out

_LOG = logging.getLogger(__name__)
# Share of a dev score's rollouts that infrastructure must have left whole for it to be a score
MIN_DEV_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class DevScores:
    """Scores of the policy that ``trainer`` serves now. All scores of one kind share their random numbers."""

    task: RlTask
    config: RlConfig
    trainer: RlTrainer

    async def gate(self) -> dict[str, float]:
        """Return the start's F1 of one answer and of the best of several; warn where RL cannot help it."""
        gate = self.config.gate
        seed = roll_out_seed(self.task.seed, draw=-2)
        sampling = RolloutSampling(gate.samples, self.config.temperature, seed, trained=False)
        f1_QG = await self._f1(self.task.dev[: gate.questions], sampling)

        pass_1, _ = mean_f1(f1_QG)
        pass_k = fmean(map(max, f1_QG))
        warning = gate_warning(pass_1, pass_k, gate.samples, gate.min_f1)
        if warning:
            _LOG.warning("rl@%s: %s.", self.task.start_name, warning)
        return {"pass_1": pass_1, "pass_k": pass_k}

    async def dev_f1(self) -> dict[str, float]:
        """Return the mean F1 on the dev questions with its standard error."""
        dev = self.config.dev
        seed = roll_out_seed(self.task.seed, draw=-1)
        sampling = RolloutSampling(dev.samples, dev.temperature, seed, trained=False)
        f1_QG = await self._f1(self.task.dev[: dev.questions], sampling)

        mean, f1_Q = mean_f1(f1_QG)
        return {"dev_f1": mean, **standard_error("dev_f1", f1_Q)}

    async def _f1(
        self, questions: Sequence[Question], sampling: RolloutSampling
    ) -> list[list[float]]:
        """Return the F1 of every rollout that infrastructure left whole, by question.

        Raises EndpointError if they are less than :data:`MIN_DEV_SHARE`.
        """
        rollouts_QG = await self.trainer.roll_out(questions, sampling)
        usable_QG, failed = sort_out(rollouts_QG)
        total = sum(map(len, rollouts_QG))

        # Checkpoints are compared by this score: it must not be of a few questions
        if total - len(failed) < MIN_DEV_SHARE * total:
            raise EndpointError(
                f"{len(failed)} of the {total} rollouts of a dev score were failed by a server "
                f"{reasons_text(failed)}. That leaves too few to choose a checkpoint by. Check the "
                "servers and run the command again, which goes on after the last logged step."
            )

        trajectories_QG: list[list[Trajectory]] = []
        for group in usable_QG:
            trajectories_QG.append([rollout.trajectory for rollout in group])

        return f1_by_question(trajectories_QG)
