"""The policy's numbers against ART's own way on the same tensors, and what it saves and refuses."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from art import types
from art.preprocessing.pack import PackedTensors, packed_tensors_to_dir
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.rl_step import (
    LOSS,
    arts_gradients,
    arts_logprobs,
    disturb,
    gradients,
    own_gradients,
    random_rollouts,
)
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.core.errors import ArtifactError, CheckFailedError, ConfigError, StalePolicyError
from deepsearch_rl.core.files import file_digests
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.toy.pretrained_model import ModelShape, build_model
from deepsearch_rl.train.art import policy as policy_module
from deepsearch_rl.train.art.policy import Policy
from deepsearch_rl.train.art.rows import SEAL, Rows, is_whole, require_start
from deepsearch_rl.train.art.service import OwnService, memory_named, minibatches
from deepsearch_rl.train.finite import NotFiniteError
from deepsearch_rl.train.rl.rl_config import LoraConfig, RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask

LENGTHS = [50, 120, 64, 64, 90]


@pytest.fixture
def config(smoke: Profile) -> RlConfig:
    rl = smoke.section("rl", RlConfig)
    loss = rl.loss.model_copy(update={"kl_loss": 0.0})  # ART's loss has none
    changes = {
        "lora": LoraConfig(rank=4, alpha=8),
        "max_batch_tokens": 200,
        "max_mismatch": 100.0,
        "loss": loss,
    }
    return rl.model_copy(update=changes)


@pytest.fixture
def packed() -> PackedTensors:
    return random_rollouts(random.Random(0), LENGTHS, 600, 256)


def disturbed(start: Path, config: RlConfig) -> Policy:
    policy = Policy(start, config, 0, None)
    disturb(policy.model)
    return policy


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "level"), [("grpo", "token"), ("gspo", "sequence")])
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
    algorithm: str,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LOSS, "importance_sampling_level", level)
    loss = config.loss.model_copy(update={"algorithm": algorithm})
    own, other = (
        disturbed(policy_folder, config.model_copy(update={**changes, "loss": loss}))
        for _ in range(2)
    )
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
    everything = torch.arange(len(LENGTHS))
    metrics = policy.score(rows, [everything])
    whole: Any = {
        name: tensor for name, tensor in rows.tensors.items() if name != "original_logprobs"
    }
    expected = arts_logprobs(policy.model, whole).detach().roll(1, dims=1)
    mask = ~sampled.isnan()
    assert torch.allclose(rows.tensors["logprobs"][mask], expected[mask], atol=1e-5)
    assert torch.equal(rows.tensors["original_logprobs"][mask], sampled[mask])
    assert metrics["mismatch_mean"] == pytest.approx(
        float((sampled - expected)[mask].abs().mean()), rel=1e-4
    )
    assert metrics["kl"] > 0
    update = policy.update(rows, everything)
    assert update["loss/clip_fraction"] == 0.0, "the policy has not moved since it was scored"
    weight = (expected - sampled)[mask].exp().clamp(max=2.0)
    terms = -(weight * rows.tensors["advantages"][mask] * rows.tensors["weights"][mask])
    assert update["loss/train"] == pytest.approx(float(terms.mean()), rel=1e-4)


@pytest.mark.parametrize("changes", [{}, {"kl_loss": 0.5}, {"algorithm": "grpo"}])
def test_a_single_update_scores_on_the_way_what_would_be_scored_before_it(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, changes: dict[str, Any]
) -> None:
    loss = config.loss.model_copy(update=changes)
    config = config.model_copy(update={"loss": loss})
    everything = torch.arange(len(LENGTHS))
    twice, once = (disturbed(policy_folder, config) for _ in range(2))
    rows = Rows(packed)
    metrics = twice.score(rows, [everything])
    metrics |= twice.update(rows, everything)
    assert once.update_once(Rows(packed)) == metrics
    assert torch.equal(trained_weights(once), trained_weights(twice))


def test_the_start_model_scores_all_rollouts_only_where_the_loss_needs_it(
    policy_folder: Path, config: RlConfig
) -> None:
    packed = random_rollouts(random.Random(0), [50] * 32, 600, 256)
    config = config.model_copy(update={"max_batch_tokens": 1})  # a batch for each rollout
    shares: list[float] = []
    kls: list[float] = []
    for kl_loss in (0.0, 0.5):
        loss = config.loss.model_copy(update={"kl_loss": kl_loss})
        policy = disturbed(policy_folder, config.model_copy(update={"loss": loss}))
        rows = Rows(packed)
        kls.append(policy.score(rows, [torch.arange(32)])["kl"])
        shares.append(float((~rows.tensors["reference_logprobs"].isnan()).float().mean()))
    assert shares == [1 / 4, 1.0]
    assert kls[0] == pytest.approx(kls[1], rel=0.5)


def test_an_adapter_in_the_upper_layers_leaves_the_others_as_they_are(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, tmp_path: Path
) -> None:
    config = config.model_copy(update={"lora": LoraConfig(rank=4, alpha=8, layers=1)})
    policy = Policy(policy_folder, config, 0, None)
    policy.update_once(Rows(packed))
    last = policy.model.config.num_hidden_layers - 1
    names = [name for name, each in policy.model.named_parameters() if each.requires_grad]
    assert names
    assert all(f"layers.{last}." in name for name in names)

    policy.save(tmp_path / "adapter", "digest")
    again = Policy(policy_folder, config, 0, tmp_path / "adapter")
    assert torch.equal(trained_weights(again), trained_weights(policy))
    served, start = (
        AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32) for _ in range(2)
    )
    policy.write_into(served)
    weights = dict(start.named_parameters())
    changed = {
        name.split(".")[2]
        for name, each in served.named_parameters()
        if not torch.equal(each, weights[name])
    }
    assert changed == {str(last)}


def test_later_minibatches_are_clipped_against_the_policy_before_the_step(
    policy_folder: Path, config: RlConfig, packed: PackedTensors
) -> None:
    policy = Policy(policy_folder, config.model_copy(update={"learning_rate": 0.3}), 0, None)
    rows = Rows(packed)
    parts = minibatches(len(LENGTHS), 3, seed=0)
    policy.score(rows, parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(LENGTHS)))
    shares = [policy.update(rows, part)["loss/clip_fraction"] for part in parts]
    assert shares[0] == 0.0 < max(shares[1:])
    assert [part.tolist() for part in minibatches(4, None, 1)] == [
        [row] for row in torch.cat(minibatches(4, 1, 1))
    ]


def updates(service: OwnService, packed: PackedTensors) -> list[dict[str, float]]:
    """Have a service make a step; return the metrics of its optimizer steps."""

    async def train() -> list[dict[str, float]]:
        tensors = packed_tensors_to_dir(packed, f"{service.output_dir}/tensors")
        return [metrics async for metrics in service.train(tensors, types.TrainConfig(), {})]

    return asyncio.run(train())


@pytest.fixture
def task(policy_folder: Path, smoke: Profile, tmp_path: Path) -> RlTask:
    agent = smoke.section("agent", AgentConfig)
    return RlTask(policy_folder, "base", "digest", [], [], agent, "http://127.0.0.1:9", tmp_path, 0)


@pytest.mark.slow
def test_a_service_trains_at_the_rate_of_its_step_also_after_a_resume(
    task: RlTask, config: RlConfig, packed: PackedTensors, tmp_path: Path
) -> None:
    optimizer = config.optimizer.model_copy(update={"warmup_steps": 1, "schedule": "linear"})
    config = config.model_copy(update={"optimizer": optimizer, "steps": {"base": 3}})
    folders = [str(tmp_path / name) for name in ("undisturbed", "resumed")]
    services = [OwnService("policy", folders[0], task, config)] * 3
    services += [OwnService("policy", folders[1], task, config) for _ in range(3)]
    rates = [updates(service, packed)[0]["loss/learning_rate"] for service in services]
    assert rates == pytest.approx([config.learning_rate * factor for factor in (0.5, 1.0, 0.5)] * 2)
    undisturbed, resumed = (file_digests(Path(folder) / "checkpoints") for folder in folders)
    assert undisturbed == resumed


LOSS_CHANGES: list[dict[str, Any]] = [
    {"algorithm": "gspo_token"},
    {"algorithm": "dr_grpo"},
    {"algorithm": "rloo"},
    {"algorithm": "reinforce_pp"},
    {"algorithm": "cispo"},
    {"aggregation": "token"},
    {"kl_penalty": 0.5},
    {"kl_loss": 0.5},
    {"entropy_bonus": 0.5},
]


@pytest.mark.slow
def test_every_setting_of_the_loss_changes_the_gradient(
    policy_folder: Path, config: RlConfig, packed: PackedTensors
) -> None:
    def gradient(changes: dict[str, Any]) -> torch.Tensor:
        loss = config.loss.model_copy(update=changes)
        policy = disturbed(policy_folder, config.model_copy(update={"loss": loss}))
        rows = Rows(packed)
        everything = torch.arange(len(LENGTHS))
        policy.score(rows, [everything])
        policy.backward(rows, everything)
        return gradients(policy.model)

    plain = gradient({})
    for changes in LOSS_CHANGES:
        assert float((gradient(changes) - plain).norm() / plain.norm()) > 1e-3, changes


def trained(start: Path, config: RlConfig, packed: PackedTensors, folder: Path) -> dict[str, str]:
    """Two optimizer steps; the digests of what is saved."""
    policy, rows = Policy(start, config, 0, None), Rows(packed)
    parts = minibatches(len(LENGTHS), 2, seed=3)
    policy.score(rows, parts)
    for part in parts:
        policy.update(rows, part)
    policy.save(folder, "digest")
    return file_digests(folder)


@pytest.mark.slow
def test_an_update_is_byte_equal_by_any_number_of_threads_and_in_whatever_order_rollouts_came(
    policy_folder: Path,
    config: RlConfig,
    packed: PackedTensors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A batch for each rollout
    config = config.model_copy(update={"max_batch_tokens": 1})
    shuffled: Any = {
        name: tensor[[3, 0, 4, 1, 2]] if isinstance(tensor, torch.Tensor) else tensor
        for name, tensor in packed.items()
    }
    first = trained(policy_folder, config, packed, tmp_path / "first")
    assert first == trained(policy_folder, config, packed, tmp_path / "second")
    assert first == trained(policy_folder, config, shuffled, tmp_path / "shuffled")

    for threads in (1, 3):
        monkeypatch.setattr(policy_module, "SIDE_BY_SIDE", threads)
        assert first == trained(policy_folder, config, packed, tmp_path / f"{threads} threads")


@pytest.mark.slow
@pytest.mark.parametrize(
    "lora", [LoraConfig(rank=4, alpha=8), None], ids=["adapter", "all weights"]
)
def test_a_resumed_policy_goes_on_to_the_same_bytes(
    policy_folder: Path,
    config: RlConfig,
    packed: PackedTensors,
    tmp_path: Path,
    lora: LoraConfig | None,
) -> None:
    config = config.model_copy(update={"lora": lora})
    undisturbed = Policy(policy_folder, config, 0, None)
    for name in ("1", "2", "2 without a break"):
        policy = Policy(policy_folder, config, 0, tmp_path / "1") if name == "2" else undisturbed
        rows = Rows(packed)
        everything = torch.arange(len(LENGTHS))
        policy.score(rows, [everything])
        policy.update(rows, everything)
        policy.save(tmp_path / name, "digest")
    assert file_digests(tmp_path / "2") == file_digests(tmp_path / "2 without a break")
    assert file_digests(tmp_path / "1") != file_digests(tmp_path / "2")


@pytest.mark.parametrize(
    "lora", [LoraConfig(rank=4, alpha=8), None], ids=["adapter", "all weights"]
)
def test_the_served_model_is_the_trained_one(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, lora: LoraConfig | None
) -> None:
    policy = disturbed(policy_folder, config.model_copy(update={"lora": lora}))
    served = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    row: Any = {
        name: packed[name][1:2, :120]
        for name in ("tokens", "group_ids", "parent_ids", "assistant_mask")
    }
    with torch.no_grad():
        before, own = arts_logprobs(served, row), policy.token_statistics(row)[0]
        policy.write_into(served)
        after = arts_logprobs(served, row)
    mask = row["assistant_mask"].roll(-1, dims=1)
    assert torch.allclose(after[mask], own[mask], atol=1e-5)
    assert not torch.allclose(before[mask], own[mask], atol=1e-3)


def test_bfloat16_trains_float32_adapters(
    policy_folder: Path, config: RlConfig, packed: PackedTensors
) -> None:
    dtypes = ("bfloat16", "float32")
    half, whole = (
        disturbed(policy_folder, config.model_copy(update={"dtype": name})) for name in dtypes
    )
    row: Any = {name: packed[name][:, :120] for name in ("tokens", "group_ids", "assistant_mask")}
    with torch.no_grad():
        logprobs = [policy.token_statistics(row)[0] for policy in (half, whole)]
    assert logprobs[0].dtype == torch.float32
    assert 1e-5 < float((logprobs[0] - logprobs[1]).abs().mean()) < 0.05
    rows = Rows(packed)
    everything = torch.arange(len(LENGTHS))
    half.score(rows, [everything])
    assert half.update(rows, everything)["loss/grad_norm"] > 0
    assert {group.dtype for group in half.optimizer.param_groups[0]["params"]} == {torch.float32}


UNEVEN = [50, 580, 45, 300, 90, 55, 500, 150]
PUBLISHED_CLIP = {"epsilon": 3e-4, "epsilon_high": 4e-4}


def in_bfloat16(config: RlConfig, algorithm: str) -> RlConfig:
    """Return the settings of the gpu profile that round most: an optimizer step per rollout, batches of many."""
    loss = config.loss.model_copy(update={"algorithm": algorithm, **PUBLISHED_CLIP})
    changes = {"dtype": "bfloat16", "minibatches": None, "max_batch_tokens": 10_000, "loss": loss}
    return config.model_copy(update=changes)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gspo", "grpo"])
def test_in_bfloat16_no_token_of_a_first_update_is_clipped(
    policy_folder: Path, config: RlConfig, algorithm: str
) -> None:
    packed = random_rollouts(random.Random(1), UNEVEN, 600, 600)
    for seed in range(len(UNEVEN)):  # each rollout is once the first
        rows = Rows(packed)
        policy = disturbed(policy_folder, in_bfloat16(config, algorithm))
        parts = minibatches(len(UNEVEN), None, seed)
        policy.score(rows, parts)
        assert policy.update(rows, parts[0])["loss/clip_fraction"] == 0.0


def test_a_trainer_that_scores_in_other_batches_than_it_trains_in_stops_with_the_figure(
    policy_folder: Path, config: RlConfig
) -> None:
    rows = Rows(random_rollouts(random.Random(1), UNEVEN, 600, 600))
    policy = disturbed(policy_folder, in_bfloat16(config, "grpo"))
    before = trained_weights(policy)
    policy.score(rows, [torch.arange(len(UNEVEN))])
    with pytest.raises(
        CheckFailedError,
        match=r"% of the tokens of a step's first update are outside the clip range",
    ):
        policy.update(rows, torch.tensor([0]))
    assert torch.equal(trained_weights(policy), before), "nothing is applied"


def trained_weights(policy: Policy) -> torch.Tensor:
    """Return the trained weights as one vector."""
    return torch.cat(
        [each.detach().flatten() for each in policy.model.parameters() if each.requires_grad]
    )


@pytest.mark.nightly
def test_a_sampler_that_still_serves_the_start_model_is_found_at_the_published_learning_rate(
    policy_folder: Path, config: RlConfig
) -> None:
    packed = random_rollouts(random.Random(1), [300] * 40, 600, 300)
    # So that the start model scores all rollouts: here it serves them, too
    loss = config.loss.model_copy(update={"kl_loss": 0.001})
    config = config.model_copy(update={"learning_rate": 3e-5, "loss": loss})
    policy = Policy(policy_folder, config, 0, None)
    everything = torch.arange(40)
    for _ in range(4):
        rows = Rows(packed)
        policy.score(rows, [everything])
        policy.update(rows, everything)

    for serves_the_policy in (True, False):
        rows = Rows(packed)
        policy.score(rows, [everything])
        served = (
            rows.tensors["logprobs"]
            if serves_the_policy
            else rows.tensors["reference_logprobs"].roll(1, dims=1)
        )
        again = Rows(packed)
        missing = again.tensors["logprobs"].isnan()
        noise = 1e-3 * torch.randn(served.shape, generator=torch.Generator().manual_seed(0))
        again.tensors["logprobs"] = (served + noise).where(~missing, float("nan"))
        if serves_the_policy:
            assert policy.score(again, [everything])["served_share"] == pytest.approx(1.0, abs=0.2)
        else:
            with pytest.raises(StalePolicyError, match="a server without the trained weights"):
                policy.score(again, [everything])


def test_log_probabilities_are_those_of_the_temperature_that_rollouts_are_sampled_at(
    policy_folder: Path, config: RlConfig, packed: PackedTensors
) -> None:
    row: Any = {name: packed[name][1:2, :120] for name in ("tokens", "group_ids", "assistant_mask")}
    policy = Policy(policy_folder, config.model_copy(update={"temperature": 0.5}), 0, None)
    with torch.no_grad():
        logprobs_BS, entropy_BS = policy.token_statistics(row)
        logits_SV = policy.model(row["tokens"]).logits[0] / 0.5
    expected_SV = torch.log_softmax(logits_SV, dim=-1)
    mask_S = row["assistant_mask"][0].roll(-1)
    expected_S = expected_SV.gather(1, row["tokens"][0].roll(-1)[:, None])[:, 0]
    assert torch.allclose(logprobs_BS[0][mask_S], expected_S[mask_S], atol=1e-5)
    entropies_S = -(expected_SV.exp() * expected_SV).sum(dim=-1)
    assert torch.allclose(entropy_BS[0][mask_S], entropies_S[mask_S], atol=1e-4)


@pytest.mark.parametrize(
    ("aggregation", "longer"),
    [("sequence", 1.0), ("constant", 10.0), ("token", 1.0), ("sequence_art", 0.1)],
)
def test_with_an_update_per_rollout_a_rollout_weighs_what_its_aggregation_says(
    config: RlConfig, aggregation: str, longer: float
) -> None:
    """``longer`` is the weight of a rollout of 200 sampled tokens in its update over that of one of 20."""
    rows = Rows(random_rollouts(random.Random(0), [60, 600], 256, 600))
    loss = config.loss.model_copy(update={"aggregation": aggregation})
    weights = []
    for row in range(2):
        rows.weigh(torch.tensor([row]), loss, 600)
        weights.append(float(rows.tensors["token_weights"][row].sum()))
    assert weights[1] / weights[0] == pytest.approx(longer, rel=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_with_a_gradient_that_is_no_number_changes_nothing_and_names_the_tensor(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, bad: float
) -> None:
    policy = disturbed(policy_folder, config)
    rows = Rows(packed)
    policy.score(rows, [torch.arange(len(LENGTHS))])
    name, weight = next(
        (name, each) for name, each in policy.model.named_parameters() if each.requires_grad
    )
    weight.register_hook(lambda gradient: gradient.fill_(bad))
    before = {name: each.detach().clone() for name, each in policy.model.named_parameters()}
    with pytest.raises(NotFiniteError, match=f"not applied: .* is that of {name}"):
        policy.update(rows, torch.arange(len(rows.lengths_N)))
    assert all(torch.equal(each, before[name]) for name, each in policy.model.named_parameters())
    assert not policy.optimizer.state
    assert weight.grad is None


def test_weights_that_are_no_number_are_neither_scored_nor_saved(
    policy_folder: Path, config: RlConfig, packed: PackedTensors, tmp_path: Path
) -> None:
    policy = disturbed(policy_folder, config)
    weight = next(each for each in policy.model.parameters() if each.requires_grad)
    with torch.no_grad():
        weight[0] = float("nan")
    with pytest.raises(
        NotFiniteError, match=r"log-probabilities of the policy are not finite .* rollouts"
    ):
        policy.score(Rows(packed), [torch.arange(len(LENGTHS))])
    with pytest.raises(NotFiniteError, match="log-probabilities of the policy are not finite"):
        policy.update_once(Rows(packed))
    with pytest.raises(NotFiniteError, match=r"the trained weight .* is not finite"):
        policy.save(tmp_path / "saved", "start")
    assert not list(tmp_path.iterdir())


def test_an_adapter_of_another_architecture_is_named(
    policy_folder: Path, config: RlConfig, tmp_path: Path
) -> None:
    Policy(policy_folder, config, 0, None).save(tmp_path / "adapter", "digest")
    shape = {
        "hidden_size": 16,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "mlp_size": 64,
    }
    rest = {
        "rope_theta": 10000,
        "initializer_range": 0.2,
        "first_attention_norm": 1.0,
        "first_mlp_norm": 1.0,
        "context_tokens": 128,
    }
    other = build_model(
        ModelShape.model_validate({**shape, **rest}),
        AutoTokenizer.from_pretrained(policy_folder),
        0,
    )
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(
        ArtifactError, match=r"adapter does not fit .* a qwen3 with 2 layers of size 16"
    ):
        Policy(tmp_path / "other", config, 0, tmp_path / "adapter")


def test_a_seal_finds_damage_and_another_start(
    policy_folder: Path, config: RlConfig, tmp_path: Path
) -> None:
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
