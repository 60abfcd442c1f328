"""Log-probabilities and statistics of a policy over padded batches of rollouts.

Shapes: B rollouts, S tokens (padded on the right), V vocabulary. Log-probabilities are aligned as ART's loss wants
them: position ``t`` of ``logprobs_BS`` is the log-probability of token ``t + 1`` given the tokens up to ``t``; the
last position is meaningless and masked out.
"""

from dataclasses import dataclass

import torch
from art.loss import shift_tensor


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """What a forward pass says of the next tokens.

    Args:
        logprobs_BS: log-probability of the actual next token.
        entropy_BS: entropy of the next-token distribution in nats, without gradient.
    """

    logprobs_BS: torch.Tensor
    entropy_BS: torch.Tensor


def token_statistics(model: torch.nn.Module, tokens_BS: torch.Tensor, lengths_B: torch.Tensor) -> TokenStatistics:
    """Score every next token of right-padded rows; padding cannot be attended to."""
    positions_S = torch.arange(tokens_BS.shape[1])
    attention_BS = (positions_S[None, :] < lengths_B[:, None]).long()
    logits_BSV = model(input_ids=tokens_BS, attention_mask=attention_BS, use_cache=False).logits.float()
    all_BSV = torch.log_softmax(logits_BSV, dim=-1)
    next_BS = shift_tensor(tokens_BS, 0)
    logprobs_BS = all_BSV.gather(-1, next_BS[..., None]).squeeze(-1)
    with torch.no_grad():
        entropy_BS = -(all_BSV.exp() * all_BSV).sum(-1)
    return TokenStatistics(logprobs_BS, entropy_BS)


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy, reference) per token, never negative (joschu.net/blog/kl-approx.html)."""
    ratio = reference - logprobs
    return ratio.exp() - ratio - 1
