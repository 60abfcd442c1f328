"""Section ``rl`` as veRL's configuration: what is refused, and what veRL's own files and validation make of it."""

import json
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deepsearch_rl.cli.plan_sizes import SLOPES
from deepsearch_rl.cli.plan_stages import LARGEST_PADDED
from deepsearch_rl.core.errors import ConfigError, UnavailableError
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.train.curves import CurveLine, TrainingStep, recorded_curve
from deepsearch_rl.train.rl.worker import require_engine
from deepsearch_rl.train.verl.figures import VerlSteps, read_logs
from deepsearch_rl.train.verl.overrides import (
    ALGORITHMS,
    hydra_overrides,
    hydra_value,
    require_honoured,
)
from tests.environment.check_environments import ROOT, interpreter_of
from tests.policies import policy_folder
from tests.train.verl.verl_figures import ADVANTAGES, AGGREGATIONS, LOSSES
from tests.train.verl.verl_settings import CRITIC, RUN, verl_config

__all__ = ["policy_folder"]
CASES: dict[str, dict[str, Any]] = {
    **{name: {"loss": {"algorithm": name}} for name in ALGORITHMS if name != "ppo"},
    "ppo": {"loss": {"algorithm": "ppo", "kl_loss": 0.0}, "verl": {"critic": CRITIC}},
    "kl in reward": {"loss": {"algorithm": "grpo", "kl_penalty": 0.02, "kl_loss": 0.0}},
    "k1": {"loss": {"algorithm": "grpo", "kl_estimate": "k1"}},
    "k2": {"loss": {"algorithm": "grpo", "kl_estimate": "k2"}},
    "token": {"loss": {"algorithm": "gspo", "aggregation": "token", "dual_clip": 3.0}},
    "no correction": {"loss": {"algorithm": "rloo", "truncated_importance_sampling": None}},
    "full weights": {"lora": None, "dtype": "bfloat16", "gradient_checkpointing": True},
    # With an adapter, veRL's validation imports vLLM
    "eight GPUs": {
        "device": "cuda",
        "lora": None,
        "dtype": "bfloat16",
        "verl": {
            "address": "auto",
            "nodes": 2,
            "retrieval_host": "10.0.0.1",
            "gpus_per_node": 4,
            "tensor_parallel": 2,
            "strategy": "fsdp",
            "param_offload": True,
            "optimizer_offload": True,
            "attention": "flash_attention_2",
        },
    },
    "sglang": {"device": "cuda", "verl": {"rollout": "sglang"}},
}
# Rows of one to four searches, as search_r1 may have on a GPU, and its tokens of a batch
_DRAWS = random.Random(0)
LENGTHS = [
    350 + 620 * _DRAWS.choices([1, 2, 3, 4], [5, 3, 1, 1])[0] + _DRAWS.randint(0, 150)
    for _ in range(160)
]
BUDGET = 18432
REFUSED: dict[str, dict[str, Any]] = {
    "rl.patience": {"patience": 3},
    "rl.lora.layers": {"lora": {"rank": 8, "alpha": 16, "layers": 1}},
    "rl.backend.verl.save_every": {"verl": {"save_every": 7}},
    "rl.shuffle_rewards": {"shuffle_rewards": True},
    "rl.minibatches": {"minibatches": None},
    "rl.concurrency": {"concurrency": 63},
    "rl.logprob_chunk": {"logprob_chunk": 64, "max_sequence_tokens": 1024},
    "rl.loss.sample_std": {"loss": {"algorithm": "gspo", "sample_std": False}},
    "rl.loss.unit_advantages": {"loss": {"unit_advantages": True}},
    "rl.loss.aggregation": {"loss": {"aggregation": "sequence_art"}},
    "rl.backend.verl.attention": {
        "device": "cuda",
        "loss": {"algorithm": "ppo"},
        "verl": {"critic": CRITIC},
    },
    "GPUs": {"device": "cuda", "verl": {"gpus_per_node": 5}},
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_verl_cannot_honour_is_an_error_that_names_it(field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_honoured(verl_config(**REFUSED[field]))
    assert field in str(caught.value)
    assert str(caught.value).count(" has to be ") <= 1


def test_all_problems_are_named_at_once() -> None:
    config = verl_config(patience=3, shuffle_rewards=True)
    with pytest.raises(ConfigError, match=r"rl\.patience .*; rl\.shuffle_rewards"):
        hydra_overrides(config, RUN)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"loss": {"algorithm": "ppo"}}, "need each other"),
        ({"verl": {"critic": CRITIC}}, "need each other"),
        ({"verl": {"rollout": "vllm"}}, "on a cpu it is own"),
        ({"device": "cuda", "verl": {"rollout": "own"}}, "on a cpu it is own"),
        ({"verl": {"gpus_per_node": 3, "tensor_parallel": 2}}, "does not divide"),
        ({"verl": {"rollout": "nope"}}, "rollout"),
        ({"verl": {"strategy": "nope"}}, "strategy"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        verl_config(**changes)


def test_an_environment_that_is_missing_is_said_before_anything_is_read() -> None:
    backend = verl_config(verl={"python": "/nowhere/bin/python"}).backend
    with pytest.raises(UnavailableError, match=r"'/nowhere/bin/python'.*requirements/verl\.txt"):
        require_engine(backend)


def test_a_start_that_goes_on_replaces_the_steps_behind_its_checkpoint(tmp_path: Path) -> None:
    dev = "val-aux/multihoprag/f1/mean@1"
    starts = [
        [(0, {dev: 0.5}), (1, {dev: 0.6, "critic/score/mean": 1.0}), (2, {"actor/loss": 9.0})],
        [(1, {dev: 0.7}), (2, {"actor/loss": None, "actor/lr": 0.1, "perf/total": 3})],
    ]
    for number, lines in enumerate(starts):
        texts = [json.dumps({"step": step, "data": data}) + "\n" for step, data in lines]
        unfinished = '{"step": 3, "da'
        (tmp_path / f"{number:03}.jsonl").write_text("".join(texts) + unfinished)

    lines = read_logs(tmp_path, verl_config())
    assert [line.step for line in lines] == [0, 1, 2]
    assert [line.dev_f1 for line in lines] == [0.5, 0.7, None]
    assert lines[1].metrics["reward"] == 1.0
    assert lines[2].metrics == {"learning_rate": 0.1}


def entropies(*values: float) -> list[TrainingStep]:
    return [
        TrainingStep.model_validate({"step": step, "entropy": value})
        for step, value in enumerate(values)
    ]


def test_alarms_are_said_at_their_step_and_by_a_later_start_no_second_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collapsing = entropies(*[1.0] * 6, *[0.01] * 6)
    steps = VerlSteps("sft", [])
    with recorded_curve(tmp_path / "curve.jsonl"):
        for end in range(1, len(collapsing) + 1):
            taken = steps.take(collapsing[:end])
            assert [line.step for line in taken] == [end - 1]
            assert ("entropy_collapse" in caplog.text) == (end > 10), "as soon as veRL logs it"

    curve = list(read_jsonl(tmp_path / "curve.jsonl", CurveLine))
    assert [line.step for line in curve if line.alarms] == [10]
    assert steps.log.lines[-1].metrics["alarm/entropy_collapse"] == 1.0

    caplog.clear()
    again = VerlSteps("sft", collapsing)
    assert again.take(collapsing) == []
    assert again.log.lines == steps.log.lines
    assert again.log.alarms.began == steps.log.alarms.began
    assert caplog.text == ""


def test_steps_that_are_trained_again_replace_those_before_and_their_alarms() -> None:
    steps = VerlSteps("sft", entropies(*[1.0] * 6, *[0.01] * 6))
    assert steps.log.alarms.began
    healthy = entropies(*[1.0] * 6, *[0.9] * 3)
    assert [line.step for line in steps.take(healthy)] == [6, 7, 8]
    assert (steps.last, steps.log.alarms.began) == (8, [])
    assert steps.log.lines == healthy


def test_values_are_written_in_hydras_grammar() -> None:
    assert hydra_value(None) == "null"
    assert hydra_value(True) == "true"
    assert hydra_value([0.9, 0.999]) == "[0.9,0.999]"
    assert hydra_value(1e-6) == "1e-06"
    assert hydra_value("it's") == r"'it\'s'"


@pytest.fixture(scope="module")
def start(policy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose path Hydra has to be told with care."""
    folder = tmp_path_factory.mktemp("models") / "it's one, {really}"
    shutil.copytree(policy_folder, folder)
    return folder


@pytest.fixture(scope="module")
def composed(start: Path) -> dict[str, Any]:
    if not interpreter_of("verl").exists():
        pytest.skip("make check-trainers builds veRL's environment")
    run = replace(RUN, start=start)
    cases = {name: hydra_overrides(verl_config(**changes), run) for name, changes in CASES.items()}
    command = [str(interpreter_of("verl")), "-m", "tests.train.verl.verl_compose_child"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        input=json.dumps({"overrides": cases, "lengths": LENGTHS, "budget": BUDGET}),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_plan_counts_what_verl_pads(composed: dict[str, Any]) -> None:
    padded = composed["padded"]
    assert sum(padded) / sum(LENGTHS) == pytest.approx(SLOPES["padding"][1], rel=0.2)
    assert max(padded) <= LARGEST_PADDED * BUDGET


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_verl_reads_what_section_rl_says(name: str, composed: dict[str, Any], start: Path) -> None:
    config = verl_config(**CASES[name])
    verl = config.backend.verl
    assert verl is not None
    read = composed["configs"][name]
    names = composed["names"]
    actor = read["actor_rollout_ref"]["actor"]
    rollout = read["actor_rollout_ref"]["rollout"]
    loss = config.loss
    algorithm = loss.algorithm

    assert read["algorithm"]["adv_estimator"] in names["advantages"]
    assert actor["policy_loss"]["loss_mode"] in names["losses"]
    assert rollout["name"] in [*names["rollouts"], "deepsearch"]
    assert read["trainer"]["v1"]["trainer_mode"] in names["trainers"]
    assert read["algorithm"]["adv_estimator"] == ADVANTAGES.get(algorithm, "gae")
    assert actor["policy_loss"]["loss_mode"] == LOSSES.get(algorithm, "vanilla")
    aggregation = loss.aggregation or ALGORITHMS[algorithm].aggregation
    assert actor["loss_agg_mode"] == AGGREGATIONS[aggregation]
    assert actor["clip_ratio_low"] == actor["clip_ratio"] == loss.epsilon
    assert actor["clip_ratio_high"] == loss.epsilon_high
    assert actor["clip_ratio_c"] == (loss.dual_clip or 1e9)
    assert read["algorithm"]["use_kl_in_reward"] == (loss.kl_penalty > 0)
    assert (actor["use_kl_loss"], actor["kl_loss_coef"]) == (loss.kl_loss > 0, loss.kl_loss)
    assert actor["optim"]["lr"] == config.learning_rate
    assert config.minibatches is not None
    assert actor["ppo_mini_batch_size"] * config.minibatches == config.groups_per_step
    model = read["actor_rollout_ref"]["model"]
    assert model["path"] == str(start)
    assert model["lora_rank"] == (config.lora.rank if config.lora else 0)
    # Without them padded logits of a whole micro-batch are in memory
    assert model["use_fused_kernels"] == (config.backend.device == "cuda")
    correction = read["algorithm"]["rollout_correction"]
    assert correction["rollout_is"] == (loss.truncated_importance_sampling and "token")
    assert rollout["tensor_model_parallel_size"] == verl.tensor_parallel
    assert actor["fsdp_config"]["param_offload"] == verl.param_offload
    assert actor["strategy"] == read["actor_rollout_ref"]["ref"]["strategy"] == verl.strategy
    assert rollout["n"] == config.group_size
    assert rollout["agent"]["default_agent_loop"] == "deepsearch"
    assert rollout["prompt_length"] == rollout["response_length"] == RUN.context_tokens

    if verl.critic:
        assert read["critic"]["optim"]["lr"] == verl.critic.learning_rate
        assert read["critic"]["strategy"] == verl.strategy
        assert read["trainer"]["critic_warmup"] == 2


def test_each_algorithm_has_the_parts_whose_figures_are_compared() -> None:
    assert {name: ALGORITHMS[name].advantage for name in ADVANTAGES} == ADVANTAGES
    assert {n: ALGORITHMS[n].loss for n in LOSSES} == LOSSES
