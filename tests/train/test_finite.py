"""An update is refused by name at a loss, a gradient or a norm that is not finite."""

import pytest
import torch

from deepsearch_rl.train.finite import NotFiniteError, require_finite_update


@pytest.mark.parametrize(
    ("loss", "second", "sentence"),
    [
        (float("nan"), 1.0, "its loss is nan, and the norm of its gradients 2."),
        (
            0.5,
            float("nan"),
            "its loss is 0.5, and the first gradient that is not finite is that of second.",
        ),
        (
            0.5,
            float("-inf"),
            "its loss is 0.5, and the first gradient that is not finite is that of second.",
        ),
        # Every gradient is a number, and the sum of their squares is too large for one
        (0.5, 1e30, "its loss is 0.5, and the norm of its gradients inf."),
    ],
)
def test_an_update_is_refused_with_what_is_not_finite(
    loss: float, second: float, sentence: str
) -> None:
    parameters = [(name, torch.nn.Parameter(torch.ones(2))) for name in ("first", "second")]
    for value, (_, weight) in zip((1.0, second), parameters, strict=True):
        weight.grad = torch.full((2,), value)

    norm = torch.nn.utils.get_total_norm([weight.grad for _, weight in parameters])  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFiniteError) as refusal:
        require_finite_update("step 3 diverged", loss, norm, parameters, "Lower the rate.")

    assert str(refusal.value) == f"step 3 diverged: {sentence} Lower the rate."
