"""Search-R1's tags on ART's service: the sampled tokens are continued, and an observation carries no loss."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from art.preprocessing.pack import packed_tensors_from_dir

from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Message, Trajectory
from deepsearch_rl.train.art import service
from deepsearch_rl.train.art.service import make_own_trainer
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.rl import loop
from deepsearch_rl.train.rl.loop import train_policy
from deepsearch_rl.train.rl.rl_config import LoraConfig, RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, Rollout, RolloutSampling
from deepsearch_rl.train.rl.tokens import TokenRow
from tests.environment.scripted import retrieval
from tests.policies import CONTEXT_TOKENS
from tests.train.art.tagged import learn_by_heart, play, tags_agent, tags_task


@pytest.fixture(scope="module")
def retrieval_url() -> Iterator[str]:
    with retrieval() as url:
        yield url


@pytest.fixture
def task(policy_folder: Path, smoke: Profile, retrieval_url: str, tmp_path: Path) -> RlTask:
    agent = tags_agent(smoke, tmp_path)
    start = tmp_path / "start"
    learn_by_heart(policy_folder, agent, retrieval_url, start)
    return tags_task(start, agent, retrieval_url, tmp_path / "work")


@pytest.fixture
def config(smoke: Profile) -> RlConfig:
    section = smoke.section("rl", RlConfig)
    changes = {
        "groups_per_step": 1,
        "group_size": 4,
        "steps": {"base": 1},
        "epochs": 1.0,
        "rewards": {"search_r1_format": 0.5},
        "max_sequence_tokens": CONTEXT_TOKENS,
        "lora": LoraConfig(rank=4, alpha=8),
        "sampler": section.sampler.model_copy(update={"slots": 4}),
    }
    return section.model_copy(update=changes)


def letters(_weights: object, trajectory: Trajectory, *_: object) -> dict[str, float]:
    """A reward that differs between rollouts, so that the update has something to do."""
    text = "".join(message.content for message in trajectory.messages)
    return {"letters": float(len(text) % 7) + trajectory.sample / 10}


@pytest.mark.slow
def test_a_rollout_is_the_environments_own_token_by_token_and_an_update_gives_observations_no_weight(
    task: RlTask,
    config: RlConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollouts: list[Rollout] = []
    packed: list[dict[str, torch.Tensor]] = []
    roll_out = service.ArtTrainer.roll_out

    async def recorded(
        trainer: Any, questions: Any, sampling: RolloutSampling
    ) -> list[list[Rollout]]:
        groups = await roll_out(trainer, questions, sampling)
        if sampling.trained:
            rollouts.extend(rollout for group in groups for rollout in group)
        return groups

    def unpacked(**where: Any) -> Any:
        tensors = packed_tensors_from_dir(**where)
        packed.append(
            {
                name: value.clone()
                for name, value in tensors.items()
                if isinstance(value, torch.Tensor)
            }
        )
        return tensors

    monkeypatch.setattr(service.ArtTrainer, "roll_out", recorded)
    monkeypatch.setattr(service, "packed_tensors_from_dir", unpacked)
    monkeypatch.setattr(loop, "reward_parts", letters)
    output = tmp_path / "adapter"
    train_policy(task, config, make_own_trainer(task, config, in_process=True), output)

    _, line = read_jsonl(output / "train_log.jsonl", TrainingStep)
    assert line.metrics["mismatch_max"] < 1e-4, "the sampler read other tokens than are trained on"
    assert line.metrics["grad_norm"] > 0
    assert line.metrics["tool_calls"] > 0
    assert line.metrics["left_out"] == 0

    rows: list[TokenRow] = [rollout.capture for rollout in rollouts]
    for rollout, row in zip(rollouts, rows, strict=True):
        played = play(task.start, task.agent, task.retrieval_url, turns(row))
        assert said(played.messages) == said(rollout.trajectory.messages)
        assert (played.row.ids, played.row.mask) == (row.ids, row.mask)
        assert row.completion_mask.count(0) > 0, "an observation has tokens"

    trained = {tuple(row.ids): row.mask for row in rows}
    lengths = (packed[0]["group_ids"] != -1).sum(dim=1).tolist()
    assert len(lengths) == len(rows)
    for number, length in enumerate(lengths):
        ids = tuple(packed[0]["tokens"][number, :length].tolist())
        assert packed[0]["assistant_mask"][number, :length].int().tolist() == trained[ids]


def said(messages: Sequence[Message]) -> list[tuple[str, str, list[str]]]:
    """Return roles, texts and searches; calls have other ids in a trajectory."""
    return [
        (message.role, message.content, [call.arguments for call in message.tool_calls])
        for message in messages
    ]


def turns(row: TokenRow) -> list[list[int]]:
    """Return the runs of tokens that the model wrote."""
    runs: list[list[int]] = [[]]
    for token, is_sampled in zip(row.ids, row.mask, strict=True):
        if is_sampled:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
