"""The learning rate of a step against figures given by hand."""

from typing import Literal

import pytest

from deepsearch_rl.core.profile import Profile
from deepsearch_rl.train.rl.rl_config import RlConfig, learning_rate


@pytest.mark.parametrize(
    ("warmup", "schedule", "factors"),
    [
        (0, "constant", [1, 1, 1, 1]),
        (0, "linear", [1, 3 / 4, 2 / 4, 1 / 4]),
        (0, "cosine", [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
        (2, "constant", [1 / 3, 2 / 3, 1, 1]),
        (2, "linear", [1 / 3, 2 / 3, 1, 1 / 2]),
        (4, "cosine", [1 / 5, 2 / 5, 3 / 5, 4 / 5]),
    ],
)
def test_the_learning_rate_rises_in_warm_up_steps_and_then_follows_its_schedule(
    smoke: Profile,
    warmup: int,
    schedule: Literal["constant", "linear", "cosine"],
    factors: list[float],
) -> None:
    config = smoke.section("rl", RlConfig)
    optimizer = config.optimizer.model_copy(update={"warmup_steps": warmup, "schedule": schedule})
    config = config.model_copy(update={"optimizer": optimizer, "learning_rate": 0.5})
    rates = [learning_rate(config, step, len(factors)) for step in range(1, len(factors) + 1)]
    assert rates == pytest.approx([0.5 * factor for factor in factors])
