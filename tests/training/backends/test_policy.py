"""The policy's numbers against ART's own way on the same tensors, and what it saves and refuses."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from art.preprocessing.pack import PackedTensors
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.rl_step import LOSS, arts_gradients, arts_logprobs, disturb, gradients, own_gradients, random_rollouts
from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.files import file_digests
from deepsearch_rl.profile import Profile
from deepsearch_rl.training.backends.art.checkpoints import SEAL, is_whole, require_start
from deepsearch_rl.training.backends.art.policy import Policy, Rows
from deepsearch_rl.training.backends.art.service import memory_named, minibatches
from deepsearch_rl.training.pretrain.model import ModelConfig, build_model
from deepsearch_rl.training.rl.trainer import LoraConfig, RlConfig

LENGTHS = [50, 120, 64, 64, 90]


@pytest.fixture
def config(smoke: Profile) -> RlConfig:
    changes = {"lora": LoraConfig(rank=4, alpha=8), "max_batch_tokens": 200, "max_mismatch": 100.0}
    return smoke.section("rl", RlConfig).model_copy(update=changes)


@pytest.fixture
def packed() -> PackedTensors:
    return random_rollouts(random.Random(0), LENGTHS, 600, 256)


def disturbed(start: Path, config: RlConfig) -> Policy:
    policy = Policy(start, config, 0, None)
    disturb(policy.model)
    return policy


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    "changes",
    [
        {"max_batch_tokens": 1, "logprob_chunk": 7},
        {"max_batch_tokens": 10_000, "gradient_checkpointing": True},
        {"lora": None},
    ],
    ids=["a row at a time in chunks", "all rows, activations recomputed", "all weights"],
)
def test_gradients_are_those_of_arts_padded_rollouts(
    policy_folder: Path,
    config: RlConfig,
    packed: PackedTensors,
    changes: dict[str, Any],
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LOSS, "importance_sampling_level", level)
    own, other = (disturbed(policy_folder, config.model_copy(update=changes)) for _ in range(2))
    own_gradients(own, packed)
    arts_gradients(other.model, packed)
    ours, arts = gradients(own.model), gradients(other.model)
    assert float(arts.abs().max()) > 1e-4
    assert float((ours - arts).abs().max() / arts.abs().max()) < 1e-5


def test_old_log_probabilities_are_the_trainers_and_the_samplers_only_weigh_tokens(
    policy_folder: Path, config: RlConfig, packed: PackedTensors
) -> None:
    policy = disturbed(policy_folder, config)
    rows = Rows(packed)
    sampled = rows.tensors["logprobs"].clone()
    metrics = policy.score(rows)
    whole: Any = {name: tensor for name, tensor in rows.tensors.items() if name != "original_logprobs"}
    expected = arts_logprobs(policy.model, whole).detach().roll(1, dims=1)
    mask = ~sampled.isnan()
    assert torch.allclose(rows.tensors["logprobs"][mask], expected[mask], atol=1e-5)
    assert torch.equal(rows.tensors["original_logprobs"][mask], sampled[mask])
    assert metrics["mismatch_mean"] == pytest.approx(float((sampled - expected)[mask].abs().mean()), rel=1e-4)
    assert metrics["kl"] > 0
    update = policy.update(rows, torch.arange(len(LENGTHS)), LOSS)
    assert update["loss/clip_fraction"] == 0.0, "the policy has not moved since it was scored"
    weight = (expected - sampled)[mask].exp().clamp(max=2.0)
    terms = -(weight * rows.tensors["advantages"][mask] * rows.tensors["weights"][mask])
    assert update["loss/train"] == pytest.approx(float(terms.mean()), rel=1e-4)


def test_later_minibatches_are_clipped_against_the_policy_before_the_step(
    policy_folder: Path, config: RlConfig, packed: PackedTensors
) -> None:
    policy = Policy(policy_folder, config.model_copy(update={"learning_rate": 0.1}), 0, None)
    rows = Rows(packed)
    policy.score(rows)
    parts = minibatches(len(LENGTHS), 3, seed=0)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(LENGTHS)))
    shares = [policy.update(rows, part, LOSS)["loss/clip_fraction"] for part in parts]
    assert shares[0] == 0.0 < max(shares[1:])
    assert [part.tolist() for part in minibatches(4, None, 1)] == [[row] for row in torch.cat(minibatches(4, 1, 1))]


def trained(start: Path, config: RlConfig, packed: PackedTensors, folder: Path) -> dict[str, str]:
    """Two optimizer steps; the digests of what is saved."""
    policy, rows = Policy(start, config, 0, None), Rows(packed)
    policy.score(rows)
    for part in minibatches(len(LENGTHS), 2, seed=3):
        policy.update(rows, part, LOSS)
    policy.save(folder, "digest")
    return file_digests(folder)


def test_an_update_is_byte_equal_from_run_to_run_and_in_whatever_order_rollouts_came(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, tmp_path: Path
) -> None:
    shuffled: Any = {
        name: tensor[[3, 0, 4, 1, 2]] if isinstance(tensor, torch.Tensor) else tensor for name, tensor in packed.items()
    }
    first = trained(policy_folder, config, packed, tmp_path / "first")
    assert first == trained(policy_folder, config, packed, tmp_path / "second")
    assert first == trained(policy_folder, config, shuffled, tmp_path / "shuffled")


@pytest.mark.parametrize("lora", [LoraConfig(rank=4, alpha=8), None], ids=["adapter", "all weights"])
def test_a_resumed_policy_goes_on_to_the_same_bytes(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, tmp_path: Path, lora: LoraConfig | None
) -> None:
    config = config.model_copy(update={"lora": lora})
    undisturbed = Policy(policy_folder, config, 0, None)
    for name in ("1", "2", "2 without a break"):
        policy = Policy(policy_folder, config, 0, tmp_path / "1") if name == "2" else undisturbed
        rows = Rows(packed)
        policy.score(rows)
        policy.update(rows, torch.arange(len(LENGTHS)), LOSS)
        policy.save(tmp_path / name, "digest")
    assert file_digests(tmp_path / "2") == file_digests(tmp_path / "2 without a break")
    assert file_digests(tmp_path / "1") != file_digests(tmp_path / "2")


@pytest.mark.parametrize("lora", [LoraConfig(rank=4, alpha=8), None], ids=["adapter", "all weights"])
def test_the_served_model_is_the_trained_one(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, lora: LoraConfig | None
) -> None:
    policy = disturbed(policy_folder, config.model_copy(update={"lora": lora}))
    served = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    row: Any = {name: packed[name][1:2, :120] for name in ("tokens", "group_ids", "parent_ids", "assistant_mask")}
    with torch.no_grad():
        before, own = arts_logprobs(served, row), policy.token_statistics(row)[0]
        policy.write_into(served)
        after = arts_logprobs(served, row)
    mask = row["assistant_mask"].roll(-1, dims=1)
    assert torch.allclose(after[mask], own[mask], atol=1e-5)
    assert not torch.allclose(before[mask], own[mask], atol=1e-3)


def test_bfloat16_trains_float32_adapters(policy_folder: Path, config: RlConfig, packed: PackedTensors) -> None:
    dtypes = ("bfloat16", "float32")
    half, whole = (disturbed(policy_folder, config.model_copy(update={"dtype": name})) for name in dtypes)
    row: Any = {name: packed[name][:, :120] for name in ("tokens", "group_ids", "assistant_mask")}
    with torch.no_grad():
        logprobs = [policy.token_statistics(row)[0] for policy in (half, whole)]
    assert logprobs[0].dtype == torch.float32
    assert 1e-5 < float((logprobs[0] - logprobs[1]).abs().mean()) < 0.05
    rows = Rows(packed)
    half.score(rows)
    assert half.update(rows, torch.arange(len(LENGTHS)), LOSS)["loss/grad_norm"] > 0
    assert {group.dtype for group in half.optimizer.param_groups[0]["params"]} == {torch.float32}


def test_batches_hold_rows_of_similar_length_and_no_more_tokens_than_allowed(packed: PackedTensors) -> None:
    rows = Rows(packed)
    assert rows.lengths_N.tolist() == sorted(LENGTHS)
    batches = rows.batches(torch.arange(5), max_tokens=200)
    assert [rows.lengths_N[batch].tolist() for batch in batches] == [[120], [90, 64], [64, 50]]
    assert [len(batch) for batch in rows.batches(torch.arange(5), max_tokens=10)] == [1] * 5


def test_an_adapter_of_another_architecture_is_named(policy_folder: Path, config: RlConfig, tmp_path: Path) -> None:
    Policy(policy_folder, config, 0, None).save(tmp_path / "adapter", "digest")
    shape = {"hidden_size": 16, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_size": 64}
    rest = {"rope_theta": 10000, "initializer_range": 0.2, "context_tokens": 128}
    other = build_model(ModelConfig.model_validate({**shape, **rest}), AutoTokenizer.from_pretrained(policy_folder), 0)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ArtifactError, match=r"adapter does not fit .* a qwen3 with 2 layers of size 16"):
        Policy(tmp_path / "other", config, 0, tmp_path / "adapter")


def test_a_seal_finds_damage_and_another_start(policy_folder: Path, config: RlConfig, tmp_path: Path) -> None:
    folder = tmp_path / "0001"
    Policy(policy_folder, config, 0, None).save(folder, "digest")
    assert is_whole(folder)
    require_start(folder, "digest")
    with pytest.raises(ArtifactError, match="was trained from other weights"):
        require_start(folder, "another")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not is_whole(folder)
    (folder / SEAL).unlink()
    assert not is_whole(folder)


def test_a_gpu_without_memory_left_is_named_with_the_fields_to_change(config: RlConfig) -> None:
    match = r"Lower rl\.max_batch_tokens \(now 200\).*rl\.sampler\.sleep"
    with pytest.raises(ConfigError, match=match), memory_named(config):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")


def test_a_resumed_optimizer_has_its_state_and_the_settings_of_params(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, tmp_path: Path
) -> None:
    trained(policy_folder, config, packed, tmp_path / "1")
    optimizer = config.optimizer.model_copy(update={"beta2": 0.5, "weight_decay": 0.25})
    changed = config.model_copy(update={"learning_rate": 0.125, "optimizer": optimizer})
    resumed = Policy(policy_folder, changed, 0, tmp_path / "1").optimizer
    group = resumed.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.125, (0.9, 0.5), 0.25)
    assert all(float(state["step"]) == 2 for state in resumed.state.values())
    assert len(resumed.state) == len(group["params"])
