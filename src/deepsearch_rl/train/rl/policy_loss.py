"""Policy-gradient algorithms as pure functions of tensors, for any engine that has log-probabilities of sampled tokens.

An algorithm is a choice of four parts (:data:`ALGORITHMS`): how rewards become advantages, what the
importance ratio is of, what becomes of ratio and advantage, and how tokens are averaged. With ``r``
the rewards of the rollouts of one question and ``rho = new / old`` the ratio of the probabilities
of a token, the loss of a batch is::

    sum over tokens of  weight * (importance_weight * policy_loss + kl_loss * kl_estimate - entropy_bonus * entropy)

- ``grpo``: ``A = (r - mean r) / std r``, a clipped ratio per token (arXiv 2402.03300).
- ``gspo``: as ``grpo`` with the rollout's ``exp(mean log rho)`` as the ratio of all its tokens
  (arXiv 2507.18071).
- ``gspo_token``: the same values; the gradient of a token carries its own weights alone (there,
  section 4.3).
- ``dr_grpo``: ``A = r - mean r``, and no rollout is divided by its own length (arXiv 2503.20783).
- ``rloo``: ``A = r - mean of the others' r`` (arXiv 2402.14740).
- ``reinforce_pp``: ``A`` is ``r`` whitened over all tokens of the batch (arXiv 2501.03262).
- ``cispo``: ``A`` as in ``grpo``; the clipped ratio is a constant weight of ``A log new`` (arXiv
  2506.13585).

Shapes: B rollouts, S positions. Tensors [B, S] of log-probabilities are in nats, position by
position for the same token; ``mask_BS`` says which tokens were sampled, and values elsewhere are
without effect. ART 0.5.18 and veRL 0.9.1 give the same values and gradients
(tests/train/rl/test_policy_loss.py), apart from what a docstring names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from deepsearch_rl.train.rl.rl_config import Aggregation, AlgorithmName, KlEstimate

AdvantageKind = Literal["group_std", "group_mean", "leave_one_out", "whitened"]
RatioLevel = Literal["token", "sequence", "sequence_token"]
Objective = Literal["clipped", "weighted"]
# Log-ratios are limited to plus or minus this, in nats, before ``exp``; as in veRL
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The four choices that make an algorithm; its source's own."""

    advantage: AdvantageKind
    ratio: RatioLevel
    objective: Objective
    aggregation: Aggregation


ALGORITHMS: Mapping[AlgorithmName, Algorithm] = {
    "grpo": Algorithm("group_std", "token", "clipped", "sequence"),
    "gspo": Algorithm("group_std", "sequence", "clipped", "sequence"),
    "gspo_token": Algorithm("group_std", "sequence_token", "clipped", "sequence"),
    "dr_grpo": Algorithm("group_mean", "token", "clipped", "constant"),
    "rloo": Algorithm("leave_one_out", "token", "clipped", "token"),
    "reinforce_pp": Algorithm("whitened", "token", "clipped", "token"),
    "cispo": Algorithm("group_std", "token", "weighted", "token"),
}


def advantages(
    kind: AdvantageKind,
    rewards_B: torch.Tensor,
    groups_B: torch.Tensor,
    tokens_B: torch.Tensor,
    sample_std: bool = False,
) -> torch.Tensor:
    """Return the advantage of every rollout, [B].

    ``groups_B`` has equal integers for rollouts of one question, ``tokens_B`` counts sampled tokens
    and matters to ``whitened`` alone. ``group_std`` divides by ``std + 1e-6`` with the population's
    standard deviation as ART does, or with the sample's as veRL and Search-R1 do (``sample_std``).
    ``whitened`` is ``(r - mean) / sqrt(var + 1e-8)`` with the sample's variance, both over tokens.
    A rollout alone in its group has the advantage 0 (veRL: its reward). Give float64: in float32,
    rounding of equal rewards divided by 1e-6 looks like a signal.
    """
    if kind == "whitened":
        total = tokens_B.sum()
        centred_B = rewards_B - (rewards_B * tokens_B).sum() / total
        variance = (centred_B.square() * tokens_B).sum() / (total - 1)
        return centred_B * (variance + 1e-8).rsqrt()

    # 1 where two rollouts are of one group: one product then sums over all groups at once
    same_BB = (groups_B[:, None] == groups_B).to(rewards_B.dtype)
    size_B = same_BB.sum(dim=1)
    centred_B = rewards_B - same_BB @ rewards_B / size_B
    # A rollout alone in its group has a centred reward of 0, which any divisor leaves
    others_B = (size_B - 1).clamp(min=1)
    if kind == "leave_one_out":
        return centred_B * size_B / others_B
    if kind == "group_std":
        squares_B = same_BB @ centred_B.square()
        return centred_B / ((squares_B / (others_B if sample_std else size_B)).sqrt() + 1e-6)
    return centred_B


def log_ratios(
    level: RatioLevel, new_BS: torch.Tensor, old_BS: torch.Tensor, mask_BS: torch.Tensor
) -> torch.Tensor:
    """Return the logarithm of every token's importance ratio, [B, S], within plus or minus :data:`MAX_LOG_RATIO`.

    ``token`` is ``new - old``; ``sequence`` its mean over the rollout, for every token of it.
    ``sequence_token`` has the value of ``sequence`` and the gradient of ``new``: ``new - sg(new) +
    sg(mean)``, with ``sg`` for no gradient. Where all tokens of a rollout have equal weights and
    advantages, the last two have equal gradients of the loss. A token whose ``old_BS`` is NaN
    counts as drawn from the new policy, as in ART.
    """
    log_ratio_BS = new_BS - torch.where(old_BS.isnan(), new_BS.detach(), old_BS)
    if level != "token":
        counts_B1 = mask_BS.sum(dim=1, keepdim=True).clamp(min=1)
        mean_B1 = (log_ratio_BS * mask_BS).sum(dim=1, keepdim=True) / counts_B1
        # Its value is 0 and its gradient that of `new`
        own_BS = new_BS - new_BS.detach()
        log_ratio_BS = (
            own_BS + mean_B1.detach() if level == "sequence_token" else mean_B1.expand_as(new_BS)
        )

    return log_ratio_BS.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def policy_losses(
    objective: Objective,
    log_ratio_BS: torch.Tensor,
    new_BS: torch.Tensor,
    advantages_BS: torch.Tensor,
    epsilon: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """Return the loss of every token, [B, S]; ``advantages_BS`` may be [B, 1].

    ``clipped`` is ``-min(rho A, clip(rho) A)`` with ``clip`` to ``[1 - epsilon, 1 + epsilon_high]``
    (PPO, arXiv 1707.06347; a higher upper end is DAPO's, 2503.14476). ``dual_clip``, above 1,
    bounds the loss of a negative advantage to ``-dual_clip A`` (1912.09729); null is off.
    ``weighted`` is ``-sg(clip(rho)) A new``, where every token keeps a gradient and ``dual_clip``
    means nothing.
    """
    ratio_BS = log_ratio_BS.exp()
    clipped_BS = ratio_BS.clamp(1 - epsilon, 1 + epsilon_high)
    if objective == "weighted":
        return -clipped_BS.detach() * advantages_BS * new_BS
    losses_BS = torch.maximum(-advantages_BS * ratio_BS, -advantages_BS * clipped_BS)
    if dual_clip is None:
        return losses_BS
    return torch.where(
        advantages_BS < 0, torch.minimum(losses_BS, -advantages_BS * dual_clip), losses_BS
    )


def kl_estimates(
    kind: KlEstimate, new_BS: torch.Tensor, reference_BS: torch.Tensor
) -> torch.Tensor:
    """Return every token's estimate of KL(new, reference) in nats, [B, S] (joschu.net/blog/kl-approx.html).

    With ``d = new - reference``: ``k1 = d``, without bias and of either sign; ``k2 = d^2 / 2``,
    whose gradient is the KL's; ``k3 = exp(-d) + d - 1``, without bias and never negative. As a
    loss, ``k1`` has a gradient of mean 0: it belongs into the advantage (:func:`kl_advantages`).
    veRL limits ``k3`` to 10, where its gradient ends.
    """
    difference_BS = new_BS - reference_BS
    if kind == "k1":
        return difference_BS
    if kind == "k2":
        return difference_BS.square() / 2
    difference_BS = difference_BS.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (-difference_BS).exp() + difference_BS - 1


def kl_advantages(
    weight: float, new_BS: torch.Tensor, reference_BS: torch.Tensor, mask_BS: torch.Tensor
) -> torch.Tensor:
    """Return what a KL to the start model adds to the advantages, [B, S], without gradient: ART's centred penalty.

    It is ``weight (mean k1 - k1)`` with the mean over the sampled tokens of all rows, so that it
    sums to 0. A weight of 0 adds 0, whatever the log-probabilities are.
    """
    if not weight:
        return torch.zeros_like(new_BS)
    k1_BS = kl_estimates("k1", new_BS, reference_BS).detach() * mask_BS
    return weight * (k1_BS.sum() / mask_BS.sum() - k1_BS) * mask_BS


def importance_weights(old_BS: torch.Tensor, sampled_BS: torch.Tensor, cap: float) -> torch.Tensor:
    """Return ``min(old / sampled, cap)`` of every token's probabilities, [B, S], without gradient.

    Truncated importance sampling (https://fengyao.notion.site/off-policy-rl): ``old_BS`` are the
    trainer's log-probabilities and ``sampled_BS`` the sampler's of the same weights. Where either
    is NaN, the weight is 1.
    """
    return (old_BS - sampled_BS).detach().nan_to_num(0.0).exp().clamp(max=cap)


def token_weights(aggregation: Aggregation, mask_BS: torch.Tensor, max_tokens: int) -> torch.Tensor:
    """Return the weight of every token in the loss of a batch, [B, S]; 0 where the mask is.

    With N rollouts that have a token: ``token`` is one over all tokens (DAPO), ``sequence`` one
    over N and the tokens of the rollout (GRPO), ``constant`` one over N and ``max_tokens``, the
    same number at every step (Dr. GRPO). ``sequence_art`` has the weights of ``sequence``; it
    differs where a step has several optimizer steps, whose share of it ART 0.5.18 counts in tokens:
    a short rollout then weighs more than a long one. Give the mask of all rows of an optimizer
    step: the sums of its forward batches, each with its rows of the weights, then add up to the
    loss of the step.
    """
    tokens_B1 = mask_BS.sum(dim=1, keepdim=True)
    if aggregation == "token":
        return mask_BS / tokens_B1.sum()
    rollouts = (tokens_B1 > 0).sum()
    length = max_tokens if aggregation == "constant" else tokens_B1.clamp(min=1)
    return mask_BS / (rollouts * length)
