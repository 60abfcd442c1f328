"""The rollouts of a step: which of them are trained on, and what the log says of them."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from deepsearch_rl.answers import INSUFFICIENT, normalise, score_rollout
from deepsearch_rl.errors import EndpointError
from deepsearch_rl.records import StopReason
from deepsearch_rl.training.curves import TrainingStep
from deepsearch_rl.training.rl.trainer import Rollout

Groups = list[list[Rollout]]  # Q questions, G rollouts of each
BROKEN = frozenset({StopReason.TOOL_ERROR, StopReason.MODEL_ERROR, StopReason.DEADLINE})
"""How a rollout ends that infrastructure broke: a search or a model call failed, or time ran out."""


def trainable(rollouts_QG: Groups) -> Groups:
    """Leave out the rollouts of :data:`BROKEN`, and groups that are then empty.

    Their reward of zero says nothing of the policy. Raises EndpointError if nothing is left: a
    server that fails everything must not use up steps.
    """
    kept_QG: Groups = []
    for group in rollouts_QG:
        kept_QG.append([rollout for rollout in group if rollout.trajectory.stop_reason not in BROKEN])

    if not any(kept_QG):
        first = rollouts_QG[0][0].trajectory
        raise EndpointError(
            f"every rollout of the step failed; the first one ended with {first.stop_reason}: "
            f"{first.error}. Nothing of the step was kept; check the server that this names and run "
            "the command again, which goes on from the last step."
        )

    return list(filter(None, kept_QG))


def rollout_metrics(rollouts: Sequence[Rollout], max_searches: int) -> dict[str, float]:
    """Return means over a step's rollouts: reward and parts, F1, lengths, tool calls, failures.

    ``refusals`` is the share that answers :data:`~deepsearch_rl.answers.INSUFFICIENT`,
    ``at_search_limit`` that which used all searches it was allowed.
    """
    trajectories = [rollout.trajectory for rollout in rollouts]
    failures = Counter(trajectory.stop_reason for trajectory in trajectories if trajectory.failed)
    refusal = normalise(INSUFFICIENT)
    parts = rollouts[0].parts
    return {
        "reward": fmean(rollout.reward for rollout in rollouts),
        **{f"reward/{name}": fmean(rollout.parts[name] for rollout in rollouts) for name in parts},
        "f1": fmean(score_rollout(trajectory).f1 for trajectory in trajectories),
        "refusals": fmean(normalise(trajectory.answer) == refusal for trajectory in trajectories),
        "response_tokens": fmean(trajectory.completion_tokens for trajectory in trajectories),
        "tool_calls": fmean(trajectory.tool_calls for trajectory in trajectories),
        "at_search_limit": fmean(trajectory.tool_calls >= max_searches for trajectory in trajectories),
        "rounds": fmean(trajectory.rounds for trajectory in trajectories),
        **{f"failures/{kind}": count / len(rollouts) for kind, count in sorted(failures.items())},
    }


def progress_note(line: TrainingStep) -> str:
    """Return reward and F1 of a line for the progress bar."""
    values = {"reward": line.metrics.get("reward"), "F1": line.metrics.get("f1"), "dev F1": line.dev_f1}
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items() if value is not None)
