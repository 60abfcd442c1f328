"""Runs in veRL's environment: composes lists of overrides, checks them by veRL's own means, writes what it reads.

python -m tests.train.verl.verl_compose_child < CASES     # {"overrides": {name: [override, ...]}, "lengths": [...]}
"""

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

hydra: Any = importlib.import_module("hydra")
omegaconf: Any = importlib.import_module("omegaconf")


def compose(overrides: list[str]) -> Any:
    """Return veRL's configuration after its own validation."""
    settings: Any = importlib.import_module("verl.utils.config")
    needs: Any = importlib.import_module("verl.trainer.ppo.utils")
    folder = Path(str(importlib.import_module("verl").__file__)).parent / "trainer" / "config"
    with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
        config = hydra.compose(config_name="ppo_trainer", overrides=overrides)

    reference = needs.need_reference_policy(config)
    critic = needs.need_critic(config)
    settings.validate_config(config=config, use_reference_policy=reference, use_critic=critic)
    settings.omega_conf_to_dataclass(config.algorithm)
    settings.omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    return config


def known_names() -> dict[str, list[str]]:
    """Return the names that veRL's registries have, which its validation does not compare."""
    core: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    replica: Any = importlib.import_module("verl.workers.rollout.replica")
    trainers: Any = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
    return {
        "advantages": sorted(core.ADV_ESTIMATOR_REGISTRY),
        "losses": sorted(core.POLICY_LOSS_REGISTRY),
        "rollouts": sorted(replica.RolloutReplicaRegistry._registry),
        "trainers": sorted(trainers.TRAINER_REGISTRY),
    }


def padded_batches(lengths: list[int], budget: int) -> list[int]:
    """Return the positions of every batch that veRL makes of rows by their tokens, each padded to its longest."""
    torch: Any = importlib.import_module("torch")
    balancing: Any = importlib.import_module("verl.utils.seqlen_balancing")
    tensordict: Any = importlib.import_module("tensordict")
    longest = max(lengths)
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    rows = {"input_ids": torch.zeros(len(lengths), longest).long(), "attention_mask": mask.long()}
    batch = tensordict.TensorDict(rows, batch_size=len(lengths))
    _, parts = balancing.rearrange_micro_batches(batch, budget)
    return [len(part) * max(lengths[row] for row in part) for part in parts]


def main() -> None:
    given: dict[str, Any] = json.load(sys.stdin)
    cases: dict[str, list[str]] = given["overrides"]
    results: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr):
        names = known_names()
        for name, overrides in cases.items():
            container = omegaconf.OmegaConf.to_container(compose(overrides), resolve=True)
            results[name] = container
        padded = padded_batches(given["lengths"], given["budget"])
    print(json.dumps({"names": names, "configs": results, "padded": padded}))


if __name__ == "__main__":
    main()
