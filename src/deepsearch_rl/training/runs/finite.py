"""NaN and infinity stop training by name: what is not finite is neither applied, nor saved, nor served.

Only the standard library and types: SFT's stage reads what another program logs, and does not load
torch for it.
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
    return next((name for name, tensor in tensors if not bool(tensor.isfinite().all())), None)


def require_finite_tensors(what: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise NotFiniteError with the first tensor that is not finite; ``what`` begins the sentence."""
    if name := first_not_finite(tensors):
        raise NotFiniteError(
            f"{what} {name} is not finite (NaN or infinite). Nothing of this step is kept."
        )


def not_finite_metrics(line: str) -> str:
    """Return what a line of a trainer's output says of a loss or gradient that is not finite; empty where all are.

    The Trainer of transformers, and so ms-swift, prints a dictionary of Python:
    ``{'loss': 0.0, 'grad_norm': nan, ...}``.
    """
    return ", ".join(f"{name} {value}" for name, value in _BAD_METRIC.findall(line))


def bad_numbers(metrics: Mapping[str, float | None]) -> str:
    """Return the metrics that are not finite, as ``grad_norm nan``; empty where all are."""
    return ", ".join(
        f"{name} {value}"
        for name, value in metrics.items()
        if value is not None and not math.isfinite(value)
    )
