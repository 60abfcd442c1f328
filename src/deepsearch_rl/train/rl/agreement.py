"""How far the sampler's log-probabilities are from the trainer's own, over all sampled tokens of a step.

The trainer computes the log-probabilities of what was sampled before each update. They are the old
policy of ratio and clip; the sampler's only weight a token (truncated importance sampling,
https://fengyao.notion.site/off-policy-rl). Two engines differ by rounding. A sampler that still has
the weights of an earlier step, renders prompts in another way or bends the distribution differs by
far more, and stops the run.

Shapes: B rollouts, S tokens, P sampled tokens of all rollouts.
"""

import math

import torch

from deepsearch_rl.core.errors import CheckFailedError, StalePolicyError
from deepsearch_rl.train.rl.rl_config import LossConfig

# Standard errors by which a served model must be nearer to the start model before it counts as
# the start model
MAX_ERRORS = 4.0


def is_start_model(share: float, error: float) -> bool:
    """Return whether what is served is nearer to the start model than to the trained one, beyond chance."""
    return share + MAX_ERRORS * error < 1 / 2


def served_share(
    served_BS: torch.Tensor, trained_BS: torch.Tensor, start_BS: torch.Tensor
) -> tuple[float, float]:
    """Return how far a served model has come from the start model to the trained one, and the standard error of that.

    The log-probabilities [B, S] are of the same S tokens of B texts, in nats; NaN in ``served_BS``
    where there is none. The share is the least-squares coefficient of ``served - start`` on
    ``trained - start`` over all tokens: 1 where the trained weights are served, 0 where those of
    the start model are, or weights that have nothing to do with the trained ones. Below one half,
    the squared distance to the trained model is the larger one. The noise of two engines is
    independent of the direction and only widens the error, which is that of an estimate from
    clusters, the texts. Both are NaN where trained and start model are equal, as before the first
    update.
    """
    direction_BS = (trained_BS - start_BS).double()
    way_BS = (served_BS - start_BS).double()
    direction_BS = direction_BS.where(~way_BS.isnan(), 0.0)
    way_BS = way_BS.nan_to_num(0.0)

    length = direction_BS.square().sum()
    share = (way_BS * direction_BS).sum() / length
    residuals_B = ((way_BS - share * direction_BS) * direction_BS).sum(dim=1)
    error = residuals_B.square().sum().sqrt() / length
    return float(share), float(error)


def agreement(
    sampled_BS: torch.Tensor,
    trained_BS: torch.Tensor,
    start_BS: torch.Tensor,
    advantages_B: torch.Tensor,
    loss: LossConfig,
    max_mismatch: float,
) -> dict[str, float]:
    """Return a step's metrics of sampler and trainer; log-probabilities in nats, NaN in ``sampled_BS`` where none is.

    ``trained_BS`` are those of the policy, ``start_BS`` those of the model that training began
    from, both by the trainer. A metric that is not defined (no such rollout, equal probabilities)
    is left out:

    - ``mismatch_mean``, ``mismatch_p99`` and ``mismatch_max`` are of the absolute difference over
      the P tokens, ``mismatch_corr`` is the correlation of the two probabilities.
    - ``mismatch_median`` is the median over rollouts of their mean absolute difference: a policy
      that wrote tokens which its tokenizer would not choose for that text is served other tokens in
      the next turn, so that single rollouts differ without being stale. A rollout without a number
      counts as one that differs.
    - ``served_share`` is how much of the training the sampler serves (:func:`served_share`): 1 is
      the policy, 0 the model that it started from. ``served_share_se`` is its standard error: where
      that is large, as after a few small updates, the share says nothing.
    - ``outside_clip_positive`` and ``outside_clip_negative`` are the shares of rollouts with an
      advantage of that sign whose mean ratio of trainer to sampler lies outside the clip range:
      those that would teach nothing if the sampler's were the old policy.

    Raises StalePolicyError if ``mismatch_median`` exceeds ``max_mismatch``, or if the sampler is
    nearer to the start model than to the policy by more than the noise of the two engines.
    """
    sampled_mask_BS = ~sampled_BS.isnan()
    sampled_P = sampled_BS[sampled_mask_BS].double()
    trained_P = trained_BS[sampled_mask_BS].double()
    mismatch_P = (sampled_P - trained_P).abs()
    # By rollout: a few that the tokenizer reads otherwise must not hide, or feign, a stale policy
    rows_B = mean_difference((trained_BS - sampled_BS).abs())[:, 0]
    median = float(rows_B.nan_to_num(nan=math.inf).median())
    share, error = served_share(sampled_BS, trained_BS, start_BS)

    _require_newest_policy(median, max_mismatch, share, error)

    probabilities_2P = torch.stack([sampled_P.exp(), trained_P.exp()])
    metrics = {
        "mismatch_mean": float(mismatch_P.mean()),
        "mismatch_median": median,
        "mismatch_p99": float(mismatch_P.kthvalue(math.ceil(0.99 * len(mismatch_P))).values),
        "mismatch_max": float(mismatch_P.max()),
        "mismatch_corr": float(torch.corrcoef(probabilities_2P)[0, 1]),
        "served_share": share,
        "served_share_se": error,
    }
    outside_B = outside_clip(mean_difference(trained_BS - sampled_BS)[:, 0], loss)
    for sign, rows_B in (("positive", advantages_B > 0), ("negative", advantages_B < 0)):
        metrics[f"outside_clip_{sign}"] = float(outside_B[rows_B].double().mean())
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _require_newest_policy(median: float, max_mismatch: float, share: float, error: float) -> None:
    """Raise StalePolicyError as :func:`agreement` says; ``error`` is the standard error of the ``share`` served."""
    # Written so that NaN fails as well
    if not median <= max_mismatch:
        raise StalePolicyError(
            "the rollouts were not sampled from the newest policy: in half of them the "
            f"log-probabilities of the sampled tokens differ from the trainer's by {median:.2g} "
            f"nats or more on average; rl.max_mismatch is {max_mismatch:g}. Nothing of this step "
            "was kept; check that the server took over the new weights and renders prompts as the "
            "trainer does."
        )

    if is_start_model(share, error):
        raise StalePolicyError(
            "the rollouts were not sampled from the newest policy: the log-probabilities of the "
            f"sampled tokens have gone {share:.0%} (standard error {error:.0%}) of the way from "
            "the start model to the trained policy, where 100% is right and 0% is a server without "
            "the trained weights. Nothing of this step was kept; check that the server applies the "
            "adapter of the newest step."
        )


def require_unclipped(clip_fraction: float) -> None:
    """Raise CheckFailedError if a step's first update clips: its ratio is 1 by definition, as no weight has changed.

    ``clip_fraction`` is the share of the update's tokens whose ratio lies outside the clip range.
    """
    if clip_fraction == 0:
        return
    raise CheckFailedError(
        f"{clip_fraction:.1%} of the tokens of a step's first update are outside the clip range "
        "(rl.loss.epsilon, rl.loss.epsilon_high), although no weight has changed since the "
        "rollouts were scored: this device does not compute the same log-probability twice, by "
        "more than the range allows, and such tokens teach nothing. Nothing of this step was kept. "
        "Widen the range, set rl.dtype: float32, or change rl.max_batch_tokens."
    )


def mean_difference(difference_BS: torch.Tensor) -> torch.Tensor:
    """Return the mean over each row's entries that are not NaN, [B, 1]: GSPO's log-ratio of a rollout."""
    return difference_BS.nanmean(dim=1, keepdim=True)


def outside_clip(log_ratio: torch.Tensor, loss: LossConfig) -> torch.Tensor:
    """Return whether each ratio, given as its logarithm, lies outside the clip range."""
    ratio = log_ratio.exp()
    return (ratio < 1 - loss.epsilon) | (ratio > 1 + loss.epsilon_high)
