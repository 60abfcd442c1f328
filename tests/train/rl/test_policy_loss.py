"""Our algorithms against ART's ``loss_fn`` and veRL's figures (verl_figures.py), on the same random tensors."""

import json
import math
from typing import Any, cast

import art
import pytest
import torch
from art.loss import loss_fn
from art.preprocessing import tokenize
from art.preprocessing.pack import packed_tensors_from_tokenized_results
from art.preprocessing.tokenize import TokenizedResult

from deepsearch_rl.train.rl.policy_loss import (
    ALGORITHMS,
    advantages,
    importance_weights,
    kl_advantages,
    kl_estimates,
    log_ratios,
    policy_losses,
    token_weights,
)
from tests.train.verl.verl_figures import (
    CAP,
    DUAL_CLIP,
    EPSILON,
    EPSILON_HIGH,
    FIGURES,
    GROUPS,
    TOKENS,
    case_names,
    random_tensors,
)

VERL = json.loads(FIGURES.read_text(encoding="utf-8"))
KL_WEIGHT = 0.3
TOLERANCE = 1e-6


def tensor(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def advantages_of(name: str, sample_std: bool) -> torch.Tensor:
    tensors = random_tensors()
    tokens = tensors["mask"].sum(dim=1)
    return advantages(
        ALGORITHMS[name].advantage, tensors["rewards"], torch.tensor(GROUPS), tokens, sample_std
    )


def token_losses(
    name: str, new: torch.Tensor, advantages_BS: torch.Tensor, dual_clip: float | None = None
) -> torch.Tensor:
    algorithm, tensors = ALGORITHMS[name], random_tensors()
    log_ratio = log_ratios(algorithm.ratio, new, tensors["old"], tensors["mask"])
    return policy_losses(
        algorithm.objective, log_ratio, new, advantages_BS, EPSILON, EPSILON_HIGH, dual_clip
    )


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_advantages_are_verls(name: str) -> None:
    assert_close(advantages_of(name, sample_std=True), tensor(VERL["advantages"][name]))


@pytest.mark.parametrize("case", case_names())
def test_losses_and_gradients_are_verls(case: str) -> None:
    name, aggregation, extra = case.split("/")
    tensors = random_tensors()
    new = tensors["new"].requires_grad_()
    advantages_B1 = advantages_of(name, sample_std=True)[:, None]
    losses = token_losses(name, new, advantages_B1, DUAL_CLIP if extra == "dual" else None)
    if extra == "weights":
        losses = losses * importance_weights(tensors["old"], tensors["sampled"], CAP)
    loss = (losses * token_weights(cast(Any, aggregation), tensors["mask"], TOKENS)).sum()
    loss.backward()
    assert new.grad is not None
    figures = VERL["losses"][case]
    assert loss.item() == pytest.approx(figures["loss"], abs=TOLERANCE)
    gradient = tensor(figures["gradient"])
    # The weights of single tokens spread over their rollout
    if name == "gspo" and extra == "weights":
        assert_close(new.grad.sum(dim=1), gradient.sum(dim=1))
        assert not torch.allclose(new.grad, gradient, atol=1e-3)
    else:
        assert_close(new.grad, gradient)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_estimates_and_their_gradients_are_verls(kind: Any) -> None:
    tensors = random_tensors()
    new = tensors["new"].requires_grad_()
    values = kl_estimates(kind, new, tensors["reference"])
    values.sum().backward()
    assert new.grad is not None
    assert_close(values.detach(), tensor(VERL["kl"][kind]["values"]))
    assert_close(new.grad, tensor(VERL["kl"][kind]["gradient"]))


def arts_inputs(advantages_B: torch.Tensor, weighted: bool) -> Any:
    """ART's tensors, where what belongs to a token is at its own place, one after ours."""
    tensors = random_tensors()

    def shifted(values: torch.Tensor, pad: float) -> torch.Tensor:
        return torch.nn.functional.pad(values, (1, 0), value=pad)

    mask = tensors["mask"]
    inputs = {
        "logprobs": shifted(tensors["old"].where(mask, math.nan), math.nan),
        "advantages": shifted(advantages_B[:, None] * mask, 0.0),
        "assistant_mask": shifted(mask.long(), 0).bool(),
        "weights": shifted(mask.double(), 0.0),
        "group_ids": torch.arange(1, len(GROUPS) + 1)[:, None].expand(-1, TOKENS + 1),
    }
    if weighted:
        inputs["original_logprobs"] = shifted(tensors["sampled"].where(mask, math.nan), math.nan)
    return inputs


@pytest.mark.parametrize("extra", ["", "weights", "kl"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_losses_and_gradients_are_arts(name: str, extra: str) -> None:
    algorithm, tensors = ALGORITHMS[name], random_tensors()
    advantages_B, mask = advantages_of(name, sample_std=False), tensors["mask"]
    config: Any = {
        "epsilon": EPSILON,
        "epsilon_high": EPSILON_HIGH,
        "ppo": algorithm.objective == "clipped",
    }
    config["importance_sampling_level"] = "token" if algorithm.ratio == "token" else "sequence"
    config |= {
        "weights": {"truncated_importance_sampling": CAP},
        "kl": {"kl_penalty_coef": KL_WEIGHT},
    }.get(extra, {})
    theirs, ours = (tensors["new"].clone().requires_grad_() for _ in range(2))
    padded_theirs = torch.nn.functional.pad(theirs, (0, 1))
    padded_reference = torch.nn.functional.pad(tensors["reference"], (0, 1))
    inputs = arts_inputs(advantages_B, extra == "weights")
    expected = loss_fn(
        inputs, padded_theirs, padded_reference, None, config, reduction="sum"
    ).policy_loss
    expected.backward()

    advantages_BS = advantages_B[:, None].expand_as(ours)
    if extra == "kl":
        advantages_BS = advantages_BS + kl_advantages(KL_WEIGHT, ours, tensors["reference"], mask)
    losses = token_losses(name, ours, advantages_BS)
    if extra == "weights":
        losses = losses * importance_weights(tensors["old"], tensors["sampled"], CAP)
    loss = (losses * mask).sum()
    loss.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert loss.item() == pytest.approx(expected.item(), abs=TOLERANCE)
    if name == "gspo_token" and extra:  # ART has the other form alone
        assert_close(ours.grad.sum(dim=1), theirs.grad.sum(dim=1))
    else:
        assert_close(ours.grad, theirs.grad)


def test_advantages_and_weights_are_those_that_art_gives_to_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = random_tensors()
    rewards, counts = tensors["rewards"], tensors["mask"].sum(dim=1)

    def tokenized(
        _tokenizer: Any, _images: Any, _history: Any, advantage: float, *rest: Any, **_: Any
    ) -> Any:
        rollout: art.Trajectory = rest[1]
        mask = [0, *tensors["mask"][int(rollout.metrics["row"])].long().tolist()]
        parts: Any = (
            advantage,
            "",
            [int(rollout.metrics["row"])] * len(mask),
            list(range(len(mask))),
            mask,
        )
        return TokenizedResult(
            *parts, [-1.0] * len(mask), None, None, rollout, [], {}, cast(Any, None)
        )

    monkeypatch.setattr(tokenize, "tokenize_trajectory", tokenized)
    rollouts = [
        art.Trajectory(
            messages_and_choices=[{"role": "user", "content": "?"}],
            reward=float(reward),
            metrics={"row": row},
        )
        for row, reward in enumerate(rewards)
    ]
    groups = [
        art.TrajectoryGroup(
            [rollout for rollout, group in zip(rollouts, GROUPS, strict=True) if group == number]
        )
        for number in sorted(set(GROUPS))
    ]
    results = list(tokenize.tokenize_trajectory_groups(cast(Any, None), groups, True, True))
    ours = advantages("group_std", rewards, torch.tensor(GROUPS), counts)
    theirs = {int(result.trajectory.metrics["row"]): result.advantage for result in results}
    assert_close(ours, tensor([theirs[row] for row in range(len(GROUPS))]))

    packed = packed_tensors_from_tokenized_results(
        results, TOKENS + 1, 0, pack_results=False, verbosity=0
    )
    order = packed["tokens"][:, 0].argsort()
    weights = packed["weights"][order][:, 1:] / float(counts.sum())
    assert_close(token_weights("sequence", tensors["mask"], TOKENS), weights)
    scaled = packed["advantages"][order][:, 1:]
    assert_close((ours / ours.abs().mean())[:, None] * tensors["mask"], scaled.double())


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_the_losses_of_forward_batches_add_up_to_that_of_the_step(aggregation: Any) -> None:
    tensors = random_tensors()
    losses = token_losses("grpo", tensors["new"], advantages_of("grpo", sample_std=False)[:, None])
    weights = token_weights(aggregation, tensors["mask"], 100)
    parts = sum((losses[rows] * weights[rows]).sum() for rows in torch.arange(len(GROUPS)).split(3))
    assert float(parts) == pytest.approx(float((losses * weights).sum()))


def test_groups_without_signal_have_no_advantage_and_a_rollout_alone_has_none() -> None:
    rewards, groups = tensor([0.1, 0.1, 0.1, 2.5]), torch.tensor([0, 0, 0, 1])
    for algorithm in ALGORITHMS.values():
        if algorithm.advantage != "whitened":
            result = advantages(algorithm.advantage, rewards, groups, torch.ones(4))
            assert_close(result, torch.zeros(4, dtype=torch.float64))


def test_a_log_ratio_is_limited_and_a_token_without_an_old_probability_counts_as_new() -> None:
    new, old = tensor([[-1.0, -1.0, -90.0]]), tensor([[-60.0, math.nan, -1.0]])
    mask = torch.tensor([[True, True, False]])
    assert log_ratios("token", new, old, mask).tolist() == [[20.0, 0.0, -20.0]]
    assert log_ratios("sequence", new, new - 1, mask).tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_second_of_two_minibatches_has_another_gradient_than_before_the_first(
    name: str,
) -> None:
    """The first one moves the policy; ratio and clip compare the second one with the policy before both."""
    algorithm, tensors = ALGORITHMS[name], random_tensors()
    advantages_B1 = advantages_of(name, sample_std=False)[:, None]
    tokens = torch.arange(len(GROUPS) * TOKENS).reshape(-1, TOKENS) % 5
    logits = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    old = logits.detach().log_softmax(0)[tokens]

    def gradient(rows: slice) -> torch.Tensor:
        new, mask = logits.log_softmax(0)[tokens[rows]], tensors["mask"][rows]
        ratios = log_ratios(algorithm.ratio, new, old[rows], mask)
        losses = policy_losses(
            algorithm.objective, ratios, new, advantages_B1[rows], EPSILON, EPSILON_HIGH
        )
        loss = (losses * token_weights(algorithm.aggregation, mask, TOKENS)).sum()
        return torch.autograd.grad(loss, logits)[0]

    first, second = slice(0, 4), slice(4, 8)
    before, change = gradient(second), gradient(first)
    with torch.no_grad():
        logits -= 2 * change
    assert float((gradient(second) - before).abs().max()) > 1e-3
