"""Alarms of an RL run: what goes wrong while a reward still looks well, as pure functions of the training log.

Every alarm compares the mean of the last :data:`WINDOW` steps with that of the first ones, so that
it says nothing before a run has twice as many steps, apart from those that need no start to compare
with. An alarm is a warning with its figures.

Where the field has described a failure, its source stands at the alarm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from deepsearch_rl.train.curves import Alarm, TrainingStep

# Steps of a mean
WINDOW = 5
# Times the usual norm of a gradient from which on it is a spike
SPIKE = 10.0


class AlarmWatch:
    """The alarms of a growing log, computed once per line.

    ``now`` maps the last step's alarms to their reasons. ``began`` lists every alarm with the step
    at which it began; one that ends and comes back is listed again.
    """

    def __init__(self) -> None:
        self.now: dict[str, str] = {}
        self.began: list[Alarm] = []
        self._steps: list[TrainingStep] = []

    def add(self, line: TrainingStep) -> list[Alarm]:
        """Add the next line and return the alarms that begin at it."""
        # The start is no training step
        if line.step:
            self._steps.append(line)

        before = self.now
        self.now = {}
        new: list[Alarm] = []
        for name, alarm in ALARMS.items():
            reason = alarm(self._steps)
            if reason:
                self.now[name] = reason
                # One that goes on has begun at an earlier step
                if name not in before:
                    new.append(Alarm(name=name, step=line.step, reason=reason))

        self.began += new
        return new


@dataclass(frozen=True, slots=True)
class _MeanAlarm:
    """An alarm of one metric, by its means over the first and over the last :data:`WINDOW` steps.

    ``is_given`` and ``sentence`` take the two means as ``start`` and ``now``. Steps without the
    metric do not count, or have the value ``absent``. ``compares`` says that the two windows must
    not overlap.
    """

    metric: str
    is_given: Callable[[float, float], bool]
    sentence: str
    absent: float | None = None
    compares: bool = True

    def reason(self, steps: Sequence[TrainingStep]) -> str:
        """Return the sentence with the figures of these steps; empty where there is no alarm."""
        values = _values(steps, self.metric, self.absent)
        if len(values) < (2 * WINDOW if self.compares else WINDOW):
            return ""

        start = fmean(values[:WINDOW])
        now = fmean(values[-WINDOW:])
        return self.sentence.format(start=start, now=now) if self.is_given(start, now) else ""


def _values(steps: Sequence[TrainingStep], metric: str, absent: float | None = None) -> list[float]:
    """Return a metric of the steps that have it, or of all with the value ``absent`` of those that do not."""
    values = (step.metrics.get(metric, absent) for step in steps)
    return [value for value in values if value is not None]


def _answer_avoidance(steps: Sequence[TrainingStep]) -> str:
    refusals = _values(steps, "refusals")
    rewards = _values(steps, "reward")
    if min(len(refusals), len(rewards)) < 2 * WINDOW:
        return ""

    refused_before = fmean(refusals[:WINDOW])
    refused_now = fmean(refusals[-WINDOW:])
    reward_before = fmean(rewards[:WINDOW])
    reward_now = fmean(rewards[-WINDOW:])
    # Refusals that are rewarded are right ones: some questions have no answer
    if refused_now - refused_before < 0.15 or reward_now > reward_before:
        return ""

    return (
        f"the share of refusals rose from {refused_before:.0%} to {refused_now:.0%} while the reward "
        f"went from {reward_before:.3f} to {reward_now:.3f}: the policy learns not to answer"
    )


def _spike(steps: Sequence[TrainingStep]) -> str:
    """The loss says nothing here: at a ratio of 1 it is about 0, whatever is learnt."""
    norms = _values(steps, "grad_norm")
    # The first gradients have no usual size
    if len(norms) <= WINDOW or "grad_norm" not in steps[-1].metrics:
        return ""

    # A mean would rise with every spike, and hide the next one
    usual = median(norms[:-1])
    if not norms[-1] > SPIKE * usual > 0:
        return ""
    return f"grad_norm is {norms[-1]:.3g}, usually {usual:.3g}: look at this step's rollouts"


# Alarm -> the reason that the training steps of a log, without step 0, give for it; empty where
# there is none
ALARMS: Mapping[str, Callable[[Sequence[TrainingStep]], str]] = {
    "answer_avoidance": _answer_avoidance,
    "search_collapse": _MeanAlarm(
        "tool_calls",
        lambda start, now: now <= 1.05 and start - now >= 0.5,
        "searches per rollout fell from {start:.2f} to {now:.2f}: chains of several hops cannot be "
        "followed any more",
    ).reason,
    "search_limit": _MeanAlarm(
        "at_search_limit",
        lambda start, now: now >= 0.8 and start <= 0.5,
        "{now:.0%} of the rollouts use every search that agent.max_searches allows, {start:.0%} "
        "did at the start: the policy searches without need, or the limit is too low",
    ).reason,
    # The entropy of the policy bounds what it can still find (arXiv 2505.22617)
    "entropy_collapse": _MeanAlarm(
        "entropy",
        lambda start, now: start > 0 and now <= 0.1 * start,
        "the entropy per token fell from {start:.3g} to {now:.3g} nats: rollouts of a question "
        "become equal, and there is little left to learn from",
    ).reason,
    # Likelihood displacement: updates push right rollouts down with wrong ones that resemble them
    # (arXiv 2512.04220)
    "right_answers_unlikely": _MeanAlarm(
        "logprob_positive",
        lambda start, now: now <= 1.5 * start - 0.02,
        "the log-probability per token of rollouts with a positive advantage fell from "
        "{start:.3f} to {now:.3f} nats: training makes better answers less likely too, which "
        "precedes a collapse",
    ).reason,
    "mismatch_growing": _MeanAlarm(
        "mismatch_median",
        lambda start, now: now >= 1e-3 and now >= 5 * start,
        "sampler and trainer differ by {now:.2g} nats a token, {start:.2g} at the start: what is "
        "trained on is less and less what was sampled",
    ).reason,
    "no_signal": _MeanAlarm(
        "groups_without_signal",
        lambda _start, now: now >= 0.8,
        "{now:.0%} of the groups have equal rewards, from which nothing is learnt: choose "
        "questions that are sometimes right, or a larger rl.group_size",
        compares=False,
    ).reason,
    # A step without such a rollout has no such metric
    "length_limit": _MeanAlarm(
        "failures/token_budget",
        lambda _start, now: now >= 0.25,
        "{now:.0%} of the rollouts end at their limit of tokens: raise agent.max_tokens or "
        "agent.context_tokens, or reward shorter ones",
        absent=0.0,
        compares=False,
    ).reason,
    "spike": _spike,
}


def gate_warning(pass_1: float, pass_k: float, samples: int, min_f1: float) -> str:
    """Return what to expect of RL from a start that answers dev questions with these scores; empty if all is well.

    ``pass_1`` is the mean F1 of one answer, ``pass_k`` the mean over questions of the best F1 of
    ``samples`` answers. RL raises the first towards the second: it makes right answers frequent
    that the start finds at times.
    """
    figures = f"F1 of one answer {pass_1:.3f}, of the best of {samples} {pass_k:.3f}"
    if pass_k < 0.05:
        return f"none of {samples} answers to a question is right ({figures}): there is nothing to reward"
    if pass_k - pass_1 < 0.02:
        return f"more answers find nothing that one does not ({figures}): RL has nothing to find"
    if pass_1 < min_f1:
        return f"the start is weak ({figures}; rl.gate.min_f1 is {min_f1:g}): expect it to learn little"
    return ""
