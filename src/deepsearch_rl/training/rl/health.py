"""Alarms of an RL run: what goes wrong while a reward still looks well, as pure functions of the training log.

Every alarm compares the mean of the last :data:`WINDOW` steps with that of the first ones, so that
it says nothing before a run has twice as many steps, apart from those that need no start to compare
with. An alarm is a warning with its figures; ``rl.stop_on`` names those that end a run, whose best
checkpoint is then published as at any end.

Where the field has described a failure, its source stands at the alarm.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Literal, NamedTuple

from deepsearch_rl.training.runs.curves import TrainingStep

AlarmName = Literal[
    "answer_avoidance",
    "search_collapse",
    "search_limit",
    "entropy_collapse",
    "right_answers_unlikely",
    "mismatch_growing",
    "no_signal",
    "length_limit",
    "spike",
]
WINDOW = 5
"""Steps of a mean."""
SPIKE = 10.0
"""Times the usual norm of a gradient from which on it is a spike."""


class Alarm(NamedTuple):
    """An alarm that began at a step, and why."""

    name: AlarmName
    step: int
    reason: str


class _Change(NamedTuple):
    """The means of a metric over the first and over the last steps."""

    start: float
    now: float


def alarms_at_end(lines: Sequence[TrainingStep]) -> dict[AlarmName, str]:
    """Return the alarms that a log gives at its last step with their reasons; ``lines`` begin at step 0."""
    found: dict[AlarmName, str] = {}
    for name, alarm in ALARMS.items():
        if reason := alarm(lines[1:]):
            found[name] = reason

    return found


def alarms_of_log(lines: Sequence[TrainingStep]) -> list[Alarm]:
    """Return every alarm at the step at which it began, in the order of the log.

    An alarm that ends and comes back is listed again.
    """
    found: list[Alarm] = []
    before: dict[AlarmName, str] = {}

    for end in range(1, len(lines) + 1):
        now = alarms_at_end(lines[:end])
        step = lines[end - 1].step
        found += [Alarm(name, step, reason) for name, reason in now.items() if name not in before]
        before = now

    return found


def _last(steps: Sequence[TrainingStep], metric: str) -> list[float]:
    """Return a metric of the last steps that have it; empty where fewer than a window have it."""
    values = [step.metrics[metric] for step in steps if metric in step.metrics]
    return values[-WINDOW:] if len(values) >= WINDOW else []


def _change(steps: Sequence[TrainingStep], metric: str) -> _Change | None:
    """Return a metric's means at the start and now; None where the two windows would overlap."""
    values = [step.metrics[metric] for step in steps if metric in step.metrics]
    if len(values) < 2 * WINDOW:
        return None
    return _Change(fmean(values[:WINDOW]), fmean(values[-WINDOW:]))


def _answer_avoidance(steps: Sequence[TrainingStep]) -> str:
    refusals = _change(steps, "refusals")
    reward = _change(steps, "reward")

    if (
        refusals is None
        or reward is None
        or refusals.now - refusals.start < 0.15
        or reward.now > reward.start
    ):
        return ""

    return (
        f"the share of refusals rose from {refusals.start:.0%} to {refusals.now:.0%} while the reward went from "
        f"{reward.start:.3f} to {reward.now:.3f}: the policy learns not to answer"
    )


def _search_collapse(steps: Sequence[TrainingStep]) -> str:
    searches = _change(steps, "tool_calls")
    if searches is None or searches.now > 1.05 or searches.start - searches.now < 0.5:
        return ""
    return (
        f"searches per rollout fell from {searches.start:.2f} to {searches.now:.2f}: chains of several hops cannot be "
        "followed any more"
    )


def _search_limit(steps: Sequence[TrainingStep]) -> str:
    limited = _change(steps, "at_search_limit")
    if limited is None or limited.now < 0.8 or limited.start > 0.5:
        return ""
    return (
        f"{limited.now:.0%} of the rollouts use every search that agent.max_searches allows, {limited.start:.0%} did "
        "at the start: the policy searches without need, or the limit is too low"
    )


def _entropy_collapse(steps: Sequence[TrainingStep]) -> str:
    """The entropy of the policy bounds what it can still find (arXiv 2505.22617)."""
    entropy = _change(steps, "entropy")
    if entropy is None or entropy.start <= 0 or entropy.now > 0.1 * entropy.start:
        return ""
    return (
        f"the entropy per token fell from {entropy.start:.3g} to {entropy.now:.3g} nats: rollouts of a question become "
        "equal, and there is little left to learn from"
    )


def _right_answers_unlikely(steps: Sequence[TrainingStep]) -> str:
    """Likelihood displacement: updates push right rollouts down with wrong ones that resemble them (2512.04220)."""
    logprob = _change(steps, "logprob_positive")
    if logprob is None or logprob.now > 1.5 * logprob.start - 0.02:
        return ""
    return (
        f"the log-probability per token of rollouts with a positive advantage fell from {logprob.start:.3f} to "
        f"{logprob.now:.3f} nats: training makes better answers less likely too, which precedes a collapse"
    )


def _mismatch_growing(steps: Sequence[TrainingStep]) -> str:
    mismatch = _change(steps, "mismatch_median")
    if mismatch is None or mismatch.now < 1e-3 or mismatch.now < 5 * mismatch.start:
        return ""
    return (
        f"sampler and trainer differ by {mismatch.now:.2g} nats a token, {mismatch.start:.2g} at the start: what is "
        "trained on is less and less what was sampled"
    )


def _no_signal(steps: Sequence[TrainingStep]) -> str:
    shares = _last(steps, "groups_without_signal")
    if not shares or fmean(shares) < 0.8:
        return ""
    return (
        f"{fmean(shares):.0%} of the groups have equal rewards, from which nothing is learnt: choose questions that "
        "are sometimes right, a larger rl.group_size or rl.max_refills"
    )


def _length_limit(steps: Sequence[TrainingStep]) -> str:
    shares = _last(steps, "failures/token_budget") or [0.0]
    if fmean(shares) < 0.25:
        return ""
    return (
        f"{fmean(shares):.0%} of the rollouts end at their limit of tokens: raise agent.max_tokens or "
        "agent.context_tokens, or reward shorter ones"
    )


def _spike(steps: Sequence[TrainingStep]) -> str:
    """The loss says nothing here: at a ratio of 1 it is about 0, whatever is learnt."""
    norms = [step.metrics["grad_norm"] for step in steps if "grad_norm" in step.metrics]
    if len(norms) <= WINDOW or "grad_norm" not in steps[-1].metrics:
        return ""

    usual = median(norms[:-1])
    if not norms[-1] > SPIKE * usual > 0:
        return ""
    return f"grad_norm is {norms[-1]:.3g}, usually {usual:.3g}: look at this step's rollouts"


ALARMS: Mapping[AlarmName, Callable[[Sequence[TrainingStep]], str]] = {
    "answer_avoidance": _answer_avoidance,
    "search_collapse": _search_collapse,
    "search_limit": _search_limit,
    "entropy_collapse": _entropy_collapse,
    "right_answers_unlikely": _right_answers_unlikely,
    "mismatch_growing": _mismatch_growing,
    "no_signal": _no_signal,
    "length_limit": _length_limit,
    "spike": _spike,
}
"""Alarm -> the reason that the training steps of a log, without step 0, give for it; empty where there is none."""


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
