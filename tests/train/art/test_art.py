"""Real runs of the loop with ART on an untrained policy: real rollouts, ART's own packing and loss, a real server."""

import asyncio
import json
import random
import types
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import art
import pytest
import torch
from art.local.backend import LocalBackend
from art.preprocessing.pack import PackedTensors
from mp_actors import move_to_child_process
from transformers import PreTrainedModel

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.core.errors import (
    ArtifactError,
    StalePolicyError,
    UnavailableError,
)
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.train.art.backend import ServiceBackend, row_trajectory, with_advantages
from deepsearch_rl.train.art.policy import Policy
from deepsearch_rl.train.art.service import EngineSampler, OwnService, make_own_trainer
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.rl import loop
from deepsearch_rl.train.rl.loop import train_policy
from deepsearch_rl.train.rl.policy_loss import ALGORITHMS, advantages
from deepsearch_rl.train.rl.rl_config import BackendConfig, LoraConfig, RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, Rollout, RolloutSampling
from deepsearch_rl.train.rl.tokens import TokenRow
from deepsearch_rl.train.rl.worker import require_engine
from tests.policies import CONTEXT_TOKENS
from tests.train.art.captured import captured_choice
from tests.worlds import World


@pytest.fixture
def config(smoke: Profile) -> RlConfig:
    changes = {
        "groups_per_step": 2,
        "group_size": 4,
        "steps": {"base": 2},
        "rewards": {"answer_format": 0.5},
    }
    section = smoke.section("rl", RlConfig)
    sizes = {
        "max_sequence_tokens": CONTEXT_TOKENS,
        "sampler": section.sampler.model_copy(update={"slots": 16}),
    }
    return section.model_copy(update={**changes, **sizes, "lora": LoraConfig(rank=4, alpha=8)})


@pytest.fixture
def task(
    policy_folder: Path, world: World, world_server: str, smoke: Profile, tmp_path: Path
) -> RlTask:
    agent = smoke.section("agent", AgentConfig)
    questions = list(read_jsonl(world.questions, Question))
    return RlTask(
        start=policy_folder,
        start_name="base",
        weights="digest",
        train=questions[:5],
        dev=questions[5:7],
        agent=agent.model_copy(update={"max_tokens": 8, "context_tokens": CONTEXT_TOKENS}),
        retrieval_url=world_server,
        scratch=tmp_path / "work",
        seed=0,
    )


@pytest.fixture
def any_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained policy answers nothing; a reward that differs between rollouts gives the loss something to do."""

    monkeypatch.setattr(loop, "reward_parts", letters)


def letters(_weights: object, trajectory: Trajectory, *_: object) -> dict[str, float]:
    return {"letters": float(len(trajectory.messages[-1].content) % 5)}


def train(task: RlTask, config: RlConfig, output: Path) -> list[TrainingStep]:
    """Train with the service in this process and return the log."""
    train_policy(task, config, make_own_trainer(task, config, in_process=True), output)
    return list(read_jsonl(output / "train_log.jsonl", TrainingStep))


REWARDS = [1.0, 0.25, 0.5, 0.0, 2.0, 0.75]
QUESTION = {"role": "user", "content": "who is it"}


def rows_of(start: Path) -> list[art.Trajectory]:
    """Return a rollout of one turn for every reward, each a word longer than the one before, as we hand it to ART."""
    chat_format = load_chat_format(start)
    prompt = chat_format.prompt_ids([QUESTION], None)
    rows: list[art.Trajectory] = []
    for reward, turn in zip(REWARDS, turns_of(chat_format), strict=True):
        logprobs = [0.0] * len(prompt) + [-1.0] * len(turn)
        mask = [0] * len(prompt) + [1] * len(turn)
        rows.append(row_trajectory(TokenRow(len(prompt), [*prompt, *turn], mask, logprobs), reward))
    return rows


def turns_of(chat_format: ChatFormat) -> list[list[int]]:
    encode = chat_format.tokenizer.encode
    texts = [" the" * (number + 1) for number in range(len(REWARDS))]
    return [encode(text, add_special_tokens=False) for text in texts]


def conversations_of(start: Path) -> list[art.Trajectory]:
    """Return the rollouts of :func:`rows_of` as ART captures them, with tokens as servers report them."""
    conversations: list[art.Trajectory] = []
    for reward, turn in zip(REWARDS, turns_of(load_chat_format(start)), strict=True):
        choice = captured_choice({"role": "assistant", "content": ""}, turn)
        items: Any = [QUESTION, choice]
        conversations.append(art.Trajectory(messages_and_choices=items, reward=reward))
    return conversations


def packed_rollouts(
    backend: LocalBackend, start: Path, rollouts: list[art.Trajectory]
) -> PackedTensors:
    """Return two groups of rollouts as a backend packs them, in the order of the rewards."""
    settings: Any = {"init_args": {"max_seq_length": CONTEXT_TOKENS}}
    model = art.TrainableModel(
        name="policy", project="p", base_model=str(start), _internal_config=settings
    )
    random.seed(0)
    packed = backend._get_packed_tensors(
        model,
        [art.TrajectoryGroup(rollouts[:2]), art.TrajectoryGroup(rollouts[2:])],
        advantage_balance=0.0,
        allow_training_without_logprobs=False,
        scale_rewards=True,
        plot_tensors=False,
        packed_sequence_length=CONTEXT_TOKENS,
        logprob_calculation_chunk_size=CONTEXT_TOKENS,
    )
    assert packed is not None
    order = packed["assistant_mask"].sum(dim=1).argsort()
    tensors: Any = {
        name: tensor[order] for name, tensor in packed.items() if isinstance(tensor, torch.Tensor)
    }
    return tensors


def test_rollouts_are_packed_as_art_packs_them(
    policy_folder: Path, config: RlConfig, tmp_path: Path
) -> None:
    config = config.model_copy(update={"max_sequence_tokens": CONTEXT_TOKENS})
    arts = LocalBackend(path=str(tmp_path))
    arts._packed_sequence_length_requires_chunk_alignment = False
    ours = ServiceBackend(config=config, in_process=True, path=str(tmp_path))
    theirs = packed_rollouts(arts, policy_folder, conversations_of(policy_folder))
    mine = packed_rollouts(ours, policy_folder, rows_of(policy_folder))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        # Every group has an id of its own, whichever it is
        if name not in ("group_ids", "parent_ids"):
            torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_packed_advantages_are_those_of_the_algorithm(
    policy_folder: Path, config: RlConfig, tmp_path: Path, algorithm: str
) -> None:
    loss = config.loss.model_copy(update={"algorithm": algorithm, "unit_advantages": False})
    config = config.model_copy(update={"loss": loss})
    backend = ServiceBackend(config=config, in_process=True, path=str(tmp_path))
    packed = packed_rollouts(backend, policy_folder, rows_of(policy_folder))
    counts = packed["assistant_mask"].sum(dim=1)
    groups = torch.tensor([0, 0, 1, 1, 1, 1])
    kind = ALGORITHMS[loss.algorithm].advantage
    expected = advantages(kind, torch.tensor(REWARDS, dtype=torch.float64), groups, counts)
    torch.testing.assert_close(
        packed["advantages"].sum(dim=1) / counts, expected.float(), rtol=0, atol=1e-5
    )


def test_a_step_without_signal_is_not_packed(config: RlConfig) -> None:
    rollout = art.Trajectory(messages_and_choices=[], reward=0.1)
    rows: Any = [
        types.SimpleNamespace(trajectory=rollout, prompt_id=2**62, assistant_mask=[0, 1])
        for _ in range(3)
    ]
    assert with_advantages(rows, config.loss) == []


@pytest.mark.slow
@pytest.mark.usefixtures("any_reward")
def test_two_steps_leave_an_adapter_a_log_and_a_server_that_follows_every_update(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    lines = train(task, config, tmp_path / "adapter")
    assert [line.step for line in lines] == [0, 1, 2]
    assert all(line.metrics["mismatch_max"] < 1e-4 for line in lines[1:])
    assert lines[2].metrics["kl"] > 0, "the second step's policy must have left the start model"
    names = {
        "reward",
        "kl",
        "clip_fraction",
        "entropy",
        "loss",
        "response_tokens",
        "tool_calls",
        "f1",
        "grad_norm",
    }
    names |= {
        "mismatch_mean",
        "mismatch_p99",
        "mismatch_corr",
        "outside_clip_positive",
        "outside_clip_negative",
    }
    assert names <= lines[1].metrics.keys()
    manifest = json.loads((tmp_path / "adapter" / "manifest.json").read_text())
    assert (manifest["device"], manifest["dtype"]) == ("cpu", "float32")
    assert "nothing to reward" in manifest["gate_warning"], "the start knows nothing"
    assert lines[2].metrics["served_share"] == pytest.approx(1.0, abs=1e-3)
    assert lines[1].metrics["overlong"] == 0
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "adapter" / "optimizer.pt").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("any_reward")
def test_serving_the_previous_steps_weights_stops_the_run(
    task: RlTask, config: RlConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_into, calls = Policy.write_into, []

    def only_once(policy: Policy, served: PreTrainedModel) -> None:
        if not calls:
            write_into(policy, served)
        calls.append(policy)

    monkeypatch.setattr(Policy, "write_into", only_once)
    large = config.model_copy(update={"learning_rate": 0.05})
    with pytest.raises(
        StalePolicyError, match=r"not sampled from the newest policy: .* rl\.max_mismatch"
    ):
        train(task, large, tmp_path / "adapter")
    assert len((task.scratch / "train_log.jsonl").read_text().splitlines()) == 2, (
        "step 1 was sampled from the start"
    )
    assert not (tmp_path / "adapter").exists()


@pytest.mark.slow
def test_a_scratch_folder_of_another_start_is_refused_and_a_damaged_checkpoint_is_passed_over(
    task: RlTask, config: RlConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config.model_copy(update={"steps": {"base": 0}})
    train(task, config, tmp_path / "adapter")
    with pytest.raises(ArtifactError, match="was trained from other weights"):
        train(replace(task, weights="another"), config, tmp_path / "adapter")
    checkpoint = next(task.scratch.rglob("0000"))
    (checkpoint / "optimizer.pt").write_bytes(b"")
    train(task, config, tmp_path / "again")
    assert f"{checkpoint} is damaged" in caplog.text


@pytest.mark.slow
def test_what_a_kill_left_of_a_checkpoint_that_was_saved_stops_no_start_and_is_removed(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    folder = task.scratch / "deepsearch-rl" / "models" / "policy" / "checkpoints"
    (folder / ".0003.partial").mkdir(parents=True)
    (folder / ".0003.partial" / "optimizer.pt").touch()
    (folder / "..0003.partial.lock").write_text("1\n")
    train(task, config.model_copy(update={"steps": {"base": 0}}), tmp_path / "adapter")
    assert [path.name for path in folder.iterdir()] == ["0000"]


@pytest.mark.slow
def test_groups_of_equal_rewards_leave_the_policy_as_it_is_and_the_run_continues(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    lines = train(task, config, tmp_path / "adapter")
    assert [line.metrics.get("trainable_groups") for line in lines[1:]] == [0.0, 0.0]


def test_a_rollout_that_is_longer_than_a_row_is_left_out_before_baselines_and_counted(
    policy_folder: Path, config: RlConfig, tmp_path: Path
) -> None:
    loss = config.loss.model_copy(update={"unit_advantages": False, "algorithm": "dr_grpo"})
    whole = ServiceBackend(
        config=config.model_copy(update={"loss": loss}),
        in_process=True,
        path=str(tmp_path / "whole"),
    )
    packed = packed_rollouts(whole, policy_folder, rows_of(policy_folder))
    lengths = (packed["group_ids"] != -1).sum(dim=1)
    longest = int(lengths.max())  # the last rollout of the second group

    changes = {"loss": loss, "max_sequence_tokens": longest - 1}
    cut = ServiceBackend(
        config=config.model_copy(update=changes), in_process=True, path=str(tmp_path / "cut")
    )
    fitting = packed_rollouts(cut, policy_folder, rows_of(policy_folder))
    assert (whole.overlong, cut.overlong) == (0, 1)
    mean = sum(REWARDS[2:-1]) / len(REWARDS[2:-1])
    last = fitting["advantages"][fitting["assistant_mask"].any(dim=1)][-1]
    assert float(last[last != 0][0]) == pytest.approx(REWARDS[-2] - mean, abs=1e-6)


@pytest.mark.slow
def test_a_question_that_a_step_has_twice_is_answered_anew(task: RlTask, config: RlConfig) -> None:
    trainer = make_own_trainer(task, config, in_process=True)
    question, other = task.train[:2]

    async def roll_out() -> list[list[Rollout]]:
        await trainer.start(0)
        try:
            sampling = RolloutSampling(samples=2, temperature=1.0, seed=7, trained=True)
            return await trainer.roll_out([question, other, question], sampling)
        finally:
            await trainer.close()

    groups = asyncio.run(roll_out())
    numbers = [[rollout.trajectory.sample for rollout in group] for group in groups]
    assert numbers == [[0, 1], [0, 1], [2, 3]]
    turns = {rollout.trajectory.messages[2].content for rollout in [*groups[0], *groups[2]]}
    assert len(turns) == 4, "the untrained policy writes other words with every seed"


class RecordedSampler(EngineSampler):
    """Writes a file when it is closed."""

    def close(self) -> None:
        (self.start_folder / "closed").touch()


@pytest.mark.nightly
def test_the_sampler_is_closed_in_the_process_of_its_service(
    task: RlTask, config: RlConfig, tmp_path: Path
) -> None:
    service = OwnService("policy", str(tmp_path), task, config)
    service.__dict__["_sampler"] = RecordedSampler(tmp_path, config, CONTEXT_TOKENS)
    backend = ServiceBackend(config=config, path=str(tmp_path), in_process=False)
    backend._services["policy"] = move_to_child_process(service)
    asyncio.run(backend.close())
    assert (tmp_path / "closed").is_file()


def test_a_damaged_checkpoint_is_named_with_what_to_do(task: RlTask, config: RlConfig) -> None:
    with pytest.raises(
        ArtifactError, match=rf"0003, .* is damaged.* delete {task.scratch} to train again"
    ):
        make_own_trainer(task, config, in_process=True).require_whole(3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("service", ["own", "unsloth"])
def test_a_service_on_a_gpu_that_is_not_there_is_refused_by_its_setting(
    service: Literal["own", "unsloth"],
) -> None:
    setting = "device: cuda" if service == "own" else "service: unsloth"
    with pytest.raises(UnavailableError, match=setting):
        require_engine(BackendConfig(engine="art", service=service, device="cuda"))
