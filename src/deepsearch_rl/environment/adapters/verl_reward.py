r"""What veRL logs of a rollout, and a reward function for rows that another agent loop rolls out.

    reward.custom_reward_function.path=pkg://deepsearch_rl.environment.adapters.verl_reward \
    reward.custom_reward_function.name=compute_score +reward.custom_reward_function.reward_kwargs.metric=em

veRL's own selector of rewards refuses rows with a ``data_source`` that it does not know.
"""

from typing import Any

from deepsearch_rl.core.answers import extract_answer, score, score_rollout
from deepsearch_rl.core.records import SERVER_FAILURES, StopReason
from deepsearch_rl.environment.episode import Outcome

STOPS = tuple(reason for reason in StopReason if reason not in SERVER_FAILURES)


def reward_figures(outcome: Outcome) -> dict[str, float]:
    """Return what veRL logs of a rollout, for dev questions as ``val-aux/<data_source>/<name>/mean@N``."""
    trajectory = outcome.trajectory
    scores = score_rollout(trajectory)
    figures: dict[str, float] = {}
    for name, part in outcome.parts.items():
        figures[f"reward_{name}"] = part
    figures |= {"f1": scores.f1, "em": scores.em, "searches": float(trajectory.tool_calls)}
    # All of them each time: veRL averages a figure over the rollouts that have it
    for reason in STOPS:
        figures[f"stop_{reason}"] = float(reason == trajectory.stop_reason)

    return figures


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **options: Any
) -> dict[str, float]:
    """Return the score of a response's last answer by the golden ``target`` of a row of any ``data_source``.

    ``reward.custom_reward_function.reward_kwargs.metric`` chooses ``f1`` (the default), ``em``,
    ``acc``, ``precision`` or ``recall`` as the reward.
    """
    del data_source, extra_info
    golden_answers = [str(answer) for answer in ground_truth["target"]]
    scores = score(extract_answer(solution_str), golden_answers)._asdict()
    return {"score": scores[options.get("metric", "f1")], **scores}
