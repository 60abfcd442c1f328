"""The ART calls of the gpu profile, bound to the signatures and typed dictionaries of the installed ART."""

import inspect
from pathlib import Path
from typing import Any

import art
import pytest
import trl
import yaml
from art import dev
from art.dev.model import EngineArgs, InitArgs, InternalModelConfig, PeftArgs, TrainerArgs
from art.dev.validate import is_dedicated_mode, validate_dedicated_config
from art.local.backend import LocalBackend

from deepsearch_rl.training.backends.art.trainer import ServiceBackend, train_arguments
from deepsearch_rl.training.backends.art.unsloth import ScoringUnslothService, unsloth_settings
from deepsearch_rl.training.rl.trainer import RlConfig

SECTIONS = {"init_args": InitArgs, "engine_args": EngineArgs, "peft_args": PeftArgs, "trainer_args": TrainerArgs}


@pytest.fixture
def config(root: Path) -> RlConfig:
    return RlConfig.model_validate(yaml.safe_load((root / "profiles/gpu/params.yaml").read_text())["rl"])


def test_the_training_call_binds_to_arts_own_signature(config: RlConfig) -> None:
    signature = inspect.signature(LocalBackend.train)
    bound = signature.bind(object(), object(), [], **train_arguments(config))
    assert bound.arguments["importance_sampling_level"] == "sequence"
    with pytest.raises(TypeError, match="learning_rat"):
        signature.bind(object(), object(), [], learning_rat=1.0)


def test_the_model_settings_are_keys_that_art_knows(config: RlConfig) -> None:
    settings = unsloth_settings(config, seed=0)
    assert settings.keys() <= InternalModelConfig.__annotations__.keys()
    for name, section in SECTIONS.items():
        given: dict[str, Any] = dict(settings[name])  # type: ignore[literal-required]
        assert given.keys() <= section.__annotations__.keys(), name
    validate_dedicated_config(settings)
    assert not is_dedicated_mode(settings)


def test_the_trainer_settings_are_fields_of_trls_config(config: RlConfig) -> None:
    given: dict[str, Any] = dict(unsloth_settings(config, seed=0)["trainer_args"])
    inspect.signature(trl.GRPOConfig).bind(output_dir="x", **given)


def test_the_model_and_its_service_are_made_as_art_makes_them(config: RlConfig, tmp_path: Path) -> None:
    settings = unsloth_settings(config, seed=0)
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="policy", project="test", base_model="models/gpu/sft", _internal_config=settings
    )
    service = ScoringUnslothService(model.name, model.base_model, settings, str(tmp_path))
    assert service.rollout_weights_mode == "lora"
    engine = service._runtime_engine_args(None)
    assert (engine["enable_lora"], engine["enforce_eager"], engine["generation_config"]) == (True, True, "vllm")
    server = service._runtime_server_args(None)
    assert (server["tool_call_parser"], server["return_tokens_as_token_ids"]) == ("hermes", True)


def test_our_backend_replaces_the_one_method_that_makes_the_service() -> None:
    ours, theirs = (inspect.signature(kind._get_service) for kind in (ServiceBackend, LocalBackend))
    assert list(ours.parameters) == list(theirs.parameters)
    for name in ("_sleep_runtime", "_wake_runtime", "_state"):
        assert hasattr(ScoringUnslothService, name)


def test_arts_training_settings_reach_its_loss(config: RlConfig) -> None:
    known = dev.TrainConfig.__annotations__
    for name in ("epsilon", "epsilon_high", "truncated_importance_sampling", "importance_sampling_level"):
        assert name in known
        assert name in train_arguments(config)
