"""Random tensors, and what veRL's core_algos makes of them: verl_figures.json, which test_policy_loss.py compares.

Run it in an environment of its own, from the repository's root::

    uv venv --python 3.11 /tmp/verl
    uv pip install --python /tmp/verl/bin/python verl==0.9.1 --no-deps
    uv pip install --python /tmp/verl/bin/python torch==2.13.0 tensordict==0.10 ray==2.59.0 transformers==5.9.0 \
        accelerate omegaconf hydra-core codetiming
    /tmp/verl/bin/python -m tests.train.verl.verl_figures

All is in float64. The tensors come from Python's generator, whose numbers are the same everywhere.
"""

import importlib
import json
import random
from pathlib import Path
from typing import Any

import torch

FIGURES = Path(__file__).with_name("verl_figures.json")
GROUPS = [0, 0, 0, 1, 1, 2, 2, 2]
"""The question of each rollout."""
TOKENS = 6
EPSILON, EPSILON_HIGH = 0.2, 0.3
AGGREGATIONS = {
    "token": "token-mean",
    "sequence": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
OFF = 1e9
"""A dual clip that never acts; veRL has no switch for it."""
DUAL_CLIP, CAP = 1.2, 1.1
ADVANTAGES = {
    "grpo": "grpo",
    "gspo": "grpo",
    "gspo_token": "grpo",
    "dr_grpo": "grpo",
    "rloo": "rloo",
    "reinforce_pp": "reinforce_plus_plus",
    "cispo": "grpo",
}
"""veRL's name of the advantage of each of our algorithms."""
LOSSES = {"gspo": "gspo", "gspo_token": "gspo", "cispo": "cispo"}
"""veRL's name of the loss where it is not ``vanilla``."""


def random_tensors() -> dict[str, torch.Tensor]:
    """Return log-probabilities of four policies and a mask, each [B, S], and rewards [B]; the mask has a gap."""
    rng = random.Random(7)

    def matrix(low: float, high: float) -> torch.Tensor:
        return torch.tensor(
            [[rng.uniform(low, high) for _ in range(TOKENS)] for _ in GROUPS], dtype=torch.float64
        )

    new = matrix(-3, -0.5)
    tensors = {"new": new, "old": new + matrix(-0.6, 0.6), "reference": new + matrix(-1, 1)}
    tensors["sampled"] = tensors["old"] + matrix(-0.3, 0.3)
    lengths = torch.tensor([rng.randint(2, TOKENS) for _ in GROUPS])
    tensors["mask"] = torch.arange(TOKENS) < lengths[:, None]
    tensors["mask"][:, 1] = False
    tensors["rewards"] = torch.tensor([rng.uniform(0, 2) for _ in GROUPS], dtype=torch.float64)
    return tensors


def case_names() -> list[str]:
    """Return the names of the losses: algorithm, aggregation and what is on."""
    plain = [
        f"{algorithm}/{aggregation}/" for algorithm in ADVANTAGES for aggregation in AGGREGATIONS
    ]
    weighted = [f"{algorithm}/token/weights" for algorithm in ADVANTAGES]
    return [*plain, *weighted, "grpo/sequence/dual", "rloo/token/dual"]


def figures() -> dict[str, Any]:
    """Return veRL's version, advantages [B], losses with their gradients [B, S], and KL estimates [B, S]."""
    core: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    actor: Any = importlib.import_module("verl.workers.config.actor")
    correction: Any = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    config: Any = importlib.import_module("verl.trainer.config")
    numpy: Any = importlib.import_module("numpy")
    tensors = random_tensors()
    mask = tensors["mask"].double()

    def advantages(algorithm: str) -> torch.Tensor:
        last = (mask * torch.arange(TOKENS)).argmax(dim=1)
        rewards = torch.nn.functional.one_hot(last, TOKENS) * tensors["rewards"][:, None]
        options = (
            {"norm_adv_by_std_in_grpo": algorithm != "dr_grpo"}
            if ADVANTAGES[algorithm] == "grpo"
            else {}
        )
        compute = core.get_adv_estimator_fn(ADVANTAGES[algorithm])
        settings = config.AlgoConfig(gamma=1.0)
        index = numpy.array(GROUPS)
        result, _ = compute(
            token_level_rewards=rewards, response_mask=mask, index=index, config=settings, **options
        )
        return result

    def loss(name: str) -> dict[str, Any]:
        algorithm, aggregation, extra = name.split("/")
        settings = actor.FSDPActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_mini_batch_size=8,
            ppo_micro_batch_size_per_gpu=8,
            clip_ratio=EPSILON,
            clip_ratio_low=EPSILON,
            clip_ratio_high=EPSILON_HIGH,
            clip_ratio_c=DUAL_CLIP if extra == "dual" else OFF,
        )
        weights = None
        if extra == "weights":
            difference = tensors["old"] - tensors["sampled"]
            weights, _ = correction.compute_rollout_correction_weights(
                difference, mask, "token", CAP
            )
        new = tensors["new"].clone().requires_grad_()
        compute = core.get_policy_loss_fn(LOSSES.get(algorithm, "vanilla"))
        value, _ = compute(
            old_log_prob=tensors["old"],
            log_prob=new,
            advantages=advantages(algorithm),
            response_mask=mask,
            loss_agg_mode=AGGREGATIONS[aggregation],
            config=settings,
            rollout_is_weights=weights,
        )
        value.backward()
        assert new.grad is not None
        return {"loss": value.item(), "gradient": numbers(new.grad)}

    def kl(kind: str) -> dict[str, Any]:
        new = tensors["new"].clone().requires_grad_()
        values = core.kl_penalty(new, tensors["reference"], kind)
        values.sum().backward()
        assert new.grad is not None
        return {"values": numbers(values.detach()), "gradient": numbers(new.grad)}

    return {
        "verl": importlib.import_module("verl").__version__,
        "advantages": {name: numbers(advantages(name)[:, 0]) for name in ADVANTAGES},
        "losses": {name: loss(name) for name in case_names()},
        "kl": {kind: kl(kind) for kind in ("k1", "k2", "k3")},
    }


def numbers(tensor: torch.Tensor) -> Any:
    """Return nested lists of numbers with nine decimals."""
    return [numbers(row) if row.dim() else round(float(row), 9) for row in tensor]


if __name__ == "__main__":
    FIGURES.write_text(json.dumps(figures()) + "\n", encoding="utf-8")
