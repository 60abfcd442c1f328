"""profiles/gpu/published.yaml names every published setting, and the README every one that the profile departs from."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.utils.hydra import apply_overrides

from deepsearch_rl.errors import ConfigError
from deepsearch_rl.profile import load_profile
from deepsearch_rl.retrieval.build import IndexSection
from deepsearch_rl.training.backends.art.unsloth import require_honoured
from deepsearch_rl.training.rl.trainer import RlConfig
from scripts.departures import (
    NAME,
    PROFILE,
    README,
    Behaviour,
    Departure,
    Published,
    Value,
    departures,
    read_published,
    table,
    value_at,
)
from scripts.markers import with_part

PUBLISHED: dict[str, object] = {
    "rl.loss.algorithm": "gspo",
    "rl.loss.epsilon": 3e-4,
    "rl.loss.epsilon_high": 4e-4,
    "rl.loss.truncated_importance_sampling": 2.0,
    "rl.logprob_chunk": 8,
    "rl.learning_rate": 3e-5,
    "rl.group_size": 8,
    "rl.groups_per_step": 10,
    "rl.steps": {"sft": 236, "base": 236},
    "rl.rewards": {"f1": 2.0},
    "rl.max_sequence_tokens": 8192,
    "agent.max_tokens": 3072,
    "retrieval.dataset_retrievers.multihoprag": "hybrid",
    "index.fusion.unlearned": "reciprocal_ranks",
    "retrieval.retriever": "dense",
    "sft.lora_rank": 64,
    "sft.lora_alpha": 128,
    "sft.lora_dropout": 0.05,
    "sft.learning_rate": 1e-4,
    "sft.warmup_ratio": 0.05,
    "sft.epochs": 2,
    "sft.rows_per_forward": 1,
    "sft.forwards_per_step": 8,
    "sft.packing": True,
    "sft.max_length": 8192,
    "sft.weight_decay": 0.1,
    "sft.liger_kernel": True,
    "sft.eval_share": 0.05,
    "sft.save_steps": 10,
    "sft.kept_checkpoints": 10,
    "serving.vllm.enforce_eager": True,
    "rl.minibatches": None,
    "rl.sampler.gpu_memory_utilization": 0.6,
    "evaluate.temperature": 0.7,
}
"""Every published value that a field of params.yaml decides."""
DEV_QUESTIONS = 100
BEHAVIOURS = {
    "base weights while RL trains": "nf4",
    "RL checkpoint that is used": "step 103 from the base, step 99 from SFT",
    "first published RL runs": "2 groups a step, 1,178 steps",
    "thinking model": "10, 100, 600",
    "SFT checkpoint that is used": "step 96",
    "several GPUs": "tensor parallel 4",
    "Search-R1, PPO": "actor lr 1e-6 .* critic lr 1e-5 .* GAE, batch 512, mini-batch 256",
    "Search-R1, GRPO": "lr 1e-6 .* 5 rollouts per question, KL in the loss .001",
}
"""Parts of what else was published."""


@pytest.fixture
def published() -> Published:
    return read_published()


@pytest.fixture
def params() -> dict[str, Any]:
    return yaml.safe_load((PROFILE / "params.yaml").read_text())


def test_every_published_setting_is_listed_with_its_value(published: Published) -> None:
    values = {each.path: each.published for each in published.settings if isinstance(each, Value)}
    assert {path: values.get(path) for path in PUBLISHED} == PUBLISHED
    texts = {each.setting: each.published for each in published.settings if isinstance(each, Behaviour)}
    assert [name for name, pattern in BEHAVIOURS.items() if not re.search(pattern, texts.get(name, ""))] == []


def test_every_departure_is_in_the_readme_with_its_reason() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_part(text, NAME, table()) == text, "run `make readme`"


def test_another_value_without_a_reason_is_refused(published: Published, params: dict[str, Any]) -> None:
    params["sft"]["lora_rank"] = 8
    with pytest.raises(ConfigError, match=r"no reason why sft\.lora_rank is 8 and not 64"):
        list(departures(published, params))
    del params["sft"]["lora_rank"]
    with pytest.raises(ConfigError, match=r"has no sft\.lora_rank, which published\.yaml names"):
        list(departures(published, params))


def options(departure: Departure) -> list[str]:
    return [word for word in shlex.split(departure.override.strip("`")) if word not in ("-S", "-")]


def test_the_options_of_a_departure_give_the_published_value(
    published: Published, params: dict[str, Any], tmp_path: Path
) -> None:
    listed = {row.setting: row for row in departures(published, params)}
    departed = [each for each in published.settings if isinstance(each, Value) and f"`{each.path}`" in listed]
    assert departed
    for value in departed:
        changed = tmp_path / "params.yaml"
        changed.write_text((PROFILE / "params.yaml").read_text())
        apply_overrides(str(changed), options(listed[f"`{value.path}`"]))
        values = load_profile(changed)
        assert value_at(values.values, value.path) == value.published
        rl, _ = values.section("rl", RlConfig), values.section("index", IndexSection)
        assert max(rl.steps.values()) * rl.groups_per_step <= rl.epochs * (published.train_questions - DEV_QUESTIONS)
        if rl.backend.service == "unsloth":
            require_honoured(rl)


def test_the_options_of_a_behaviour_name_fields_that_exist(published: Published, params: dict[str, Any]) -> None:
    named = [option for row in departures(published, params) if row.setting[0] != "`" for option in options(row)]
    assert named
    for option in named:
        value_at(params, option.partition("=")[0])
