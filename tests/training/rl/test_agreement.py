"""Sampler against trainer on a few tokens whose figures can be worked out by hand."""

import math

import pytest
import torch

from deepsearch_rl.errors import StalePolicyError
from deepsearch_rl.training.rl.agreement import agreement
from deepsearch_rl.training.rl.trainer import LossConfig

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


def test_mismatch_is_measured_over_sampled_tokens_alone() -> None:
    sampled = torch.tensor([[NAN, -1.0, -2.0], [NAN, -3.0, NAN]])
    trained = torch.tensor([[-9.0, -1.1, -2.3], [-9.0, -3.0, -9.0]])
    metrics = agreement(sampled, trained, torch.tensor([1.0, -1.0]), LOSS, max_mismatch=0.2)
    assert metrics["mismatch_mean"] == pytest.approx(0.4 / 3)
    assert metrics["mismatch_max"] == metrics["mismatch_p99"] == pytest.approx(0.3)
    ours, theirs = torch.tensor([-1.0, -2.0, -3.0]).exp(), torch.tensor([-1.1, -2.3, -3.0]).exp()
    assert metrics["mismatch_corr"] == pytest.approx(float(torch.corrcoef(torch.stack([ours, theirs]))[0, 1]))


def test_rollouts_outside_the_clip_range_are_counted_by_the_sign_of_their_advantage() -> None:
    ratios = torch.tensor([1.0, 0.85, 1.3, 1.1, 0.95])
    sampled = torch.full((5, 4), -2.0)
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -0.5])
    metrics = agreement(sampled, sampled + ratios.log()[:, None], advantages, LOSS, max_mismatch=1.0)
    assert metrics["outside_clip_positive"] == pytest.approx(2 / 3)
    assert metrics["outside_clip_negative"] == 0.0


def test_the_99th_percentile_is_that_of_the_sorted_differences() -> None:
    differences = torch.arange(1, 201) / 1000
    sampled = torch.full((1, 200), -1.0)
    metrics = agreement(sampled, sampled - differences, torch.tensor([1.0]), LOSS, max_mismatch=1.0)
    assert metrics["mismatch_p99"] == pytest.approx(0.198)


def test_metrics_that_are_not_defined_are_left_out() -> None:
    sampled = torch.full((1, 3), -1.0)
    metrics = agreement(sampled, sampled, torch.tensor([1.0]), LOSS, max_mismatch=1.0)
    assert {"mismatch_corr", "outside_clip_negative"}.isdisjoint(metrics)
    assert not any(map(math.isnan, metrics.values()))


def test_single_rollouts_may_differ() -> None:
    sampled = torch.full((3, 4), -1.0)
    trained = sampled - torch.tensor([[0.0], [2.0], [0.001]])
    metrics = agreement(sampled, trained, torch.tensor([1.0, -1.0, 1.0]), LOSS, max_mismatch=0.01)
    assert metrics["mismatch_median"] == pytest.approx(0.001, rel=1e-3)
    assert metrics["mismatch_max"] == pytest.approx(2.0)


def test_rollouts_of_an_earlier_policy_are_measured_and_not_refused() -> None:
    sampled = torch.tensor([[-1.0, -2.0]])
    metrics = agreement(sampled, sampled - 0.5, torch.tensor([1.0]), LOSS, max_mismatch=None)
    assert metrics["mismatch_median"] == 0.5


def test_rollouts_without_a_number_differ() -> None:
    sampled = torch.full((8, 3), NAN)
    sampled[0] = -1.0
    with pytest.raises(StalePolicyError, match="by inf nats"):
        agreement(sampled, torch.full((8, 3), -1.0), torch.ones(8), LOSS, max_mismatch=0.01)


@pytest.mark.parametrize("drift", [0.02, NAN])
def test_a_median_difference_above_the_limit_is_a_stale_policy(drift: float) -> None:
    sampled = torch.full((2, 3), -1.0)
    with pytest.raises(StalePolicyError, match=r"in half of them .* rl\.max_mismatch is 0\.01"):
        agreement(sampled, sampled - drift, torch.tensor([1.0, -1.0]), LOSS, max_mismatch=0.01)
