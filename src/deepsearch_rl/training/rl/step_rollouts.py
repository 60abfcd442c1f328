"""The rollouts of a step: which of them are trained on, and what the log says of them."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from deepsearch_rl.core.answers import INSUFFICIENT, normalise, score_rollout
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.records import SERVER_FAILURES
from deepsearch_rl.training.rl.trainer import Rollout
from deepsearch_rl.training.runs.curves import TrainingStep

Groups = list[list[Rollout]]  # Q questions, G rollouts of each


def roll_out_seed(seed: int, draw: int, tries: int = 0) -> int:
    """Return the seed of a roll-out from the run's seed and the number of the draw.

    A draw is a step's number less one; -1 is that of all dev scores and -2 that of the gate.
    ``tries`` is how many updates of the step were not finite: the next try has other rollouts.
    """
    parts = [seed, draw, tries] if tries else [seed, draw]
    return int(sha256_json(parts)[:12], 16)


def trainable(rollouts_QG: Groups) -> Groups:
    """Leave out the rollouts that a server failed, whose reward of zero says nothing of the policy, and empty groups.

    Those that the engine cannot train on (:attr:`Rollout.left_out`) are left out, too. Raises
    EndpointError if nothing is left: a server that fails everything must not use up steps.
    """
    kept_QG = [
        [rollout for rollout in group if not _why_left_out(rollout)] for group in rollouts_QG
    ]
    if not any(kept_QG):
        reasons = Counter(_why_left_out(rollout) for group in rollouts_QG for rollout in group)
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        first = rollouts_QG[0][0].trajectory

        if reasons.keys() & SERVER_FAILURES:
            remedy = "check the server that this names"
        else:
            remedy = (
                "a start model that writes its calls as its chat template does can be trained (docs/training.md, what "
                "is left out), for example one after SFT. Then"
            )

        why = _why_left_out(rollouts_QG[0][0])
        raise EndpointError(
            f"every rollout of the step failed ({counted}); the first one ended with {why}: {first.error}. Nothing of "
            f"the step was kept; {remedy} and run the command again, which goes on from the last step."
        )

    return list(filter(None, kept_QG))


def _why_left_out(rollout: Rollout) -> str:
    """Return the server's failure or the engine's reason to leave a rollout out; empty where it is trained on."""
    reason = rollout.trajectory.stop_reason
    return str(reason) if reason in SERVER_FAILURES else rollout.left_out


def rollout_metrics(rollouts: Sequence[Rollout], max_searches: int) -> dict[str, float]:
    """Return means over a step's rollouts: reward and parts, F1, lengths, tool calls, and the share of each failure.

    ``refusals`` is the share that answers :data:`~deepsearch_rl.core.answers.INSUFFICIENT`,
    ``at_search_limit`` that which used all searches it was allowed.
    """
    trajectories = [rollout.trajectory for rollout in rollouts]
    failures = Counter(trajectory.stop_reason for trajectory in trajectories if trajectory.failed)
    left_out = Counter(rollout.left_out for rollout in rollouts if rollout.left_out)
    refusal = normalise(INSUFFICIENT)
    parts = rollouts[0].parts
    return {
        "reward": fmean(rollout.reward for rollout in rollouts),
        **{f"reward/{name}": fmean(rollout.parts[name] for rollout in rollouts) for name in parts},
        "f1": fmean(score_rollout(trajectory).f1 for trajectory in trajectories),
        "refusals": fmean(normalise(trajectory.answer) == refusal for trajectory in trajectories),
        "response_tokens": fmean(trajectory.completion_tokens for trajectory in trajectories),
        "tool_calls": fmean(trajectory.tool_calls for trajectory in trajectories),
        "at_search_limit": fmean(
            trajectory.tool_calls >= max_searches for trajectory in trajectories
        ),
        "rounds": fmean(trajectory.rounds for trajectory in trajectories),
        **{f"failures/{kind}": count / len(rollouts) for kind, count in sorted(failures.items())},
        **{f"left_out/{name}": count / len(rollouts) for name, count in sorted(left_out.items())},
    }


def progress_note(line: TrainingStep) -> str:
    """Return reward and F1 of a line for the progress bar."""
    values = {
        "reward": line.metrics.get("reward"),
        "F1": line.metrics.get("f1"),
        "dev F1": line.dev_f1,
    }
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items() if value is not None)
