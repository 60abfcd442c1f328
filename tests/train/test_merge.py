"""Merging adapters: by ms-swift and by PEFT, and the proof that the merged model is the trained one."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from deepsearch_rl.core.errors import (
    ArtifactError,
    CheckFailedError,
    CommandError,
    ConfigError,
    UnavailableError,
)
from deepsearch_rl.core.files import file_digests, sha256_file
from deepsearch_rl.train import merge
from deepsearch_rl.train import merge as proof
from deepsearch_rl.train.merge import (
    AnswerTokens,
    MergeConfig,
    answer_logprobs,
    fixed_prompts,
    greedy_answers,
    logprobs_of_new_process,
    merge_adapter,
    require_trained_model,
)
from deepsearch_rl.train.model_folder import complete_folder

pytestmark = pytest.mark.slow

PEFT_MERGE = MergeConfig(
    backend="peft",
    device="cpu",
    dtype="float32",
    threads=1,
    model_type=None,
    template=None,
    max_sequence_tokens=None,
    prompts=4,
    max_tokens=8,
    tolerance=1e-4,
    check_timeout_s=240,
)
SWIFT_MERGE = PEFT_MERGE.model_copy(
    update={"backend": "swift", "model_type": "qwen3", "template": "qwen3_nothinking"}
)


@pytest.fixture(scope="module")
def adapter_folder(policy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA on every linear layer with random weights, large enough to change the policy's answers."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    settings: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 64,
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
    }
    folder = tmp_path_factory.mktemp("adapter")
    peft.get_peft_model(base, peft.LoraConfig(**settings, init_lora_weights=False)).save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="module")
def start(policy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy as training leaves it: its config switches the cache off."""
    folder = shutil.copytree(policy_folder, tmp_path_factory.mktemp("start") / "start")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "use_cache": False}))
    return folder


def logprobs_here(
    folder: Path, config: MergeConfig, answers: Sequence[AnswerTokens]
) -> list[list[float]]:
    """Stands for the check in a new process, for tests of anything but the process."""
    assert config.dtype == "float32"
    return answer_logprobs(AutoModelForCausalLM.from_pretrained(folder), answers)


@pytest.fixture(scope="module")
def merged_folder(
    start: Path, adapter_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The adapter merged into its start model by PEFT."""
    folder = tmp_path_factory.mktemp("peft") / "merged"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "logprobs_of_new_process", logprobs_here)
        merge_adapter(PEFT_MERGE, start, adapter_folder, folder.parent / "work", folder)
    return folder


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The merged model is loaded in this process."""
    monkeypatch.setattr(merge, "logprobs_of_new_process", logprobs_here)


def test_the_merged_model_writes_what_base_and_adapter_write_and_not_what_the_base_writes(
    policy_folder: Path, adapter_folder: Path, merged_folder: Path
) -> None:
    prompts = fixed_prompts(merged_folder, 4)

    def written(model: Any) -> list[list[int]]:
        return greedy_answers(model, prompts, 8)

    base, merged = (
        AutoModelForCausalLM.from_pretrained(folder) for folder in (policy_folder, merged_folder)
    )
    writes_base = written(base)
    adapted = peft.PeftModel.from_pretrained(base, str(adapter_folder))
    assert written(merged) == written(adapted) != writes_base


@pytest.mark.usefixtures("checked_here")
def test_a_merge_that_loses_the_adapter_fails_and_keeps_nothing(
    policy_folder: Path, adapter_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        peft.tuners.lora.LoraModel, "merge_and_unload", peft.tuners.lora.LoraModel.unload
    )
    with pytest.raises(
        CheckFailedError, match="the merged model is not the unmerged one: the log-probabilities"
    ):
        merge_adapter(
            PEFT_MERGE, policy_folder, adapter_folder, tmp_path / "work", tmp_path / "merged"
        )
    assert not list(tmp_path.iterdir())


def test_classes_that_a_library_patched_here_do_not_reach_the_check_of_the_merged_model(
    merged_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Unsloth leaves them: the class's forward reads an attribute that only its own instances have."""
    config = PEFT_MERGE.model_copy(update={"max_tokens": 2})
    answers = [AnswerTokens(prompt, [3, 4]) for prompt in fixed_prompts(merged_folder, 4)]
    model = AutoModelForCausalLM.from_pretrained(merged_folder)
    expected = answer_logprobs(model, answers)
    monkeypatch.setattr(
        Qwen3Attention, "forward", lambda self, *args, **_: self.apply_qkv(self, *args)
    )
    with pytest.raises(AttributeError, match="apply_qkv"):
        answer_logprobs(model, answers)
    own = logprobs_of_new_process(merged_folder, config, answers)
    for ours, theirs in zip(own, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("echo 'config.json is broken' >&2; exit 1", r"exit code 1\.[\s\S]*config\.json"),
        ("exec sleep 600", r"not kept: .* within 0\.5 s"),
    ],
)
def test_a_check_that_dies_or_hangs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{program}\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(proof, "sys", SimpleNamespace(executable=str(interpreter)))
    config = PEFT_MERGE.model_copy(update={"check_timeout_s": 0.5})
    with pytest.raises(CommandError, match=problem):
        logprobs_of_new_process(tmp_path, config, [AnswerTokens([1], [2])])


@pytest.mark.nightly
def test_a_check_of_a_broken_model_says_what_transformers_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(CommandError, match=r"exit code 1\.[\s\S]*config\.json"):
        logprobs_of_new_process(tmp_path, PEFT_MERGE, [AnswerTokens([1], [2])])


def test_a_merged_folder_serves_as_its_base_does_and_uses_the_cache(
    start: Path, merged_folder: Path
) -> None:
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ):
        assert sha256_file(merged_folder / name) == sha256_file(start / name), name
    merged = json.loads((merged_folder / "config.json").read_text())
    assert (merged["use_cache"], merged["dtype"]) == (True, "float32")


@pytest.mark.usefixtures("checked_here")
def test_two_merges_give_the_same_bytes(
    start: Path, adapter_folder: Path, merged_folder: Path, tmp_path: Path
) -> None:
    merge_adapter(PEFT_MERGE, start, adapter_folder, tmp_path / "work", tmp_path / "again")
    assert file_digests(tmp_path / "again") == file_digests(merged_folder)


@pytest.mark.parametrize("config", [PEFT_MERGE, SWIFT_MERGE])
def test_a_quantized_base_is_refused(
    policy_folder: Path, adapter_folder: Path, tmp_path: Path, config: MergeConfig
) -> None:
    start = shutil.copytree(policy_folder, tmp_path / "start")
    settings = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(
        json.dumps({**settings, "quantization_config": {"load_in_4bit": True}})
    )
    with pytest.raises(ConfigError, match="quantized"):
        merge_adapter(config, start, adapter_folder, tmp_path / "work", tmp_path / "merged")


@pytest.mark.parametrize("config", [PEFT_MERGE, SWIFT_MERGE])
def test_an_adapter_folder_that_is_not_whole_is_refused(
    policy_folder: Path, tmp_path: Path, config: MergeConfig
) -> None:
    with pytest.raises(ArtifactError, match=r"adapter_config\.json"):
        merge_adapter(config, policy_folder, tmp_path, tmp_path / "work", tmp_path / "merged")


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"backend": "swift"}, "model_type and template"),
        ({"backend": "unsloth", "device": "cuda"}, "max_sequence_tokens"),
        ({"backend": "unsloth", "max_sequence_tokens": 512}, "device: cuda"),
    ],
)
def test_a_backend_without_its_fields_is_refused(changes: dict[str, Any], missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        MergeConfig.model_validate({**PEFT_MERGE.model_dump(), **changes})


def test_a_base_without_a_tokenizer_makes_no_whole_model(
    policy_folder: Path, tmp_path: Path
) -> None:
    base, merged = tmp_path / "base", tmp_path / "merged"
    for folder, names in ((base, ["config.json"]), (merged, ["config.json", "model.safetensors"])):
        folder.mkdir()
        for name in names:
            shutil.copyfile(policy_folder / name, folder / name)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        complete_folder(base, merged, tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("backend", ["swift", "peft", "unsloth"])
def test_gpu_merges_without_a_gpu_stop_before_anything_is_read(
    tmp_path: Path, backend: str
) -> None:
    missing = tmp_path / "missing"
    config = SWIFT_MERGE.model_copy(update={"backend": backend, "device": "cuda"})
    with pytest.raises(UnavailableError, match=f"a merge by {backend} .* a CUDA GPU"):
        merge_adapter(config, missing, missing, tmp_path, tmp_path / "out")


def compared(merged: str, adapter_nats: float, noise: float) -> None:
    """Check a merge of 8 answers of 64 tokens whose adapter moves a token by so many nats, with rounding's noise."""
    generator = torch.Generator().manual_seed(0)

    def draws() -> torch.Tensor:
        return torch.randn(8, 64, generator=generator)

    base = -draws().abs()
    trained = base + adapter_nats * draws()
    models = {"right": trained, "without the adapter": base, "half of it": (base + trained) / 2}
    rounded = models[merged] + noise * draws()
    require_trained_model(rounded.tolist(), trained.tolist(), base.tolist(), tolerance=0.05)


@pytest.mark.parametrize(
    ("adapter_nats", "noise"), [(0.0, 0.0), (0.0, 0.03), (0.01, 0.03), (1.0, 0.03)]
)
def test_rounding_of_16_bits_makes_no_other_model(adapter_nats: float, noise: float) -> None:
    compared("right", adapter_nats, noise)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_merge_that_lost_an_adapter_too_small_for_the_tolerance_is_found(noise: float) -> None:
    with pytest.raises(CheckFailedError, match="nearer to the base than to the trained model"):
        compared("without the adapter", 0.02, noise)


def test_a_merge_that_lost_a_part_of_a_large_adapter_is_found() -> None:
    with pytest.raises(CheckFailedError, match=r"differ by 0\.4. nats .* tolerance .* is 0\.05"):
        compared("half of it", 1.0, 0.01)
    with pytest.raises(CheckFailedError, match="differ by nan nats"):
        compared("right", float("nan"), 0.0)


def test_answers_of_several_lengths_are_compared_token_by_token() -> None:
    require_trained_model(
        [[-1.0], [-2.0, -3.0]], [[-1.0], [-2.0, -3.0]], [[-4.0], [-4.0, -4.0]], tolerance=1e-6
    )


@pytest.mark.nightly
def test_ms_swift_and_peft_merge_to_the_same_bits(
    policy_folder: Path, adapter_folder: Path, merged_folder: Path, tmp_path: Path
) -> None:
    merge_adapter(SWIFT_MERGE, policy_folder, adapter_folder, tmp_path / "work", tmp_path / "swift")
    swift, other = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "swift", merged_folder)
    )
    assert swift.keys() == other.keys()
    assert [name for name in swift if not torch.equal(swift[name], other[name])] == []
