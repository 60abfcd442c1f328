"""The tiny profile's section ``rl`` as veRL can train it, with changes."""

from pathlib import Path
from typing import Any

from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.verl.overrides import VerlRun
from tests.environment.check_environments import ROOT, interpreter_of

RUN = VerlRun(
    start=Path("/models/sft"),
    train=Path("/rows/train.parquet"),
    dev=Path("/rows/dev.parquet"),
    agent=Path("/rows/agent.yaml"),
    checkpoints=Path("/checkpoints"),
    steps=4,
    context_tokens=1024,
    seed=7,
)
CRITIC = {"learning_rate": 1e-4, "alone_steps": 1}


def verl_config(
    *, loss: dict[str, Any] | None = None, verl: dict[str, Any] | None = None, **changes: Any
) -> RlConfig:
    """Return tiny's settings for veRL on a cpu, or on a GPU where the changes name ``device``."""
    values = load_profile(ROOT / "params.yaml").section("rl", RlConfig).model_dump()
    device = changes.pop("device", "cpu")
    backend = {
        "python": str(interpreter_of("verl")),
        "gpus_per_node": 1,
        "rollout": "own" if device == "cpu" else "vllm",
        "agent_workers": 1,
    }
    values["loss"] |= {"sample_std": True, "unit_advantages": False} | (loss or {})
    values["backend"] = {
        "engine": "verl",
        "service": "own",
        "device": device,
        "verl": backend | (verl or {}),
    }
    return RlConfig.model_validate(values | changes)
