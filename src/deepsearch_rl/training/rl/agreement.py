"""How far the sampler's log-probabilities are from the trainer's own, over all sampled tokens of a step.

The trainer computes the log-probabilities of what was sampled before each update. They are the old policy of ratio and
clip; the sampler's only weight a token (truncated importance sampling, https://fengyao.notion.site/off-policy-rl).
Two engines differ by rounding. A sampler that still has the weights of an earlier step, renders prompts in another
way or bends the distribution differs by far more, and stops the run. Rollouts that were made ahead
(``rl.rollouts_ahead``) are meant to be those of the policy before: they are measured and weighted, not refused.

Shapes: B rollouts, S tokens, P sampled tokens of all rollouts.
"""

import math

import torch

from deepsearch_rl.errors import StalePolicyError
from deepsearch_rl.training.rl.trainer import LossConfig


def agreement(
    sampled_BS: torch.Tensor,
    trained_BS: torch.Tensor,
    advantages_B: torch.Tensor,
    loss: LossConfig,
    max_mismatch: float | None,
) -> dict[str, float]:
    """Return a step's metrics of sampler and trainer; log-probabilities in nats, NaN in ``sampled_BS`` where none is.

    ``mismatch_mean``, ``mismatch_p99`` and ``mismatch_max`` are of the absolute difference over the P tokens,
    ``mismatch_corr`` is the correlation of the two probabilities. ``mismatch_median`` is the median over rollouts of
    their mean absolute difference: a policy that wrote tokens which its tokenizer would not choose for that text is
    served other tokens in the next turn, so that single rollouts differ without being stale. ``outside_clip_positive``
    and ``outside_clip_negative`` are the shares of rollouts with an advantage of that sign whose mean ratio of trainer
    to sampler lies outside the clip range: those that would teach nothing if the sampler's were the old policy. A
    metric that is not defined (no such rollout, equal probabilities) is left out. A rollout without a number counts as
    one that differs.

    Raises StalePolicyError if ``mismatch_median`` exceeds ``max_mismatch``; None is for rollouts of an earlier policy.
    """
    sampled_mask_BS = ~sampled_BS.isnan()
    sampled_P, trained_P = sampled_BS[sampled_mask_BS].double(), trained_BS[sampled_mask_BS].double()
    mismatch_P = (sampled_P - trained_P).abs()
    rows_B = mean_difference((trained_BS - sampled_BS).abs())[:, 0]
    median = float(rows_B.nan_to_num(nan=math.inf).median())
    if max_mismatch is not None and not median <= max_mismatch:  # NaN too
        raise StalePolicyError(
            "the rollouts were not sampled from the newest policy: in half of them the log-probabilities of the "
            f"sampled tokens differ from the trainer's by {median:.2g} nats or more on average; rl.max_mismatch is "
            f"{max_mismatch:g}. Nothing of this step was kept; check that the server took over the new weights and "
            "renders prompts as the trainer does."
        )
    metrics = {
        "mismatch_mean": float(mismatch_P.mean()),
        "mismatch_median": median,
        "mismatch_p99": float(mismatch_P.kthvalue(math.ceil(0.99 * len(mismatch_P))).values),
        "mismatch_max": float(mismatch_P.max()),
        "mismatch_corr": float(torch.corrcoef(torch.stack([sampled_P.exp(), trained_P.exp()]))[0, 1]),
    }
    outside_B = outside_clip(mean_difference(trained_BS - sampled_BS)[:, 0], loss)
    for sign, rows_B in (("positive", advantages_B > 0), ("negative", advantages_B < 0)):
        metrics[f"outside_clip_{sign}"] = float(outside_B[rows_B].double().mean())
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def mean_difference(difference_BS: torch.Tensor) -> torch.Tensor:
    """Return the mean over each row's entries that are not NaN, [B, 1]: GSPO's log-ratio of a rollout."""
    return difference_BS.nanmean(dim=1, keepdim=True)


def outside_clip(log_ratio: torch.Tensor, loss: LossConfig) -> torch.Tensor:
    """Return whether each ratio, given as its logarithm, lies outside the clip range."""
    ratio = log_ratio.exp()
    return (ratio < 1 - loss.epsilon) | (ratio > 1 + loss.epsilon_high)
