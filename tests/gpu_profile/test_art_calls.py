"""The ART calls of the gpu profile, bound to the signatures and typed dictionaries of the installed ART."""

import contextlib
import inspect
import types
from pathlib import Path
from typing import Any

import art
import pytest
import torch
import trl
import yaml
from art import dev
from art.dev.model import EngineArgs, InitArgs, InternalModelConfig, PeftArgs, TrainerArgs
from art.dev.validate import is_dedicated_mode, validate_dedicated_config
from art.local.backend import LocalBackend
from art.unsloth import train as _unsloth_train
from art.unsloth.service import UnslothService
from art.unsloth.train import UnslothTrainContext

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.train.art.backend import ServiceBackend, train_arguments
from deepsearch_rl.train.art.unsloth import (
    SealingUnslothService,
    measured,
    require_honoured,
    unsloth_settings,
)
from deepsearch_rl.train.rl.rl_config import RlConfig

unsloth_train: Any = _unsloth_train
SECTIONS = {
    "init_args": InitArgs,
    "engine_args": EngineArgs,
    "peft_args": PeftArgs,
    "trainer_args": TrainerArgs,
}


@pytest.fixture
def config(root: Path) -> RlConfig:
    """The gpu profile's section with what ART's own service needs in place of ours."""
    values = yaml.safe_load((root / "profiles/gpu/params.yaml").read_text())["rl"]
    values["backend"] = {"engine": "art", "service": "unsloth", "device": "cuda"}
    values["sampler"] = {**values["sampler"], "program": None}
    return RlConfig.model_validate({**values, "max_batch_tokens": values["max_sequence_tokens"]})


def test_the_training_call_binds_to_arts_own_signature(config: RlConfig) -> None:
    signature = inspect.signature(LocalBackend.train)
    bound = signature.bind(object(), object(), [], **train_arguments(config))
    assert bound.arguments["importance_sampling_level"] == "sequence"
    with pytest.raises(TypeError, match="learning_rat"):
        signature.bind(object(), object(), [], learning_rat=1.0)


def test_the_model_settings_are_keys_that_art_knows(config: RlConfig) -> None:
    settings = unsloth_settings(config, 0, "work")
    assert settings.keys() <= InternalModelConfig.__annotations__.keys()
    for name, section in SECTIONS.items():
        given: dict[str, Any] = dict(settings[name])  # type: ignore[literal-required]
        assert given.keys() <= section.__annotations__.keys(), name
    validate_dedicated_config(settings)
    assert not is_dedicated_mode(settings)


def test_the_trainer_settings_are_fields_of_trls_config(config: RlConfig) -> None:
    given: dict[str, Any] = dict(unsloth_settings(config, 0, "work")["trainer_args"])
    inspect.signature(trl.GRPOConfig).bind(**given)


def test_the_model_and_its_service_are_made_as_art_makes_them(
    config: RlConfig, tmp_path: Path
) -> None:
    settings = unsloth_settings(config, 0, "work")
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="policy", project="test", base_model="models/gpu/sft", _internal_config=settings
    )
    service = SealingUnslothService(
        config, "0" * 64, model.name, model.base_model, settings, str(tmp_path)
    )
    assert service.rollout_weights_mode == "lora"
    engine = service._runtime_engine_args(None)
    assert (engine["enable_lora"], engine["generation_config"]) == (True, "vllm")
    assert engine["gpu_memory_utilization"] == config.sampler.gpu_memory_utilization
    server = service._runtime_server_args(None)
    assert (server["tool_call_parser"], server["return_tokens_as_token_ids"]) == ("hermes", True)


def test_our_backend_replaces_the_one_method_that_makes_the_service() -> None:
    ours, theirs = (inspect.signature(kind._get_service) for kind in (ServiceBackend, LocalBackend))
    assert list(ours.parameters) == list(theirs.parameters)
    mine, arts = (inspect.signature(kind.train) for kind in (SealingUnslothService, UnslothService))
    assert list(mine.parameters) == list(arts.parameters)
    for name in ("load_optimizer_state", "save_optimizer_state"):
        inspect.signature(getattr(UnslothTrainContext, name)).bind(object(), "folder")


def test_arts_training_settings_reach_its_loss(config: RlConfig) -> None:
    known = dev.TrainConfig.__annotations__
    for name in (
        "epsilon",
        "epsilon_high",
        "truncated_importance_sampling",
        "importance_sampling_level",
    ):
        assert name in known
        assert name in train_arguments(config)


def test_params_that_arts_own_service_cannot_honour_are_all_named(config: RlConfig) -> None:
    require_honoured(config)
    wrong = config.model_copy(
        update={"minibatches": 4, "lora": None, "logprob_chunk": 1000, "dtype": "float32"}
    )
    with pytest.raises(
        ConfigError,
        match=r"rl\.minibatches: None .*rl\.dtype: bfloat16 .*rl\.lora.*rl\.logprob_chunk",
    ):
        require_honoured(wrong)


def test_schedules_that_arts_own_service_does_not_have_are_refused(
    config: RlConfig,
) -> None:
    optimizer = config.optimizer.model_copy(update={"warmup_steps": 5, "schedule": "cosine"})
    match = r"rl\.optimizer\.warmup_steps: 0 .*rl\.optimizer\.schedule: constant"
    with pytest.raises(ConfigError, match=match):
        require_honoured(config.model_copy(update={"optimizer": optimizer}))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"algorithm": "cispo"}, r"rl\.loss\.algorithm: grpo or gspo"),
        (
            {"aggregation": "token", "kl_loss": 0.1},
            r"rl\.loss\.aggregation: sequence_art .*rl\.loss\.kl_loss: 0\.0",
        ),
        (
            {"dual_clip": 3.0, "entropy_bonus": 0.1},
            r"rl\.loss\.dual_clip: None .*rl\.loss\.entropy_bonus: 0\.0",
        ),
        ({"unit_advantages": False}, r"rl\.loss\.unit_advantages: True"),
    ],
)
def test_losses_that_arts_own_service_does_not_have_are_refused(
    config: RlConfig, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        require_honoured(config.model_copy(update={"loss": config.loss.model_copy(update=changes)}))


def test_arts_scores_and_losses_are_measured_while_it_trains_and_left_alone_after(
    config: RlConfig,
) -> None:
    sampled = torch.tensor([[float("nan"), float("nan"), -1.0, -2.0]])
    mask = ~sampled.isnan()
    zeros = torch.zeros(sampled.shape)
    trained = torch.tensor([[0.0, 0.0, -1.01, -2.03]])
    packed: Any = {
        "logprobs": sampled,
        "assistant_mask": mask,
        "advantages": torch.where(mask, 1.0, 0.0),
    }
    context = types.SimpleNamespace(
        peft_model=types.SimpleNamespace(disable_adapter=contextlib.nullcontext)
    )
    before = (unsloth_train._precalculate_new_logprobs, unsloth_train.loss_fn)
    unsloth_train._precalculate_new_logprobs = lambda *_: trained
    try:
        with measured(config) as metrics:
            assert unsloth_train._precalculate_new_logprobs(context, packed, None, {}) is not None
            inputs = {
                **packed,
                "logprobs": trained,
                "group_ids": zeros.long(),
                "weights": mask.float(),
            }
            unsloth_train.loss_fn(
                inputs, torch.tensor([[0.0, -1.5, -2.03, 0.0]]), None, None, {"ppo": True}
            )
    finally:
        unsloth_train._precalculate_new_logprobs = before[0]
    assert metrics["mismatch_mean"] == pytest.approx((0.01 + 0.03) / 2, rel=1e-5)
    # The ratio of the one rollout is exp(-0.02) before the step and exp(-0.245) in it: both far
    # below 1 - 3e-4.
    assert metrics["outside_clip_positive"] == 1.0
    assert metrics["loss/clip_fraction"] == 1.0
    assert metrics["kl"] == 0.0, "the reference is the policy itself"
    assert (unsloth_train._precalculate_new_logprobs, unsloth_train.loss_fn) == before
