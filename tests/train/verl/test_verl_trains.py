"""veRL's own Ray trainer on a CPU: two steps of GRPO, killed and continued, and two of PPO with a critic."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from deepsearch_rl.core.files import read_json, read_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.evaluate.report.plots import read_rl_run
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.rl.worker import train_by_engine
from tests.environment.check_environments import ROOT, interpreter_of
from tests.environment.scripted import retrieval
from tests.policies import CONTEXT_TOKENS
from tests.train.art.tagged import learn_by_heart, tags_agent, tags_task
from tests.train.verl.verl_run import train
from tests.train.verl.verl_settings import verl_config

START = ROOT / "models" / "tiny" / "sft"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not interpreter_of("verl").exists(), reason="make check-trainers builds veRL's environment"
    ),
]
needs_start = pytest.mark.skipif(not START.is_dir(), reason="the tiny profile has not trained here")


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def log_of(output: Path) -> list[TrainingStep]:
    return list(read_jsonl(output / "train_log.jsonl", TrainingStep))


def kill_after_a_checkpoint(folder: Path) -> None:
    """Start a run, and kill its process when veRL has written a whole checkpoint of step 1."""
    command = [sys.executable, "-m", "tests.train.verl.verl_run", str(folder), "grpo", "2"]
    saved = folder / "scratch" / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        while not saved.is_file() or saved.read_text() != "1":
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)


@needs_start
def test_a_killed_grpo_run_goes_on_from_its_checkpoint_and_changes_the_policy(
    tmp_path: Path,
) -> None:
    kill_after_a_checkpoint(tmp_path)
    train(tmp_path, "grpo", 2)

    lines = log_of(tmp_path / "out")
    logs = sorted(path.name for path in (tmp_path / "scratch/verl/logs").glob("*.jsonl"))
    assert logs == ["000.jsonl", "001.jsonl"]
    text = (tmp_path / "scratch/verl/logs/001.txt").read_text(encoding="utf-8")
    assert "global_step_1" in text
    assert [line.step for line in lines] == [0, 1, 2]
    assert all(line.dev_f1 is not None for line in lines)
    assert lines[2].metrics["grad_norm"] > 0
    # Observations have no log-probability of the sampler: were one of them in the mask, they would differ
    assert lines[2].metrics["mismatch_mean"] < 1e-3

    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert manifest["backend"] == "verl"
    assert read_rl_run(tmp_path / "out").manifest.gate is None
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}
    assert any(weight.any() for name, weight in adapter.items() if "lora_B" in name)
    start = AutoModelForCausalLM.from_pretrained(START, dtype=torch.float32)
    ids = torch.arange(20, 60)[None]
    before = start(ids).logits
    trained = PeftModel.from_pretrained(start, str(tmp_path / "out"))
    assert (trained(ids).logits - before).abs().max() > 1e-4


@needs_start
def test_ppo_trains_policy_and_critic(tmp_path: Path) -> None:
    train(tmp_path, "ppo", 2)
    lines = log_of(tmp_path / "out")
    assert [line.step for line in lines] == [0, 1, 2]
    for line in lines[1:]:
        assert line.metrics["grad_norm"] > 0
        assert line.metrics["critic_grad_norm"] > 0
        assert line.metrics["value_loss"] > 0
        assert line.metrics["mismatch_mean"] < 1e-3

    start = load_file(START / "model.safetensors")
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    weights = trained.state_dict()
    changed = [name for name, weight in start.items() if not torch.equal(weight, weights[name])]
    assert len(changed) > len(start) / 2
    assert max((start[name] - weights[name]).abs().max() for name in changed) < 0.1


def test_search_tags_train_and_the_samplers_tokens_are_those_of_the_mask(
    policy_folder: Path, smoke: Profile, tmp_path: Path
) -> None:
    agent = tags_agent(smoke, tmp_path)
    sizes = {"groups_per_step": 4, "group_size": 4, "steps": {"base": 1}, "epochs": 8.0}
    rewards = {"f1": 1.0, "answer_format": 0.5, "short_think": 0.1}
    dev = {"every": 1, "questions": 1, "samples": 1, "temperature": 0.7}
    config = verl_config(
        dev=dev, rewards=rewards, max_sequence_tokens=CONTEXT_TOKENS, lora=None, **sizes
    )
    with retrieval() as url:
        learn_by_heart(policy_folder, agent, url, tmp_path / "start", steps=25)
        task = tags_task(tmp_path / "start", agent, url, tmp_path / "scratch")
        task.scratch.mkdir()
        train_by_engine(task, config, tmp_path / "out")

    lines = log_of(tmp_path / "out")
    assert [line.step for line in lines] == [0, 1]
    assert lines[1].metrics["grad_norm"] > 0
    assert lines[1].metrics["mismatch_mean"] < 1e-3
    assert lines[1].metrics["rounds"] > 2, "no rollout has read an observation"
