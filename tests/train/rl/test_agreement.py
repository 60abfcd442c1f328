"""Sampler against trainer on a few tokens whose figures can be worked out by hand."""

import math

import pytest
import torch

from deepsearch_rl.core.errors import CheckFailedError, StalePolicyError
from deepsearch_rl.train.rl.agreement import agreement, require_unclipped, served_share
from deepsearch_rl.train.rl.rl_config import LossConfig

NAN = float("nan")
LOSS = LossConfig(
    algorithm="gspo",
    aggregation=None,
    sample_std=False,
    unit_advantages=True,
    epsilon=0.1,
    epsilon_high=0.2,
    dual_clip=None,
    truncated_importance_sampling=2.0,
    kl_penalty=0.0,
    kl_loss=0.0,
    kl_estimate="k3",
    entropy_bonus=0.0,
)


def measured(
    sampled: torch.Tensor,
    trained: torch.Tensor,
    advantages: torch.Tensor,
    max_mismatch: float,
) -> dict[str, float]:
    """Return the metrics of a policy that is still the start model."""
    return agreement(sampled, trained, trained, advantages, LOSS, max_mismatch)


def test_mismatch_is_measured_over_sampled_tokens_alone() -> None:
    sampled = torch.tensor([[NAN, -1.0, -2.0], [NAN, -3.0, NAN]])
    trained = torch.tensor([[-9.0, -1.1, -2.3], [-9.0, -3.0, -9.0]])
    metrics = measured(sampled, trained, torch.tensor([1.0, -1.0]), max_mismatch=0.2)
    assert metrics["mismatch_mean"] == pytest.approx(0.4 / 3)
    assert metrics["mismatch_max"] == metrics["mismatch_p99"] == pytest.approx(0.3)
    ours, theirs = torch.tensor([-1.0, -2.0, -3.0]).exp(), torch.tensor([-1.1, -2.3, -3.0]).exp()
    assert metrics["mismatch_corr"] == pytest.approx(
        float(torch.corrcoef(torch.stack([ours, theirs]))[0, 1])
    )


def test_rollouts_outside_the_clip_range_are_counted_by_the_sign_of_their_advantage() -> None:
    ratios = torch.tensor([1.0, 0.85, 1.3, 1.1, 0.95])
    sampled = torch.full((5, 4), -2.0)
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -0.5])
    metrics = measured(sampled, sampled + ratios.log()[:, None], advantages, max_mismatch=1.0)
    assert metrics["outside_clip_positive"] == pytest.approx(2 / 3)
    assert metrics["outside_clip_negative"] == 0.0


def test_the_99th_percentile_is_that_of_the_sorted_differences() -> None:
    differences = torch.arange(1, 201) / 1000
    sampled = torch.full((1, 200), -1.0)
    metrics = measured(sampled, sampled - differences, torch.tensor([1.0]), max_mismatch=1.0)
    assert metrics["mismatch_p99"] == pytest.approx(0.198)


def test_metrics_that_are_not_defined_are_left_out() -> None:
    sampled = torch.full((1, 3), -1.0)
    metrics = measured(sampled, sampled, torch.tensor([1.0]), max_mismatch=1.0)
    assert {"mismatch_corr", "outside_clip_negative"}.isdisjoint(metrics)
    assert not any(map(math.isnan, metrics.values()))


def test_single_rollouts_may_differ() -> None:
    sampled = torch.full((3, 4), -1.0)
    trained = sampled - torch.tensor([[0.0], [2.0], [0.001]])
    metrics = measured(sampled, trained, torch.tensor([1.0, -1.0, 1.0]), max_mismatch=0.01)
    assert metrics["mismatch_median"] == pytest.approx(0.001, rel=1e-3)
    assert metrics["mismatch_max"] == pytest.approx(2.0)


def test_rollouts_without_a_number_differ() -> None:
    sampled = torch.full((8, 3), NAN)
    sampled[0] = -1.0
    with pytest.raises(StalePolicyError, match="by inf nats"):
        measured(sampled, torch.full((8, 3), -1.0), torch.ones(8), max_mismatch=0.01)


@pytest.mark.parametrize("drift", [0.02, NAN])
def test_a_median_difference_above_the_limit_is_a_stale_policy(drift: float) -> None:
    sampled = torch.full((2, 3), -1.0)
    with pytest.raises(StalePolicyError, match=r"in half of them .* rl\.max_mismatch is 0\.01"):
        measured(sampled, sampled - drift, torch.tensor([1.0, -1.0]), max_mismatch=0.01)


def engines(
    served: str, moved: float, noise: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sampled, trained and start log-probabilities of 64 rollouts of 200 tokens.

    Training has moved a token by ``moved`` nats on average; the sampler, which serves the model of
    that name, differs from the trainer by ``noise``.
    """
    generator = torch.Generator().manual_seed(0)

    def draws() -> torch.Tensor:
        return torch.randn(64, 200, generator=generator)

    start = -draws().abs()
    trained = start + moved * draws()
    earlier = trained - 0.2 * moved * draws()
    models = {
        "start": start,
        "policy": trained,
        "last step": earlier,
        "foreign": start + moved * draws(),
    }
    return models[served] + noise * draws(), trained, start


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02])
@pytest.mark.parametrize("served", ["policy", "last step"])
def test_a_sampler_with_the_trained_weights_passes_whatever_the_noise(
    served: str, noise: float
) -> None:
    metrics = agreement(*engines(served, 0.004, noise), torch.ones(64), LOSS, max_mismatch=0.05)
    assert metrics["served_share"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02])
@pytest.mark.parametrize("served", ["start", "foreign"])
def test_a_sampler_without_the_trained_weights_is_stale_long_before_max_mismatch(
    served: str, noise: float
) -> None:
    sampled, trained, start = engines(served, 0.004, noise)
    with pytest.raises(
        StalePolicyError, match=r"of the way from the start model .* applies the adapter"
    ):
        agreement(sampled, trained, start, torch.ones(64), LOSS, max_mismatch=0.05)


def test_a_difference_below_the_noise_decides_nothing() -> None:
    sampled, trained, start = engines("start", 1e-5, 0.01)
    assert served_share(sampled, trained, start)[1] > 0.5
    metrics = agreement(sampled, trained, start, torch.ones(64), LOSS, max_mismatch=0.05)
    assert metrics["served_share_se"] > 0.5


def test_a_first_update_outside_the_clip_range_is_an_error_with_the_figure() -> None:
    require_unclipped(0.0)
    with pytest.raises(CheckFailedError, match=r"12\.5% of the tokens .* rl\.dtype: float32"):
        require_unclipped(0.125)
