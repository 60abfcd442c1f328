"""Which of two models is served, the start model or the trained one: decided from log-probabilities of the same tokens.

A distance alone cannot tell: after a few small updates the two models differ by less than two
engines do by rounding. The direction in which they differ can, because rounding has none.
"""

import torch

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
