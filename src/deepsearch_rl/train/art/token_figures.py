"""Figures of single tokens: log-probability and entropy from hidden states, the clip range, the KL to the start.

Shapes: B rows of a forward pass, S tokens, P positions that carry loss, E hidden size, V vocabulary.
"""

import torch
from art.loss import shift_tensor

from deepsearch_rl.train.rl.agreement import outside_clip
from deepsearch_rl.train.rl.policy_loss import ALGORITHMS, log_ratios
from deepsearch_rl.train.rl.rl_config import LossConfig


def log_softmax_of(
    hidden_PE: torch.Tensor,
    next_P: torch.Tensor,
    head: torch.nn.Linear,
    temperature: float,
    with_entropy: bool,
    has_bonus: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the tokens ``next_P`` at a temperature and the entropies, in float32.

    The head multiplies in float32 whatever the model's dtype is: a logit of 16 to 32 has steps of
    0.125 in bfloat16.
    """
    # E numbers of a position are divided by the temperature, not V
    hidden_PE = hidden_PE.float() / temperature
    bias = None if head.bias is None else head.bias.float() / temperature
    logits_PV = torch.nn.functional.linear(hidden_PE, head.weight.float(), bias)
    logprobs_PV = torch.log_softmax(logits_PV, dim=-1)
    logprobs_P = logprobs_PV.gather(-1, next_P[:, None])[:, 0]
    if not with_entropy:
        return logprobs_P, torch.zeros_like(logprobs_P)

    with torch.set_grad_enabled(has_bonus and torch.is_grad_enabled()):
        entropy_P = -(logprobs_PV.exp() * logprobs_PV).sum(-1)
    return logprobs_P, entropy_P


def clipped(
    inputs: dict[str, torch.Tensor], logprobs_BS: torch.Tensor, loss: LossConfig
) -> torch.Tensor:
    """Return 1 for tokens whose ratio to the old policy is outside the clip range, at the loss's own level."""
    old_BS = shift_tensor(inputs["logprobs"], float("nan"))
    mask_BS = shift_tensor(inputs["assistant_mask"], False)
    return outside_clip(
        log_ratios(ALGORITHMS[loss.algorithm].ratio, logprobs_BS, old_BS, mask_BS), loss
    ).float()


def mean_kl(logprobs_P: torch.Tensor, reference_P: torch.Tensor) -> float:
    """Return Schulman's k3 estimate of KL(policy, reference), never negative (joschu.net/blog/kl-approx.html)."""
    ratio_P = (reference_P - logprobs_P).double()
    return float((ratio_P.exp() - ratio_P - 1).mean())
