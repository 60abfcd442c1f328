"""The questions and rollouts of a step: their order, which are trained on, their figures, and scores on dev."""

import itertools
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from deepsearch_rl.core.answers import is_refusal, score_rollout
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.records import SERVER_FAILURES, Question
from deepsearch_rl.train.curves import TrainingStep, standard_error
from deepsearch_rl.train.rl.health import gate_warning
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, RlTrainer, Rollout, RolloutSampling

_LOG = logging.getLogger(__name__)

# Share of a dev score's rollouts that infrastructure must have left whole for it to be a score
MIN_DEV_SHARE = 0.9

# Q questions, G rollouts of each
Groups = list[list[Rollout]]


def batch(task: RlTask, first: int, size: int) -> list[Question]:
    """Return ``size`` train questions from number ``first`` on, counted from 0; every epoch is shuffled anew."""
    return list(islice(_epochs(task.train, task.seed), first, first + size))


def _epochs(questions: Sequence[Question], seed: int) -> Iterator[Question]:
    for epoch in itertools.count():
        yield from random.Random(f"{seed}/{epoch}").sample(questions, len(questions))


def roll_out_seed(seed: int, draw: int, tries: int = 0) -> int:
    """Return the seed of a batch of rollouts from the run's seed and the number of the draw.

    A draw is a step's number less one; -1 stands for all dev scores and -2 for the gate. ``tries``
    is how many updates of the step were not finite: the next try samples different rollouts.
    """
    parts = [seed, draw, tries] if tries else [seed, draw]
    return int(sha256_json(parts)[:12], 16)


def trainable(rollouts_QG: Groups) -> Groups:
    """Drop rollouts that failed because of a server, or that the engine cannot train on, and then empty groups.

    A server's failure has a reward of zero that says nothing about the policy. Raises EndpointError
    if nothing is left: a broken server must not use up steps.
    """
    usable_QG, left_out = sort_out(rollouts_QG)
    if not usable_QG:
        raise _nothing_to_train_on(left_out)
    return usable_QG


def sort_out(rollouts_QG: Groups) -> tuple[Groups, list[Rollout]]:
    """Return the groups that :func:`trainable` keeps, and the rollouts that it drops."""
    usable_QG: Groups = []
    left_out: list[Rollout] = []
    for group in rollouts_QG:
        usable_G: list[Rollout] = []
        for rollout in group:
            (left_out if _why_left_out(rollout) else usable_G).append(rollout)

        if usable_G:
            usable_QG.append(usable_G)

    return usable_QG, left_out


def reasons_text(left_out: Sequence[Rollout]) -> str:
    """Return the number of rollouts left out by reason, and the error of the first, for a message."""
    reasons = Counter(map(_why_left_out, left_out))
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    first = left_out[0]
    return f"({counts}); the first one ended with {_why_left_out(first)}: {first.trajectory.error}"


def _nothing_to_train_on(left_out: Sequence[Rollout]) -> EndpointError:
    # A server's failure is named before the engine's reasons: as long as it lasts, they cannot be judged
    if any(_why_left_out(rollout) in SERVER_FAILURES for rollout in left_out):
        remedy = "check the server that this names"
    else:
        remedy = (
            "a start model that writes its calls as its chat template does can be trained "
            "(docs/training.md, what is left out), for example one after SFT. Then"
        )

    return EndpointError(
        f"every rollout of the step failed {reasons_text(left_out)}. Nothing of the step was kept; "
        f"{remedy} and run the command again, which goes on from the last step."
    )


def _why_left_out(rollout: Rollout) -> str:
    """Return the server's failure or the engine's reason to leave a rollout out; empty where it is trained on."""
    reason = rollout.trajectory.stop_reason
    return str(reason) if reason in SERVER_FAILURES else rollout.left_out


def rollout_metrics(rollouts: Sequence[Rollout], max_searches: int) -> dict[str, float]:
    """Return means over a step's rollouts: reward and parts, F1, lengths, tool calls, and the share of each failure.

    ``refusals`` is the share that answers :data:`~deepsearch_rl.core.answers.INSUFFICIENT`,
    ``at_search_limit`` that which used all searches it was allowed.
    """
    # Every name has a value of each rollout, so that a mean has failed ones in its denominator
    values: dict[str, list[float]] = {}
    failures: Counter[str] = Counter()
    left_out: Counter[str] = Counter()

    for rollout in rollouts:
        trajectory = rollout.trajectory
        figures = {"reward": rollout.reward}
        for name in rollouts[0].parts:
            figures[f"reward/{name}"] = rollout.parts[name]
        figures["f1"] = score_rollout(trajectory).f1
        figures["refusals"] = is_refusal(trajectory.answer)
        figures["response_tokens"] = trajectory.completion_tokens
        figures["tool_calls"] = trajectory.tool_calls
        figures["at_search_limit"] = trajectory.tool_calls >= max_searches
        figures["rounds"] = trajectory.rounds
        for name, value in figures.items():
            values.setdefault(name, []).append(value)

        if trajectory.failed:
            failures[trajectory.stop_reason] += 1
        if rollout.left_out:
            left_out[rollout.left_out] += 1

    metrics = {name: fmean(numbers) for name, numbers in values.items()}
    for kind, count in sorted(failures.items()):
        metrics[f"failures/{kind}"] = count / len(rollouts)
    for name, count in sorted(left_out.items()):
        metrics[f"left_out/{name}"] = count / len(rollouts)

    return metrics


def progress_note(line: TrainingStep) -> str:
    """Return reward and F1 of a line for the progress bar."""
    values = {
        "reward": line.metrics.get("reward"),
        "F1": line.metrics.get("f1"),
        "dev F1": line.dev_f1,
    }
    notes: list[str] = []
    for name, value in values.items():
        # Dev is not scored at every step
        if value is not None:
            notes.append(f"{name} {value:.3f}")

    return ", ".join(notes)


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

        pass_1 = fmean(map(fmean, f1_QG))
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

        f1_Q = list(map(fmean, f1_QG))
        return {"dev_f1": fmean(f1_Q), **standard_error("dev_f1", f1_Q)}

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

        f1_QG: list[list[float]] = []
        for group in usable_QG:
            f1_QG.append([score_rollout(rollout.trajectory).f1 for rollout in group])

        return f1_QG
