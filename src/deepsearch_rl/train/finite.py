"""Checks that stop training at NaN and infinity; their errors name the value that is not finite.

This module imports the standard library and types alone: SFT's stage reads the log of another
program, and does not load torch for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from deepsearch_rl.core.errors import CheckFailedError

if TYPE_CHECKING:
    import torch

_BAD_METRIC = re.compile(r"'(loss|grad_norm|eval_loss)': '?(nan|-?inf)\b")


class NotFiniteError(CheckFailedError):
    """A loss, a gradient, a log-probability or a weight is NaN or infinite."""


def first_not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity; None where all are finite."""
    for name, tensor in tensors:
        if not bool(tensor.isfinite().all()):
            return name

    return None


def require_finite_tensors(what: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise NotFiniteError with the first tensor that is not finite; ``what`` begins the sentence."""
    name = first_not_finite(tensors)
    if name:
        raise NotFiniteError(
            f"{what} {name} is not finite (NaN or infinite). Nothing of this step is kept."
        )


def require_finite_update(
    what: str,
    loss: float,
    norm: torch.Tensor,
    parameters: Iterable[tuple[str, torch.nn.Parameter]],
    advice: str = "",
) -> None:
    """Raise NotFiniteError if the loss of an update, or the norm of all its gradients, is NaN or infinite.

    Call it before the optimizer's step. A gradient that is not finite makes the norm so, and the
    parameters are searched for it only then. ``what`` begins the error's first sentence, and
    ``advice`` ends the error.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        return

    gradients: list[tuple[str, torch.Tensor]] = []
    for name, weight in parameters:
        # A frozen weight has none
        if weight.grad is not None:
            gradients.append((name, weight.grad))

    first = first_not_finite(gradients)
    cause = f"the first gradient that is not finite is that of {first}"
    if first is None:
        cause = f"the norm of its gradients {float(norm):g}"

    raise NotFiniteError(f"{what}: its loss is {loss:g}, and {cause}. {advice}".rstrip())


def not_finite_metrics(line: str) -> str:
    """Return the losses and gradient norms that a line of a trainer's output gives as NaN or infinite.

    Empty where all are finite.

    The Trainer of transformers, and so ms-swift, prints a dictionary of Python:
    ``{'loss': 0.0, 'grad_norm': nan, ...}``.
    """
    return ", ".join(f"{name} {value}" for name, value in _BAD_METRIC.findall(line))


def bad_numbers(metrics: Mapping[str, float | None]) -> str:
    """Return the metrics that are not finite, as ``grad_norm nan``; empty where all are."""
    bad: list[str] = []
    for name, value in metrics.items():
        if value is not None and not math.isfinite(value):
            bad.append(f"{name} {value}")

    return ", ".join(bad)
