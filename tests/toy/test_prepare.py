import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import PromptDigests, load_prompt, read_trained_with
from deepsearch_rl.toy import pretraining
from deepsearch_rl.toy.pretraining import PretrainConfig
from deepsearch_rl.train.prepare_model import PrepareModelConfig, prepare_model


@pytest.fixture(scope="module")
def config(pretrain_config: PretrainConfig) -> PrepareModelConfig:
    return PrepareModelConfig(source="pretrain", pretrain=pretrain_config.model_dump(mode="json"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def base(config: PrepareModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that was trained for a few steps, a line of its log for every fourth."""
    folder = tmp_path_factory.mktemp("model") / "base"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "LOG_EVERY", 4)
        prepare_model(config, "tiny", 0, folder)
    return folder


@pytest.mark.slow
def test_two_runs_give_equal_bytes_and_another_seed_other_weights(
    config: PrepareModelConfig, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "LOG_EVERY", 4)
    for name, seed in (("again", 0), ("other", 1)):
        prepare_model(config, "tiny", seed, tmp_path / name)
    first, again, other = map(contents, (base, tmp_path / "again", tmp_path / "other"))
    assert first == again
    assert first["model.safetensors"] != other["model.safetensors"]
    assert first["tokenizer.json"] == other["tokenizer.json"]


def test_the_saved_folder_is_a_model_that_generates_with_a_cache(base: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name Ada Abbott."}],
        add_generation_prompt=True,
        return_tensors="pt",
    )["input_ids"]
    tokens = model.generate(prompt, max_new_tokens=4, do_sample=False)
    assert tokens.shape[1] > prompt.shape[1]
    assert model.config.use_cache is True
    assert model.config.tie_word_embeddings is True
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_the_manifest_says_what_the_model_was_trained_with(base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    prompts = PromptDigests.of(load_prompt("tiny"), json.dumps([RETRIEVE_TOOL]))
    assert read_trained_with(base) == prompts.with_template(tokenizer.chat_template)


def test_training_lowers_the_loss_and_logs_every_stage_of_the_curriculum(base: Path) -> None:
    steps = [json.loads(line) for line in (base / pretraining.TRAIN_LOG).read_text().splitlines()]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {step["level"] for step in steps} == {0, 1}


def test_a_run_that_dies_leaves_the_old_model_and_nothing_half_written(
    config: PrepareModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("old")
    monkeypatch.setattr(pretraining, "backward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare_model(config, "tiny", 0, folder)
    assert contents(folder) == {"config.json": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_an_unknown_source_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="'pretrain', 'folder' or 'hub'"):
        PrepareModelConfig.model_validate({"source": "pretrian"})
