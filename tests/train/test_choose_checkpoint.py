"""SFT's checkpoint by dev score: real searches, real adapters; what they answer follows a script, or is their own."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.core.files import read_json, read_jsonl, sha256_file, write_json, write_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.serve.launch import ServingConfig
from deepsearch_rl.train import choose_on_dev as on_dev
from deepsearch_rl.train.choose_checkpoint import (
    DevQuestions,
    choose_without_rollouts,
    copy_adapter,
)
from deepsearch_rl.train.choose_on_dev import DevRollouts, choose_on_dev
from deepsearch_rl.train.curves import CurveLine, TrainingStep, curve_path, recorded_curve
from tests.evaluate.chat import KEY, says, searches, serve_chat
from tests.model_servers import CPU_SERVING
from tests.policies import CONTEXT_TOKENS
from tests.search_servers import serve_index_here
from tests.settings import AGENT, RETRIEVAL
from tests.worlds import World

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def rollouts(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> DevRollouts:
    monkeypatch.setenv("DEV_TEST_KEY", KEY)
    monkeypatch.setattr(on_dev, "serve_index", serve_index_here)
    questions = [
        Question(id=f"q{n}", question=f"Who is {n}?", golden_answers=(f"person {n}",))
        for n in range(6)
    ]
    write_jsonl(tmp_path / "dev.jsonl", questions)
    setting = RolloutSetting(
        questions=tmp_path,
        index=world.index,
        chunks=world.chunks,
        agent=AGENT.model_copy(update={"context_tokens": CONTEXT_TOKENS}),
        retrieval=RETRIEVAL,
        seed=0,
    )
    plan = DevQuestions(dataset="towns", questions=4, samples=1, temperature=0.7)
    return DevRollouts(plan, 1.0, setting, ServingConfig.model_validate(CPU_SERVING))


@pytest.fixture
def trained(tmp_path: Path, policy_folder: Path) -> Path:
    """What `train_adapter` leaves: LoRAs of the steps 2, 4 and 5, and a log without the last one."""
    base = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
    settings: dict[str, Any] = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(base, peft.LoraConfig(**settings, init_lora_weights=False))
    folder = tmp_path / "sft_checkpoints"
    for step in (2, 4, 5):
        torch.nn.init.normal_(
            next(weights for name, weights in model.named_parameters() if "lora_B" in name)
        )
        model.save_pretrained(str(folder / str(step)))
    lines = [{"step": step, "loss": 1.0 / step} for step in (2, 4)]
    write_jsonl(folder / "train_log.jsonl", map(TrainingStep.model_validate, lines))
    write_json(folder / "manifest.json", {"steps": 5})
    return folder


def describe_endpoints(folder: Path, base_url: str) -> None:
    """Have each checkpoint answered by a scripted server, under the model name of its step."""
    for checkpoint in filter(Path.is_dir, folder.iterdir()):
        endpoint = {
            "base_url": base_url,
            "model": checkpoint.name,
            "api_key_variable": "DEV_TEST_KEY",
        }
        write_json(checkpoint / "endpoint.json", endpoint)


def answers(right: dict[str, int]) -> Callable[[dict[str, Any]], dict[str, Any] | int]:
    """Models that search and then know the first so many questions, by name."""

    def reply(body: dict[str, Any]) -> dict[str, Any] | int:
        messages = body["messages"]
        if messages[-1]["role"] == "user":
            return searches("a person")
        number = int(
            next(message["content"] for message in messages if message["role"] == "user")[7]
        )
        return says(
            f"<answer> person {number if number < right[body['model']] else 'nobody'}</answer>"
        )

    return reply


@pytest.mark.slow
def test_the_checkpoint_that_answers_best_is_left_and_all_scores_are_in_log_manifest_and_curve(
    rollouts: DevRollouts, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "sft_adapter"
    with serve_chat(answers({"2": 0, "4": 4, "5": 2})) as chat:
        describe_endpoints(trained, chat.endpoint.base_url)
        with recorded_curve(curve_path(tmp_path / "work", "choose_checkpoint-0123456789ab")):
            scores = choose_on_dev(rollouts, trained, out, tmp_path / "work")
    assert scores == {2: 0.5, 4: 1.0, 5: 0.75}, "'person nobody' has half of 'person 0'"
    assert sorted(path.name for path in out.iterdir()) == [
        "adapter_config.json", WEIGHTS, "manifest.json", "train_log.jsonl",
    ]  # fmt: skip
    assert sha256_file(out / WEIGHTS) == sha256_file(trained / "4" / WEIGHTS)
    manifest = read_json(out / "manifest.json")
    assert manifest == {
        "steps": 5,
        "best_step": 4,
        "dev_f1": {"2": scores[2], "4": 1.0, "5": scores[5]},
    }
    lines = [line.model_dump() for line in read_jsonl(out / "train_log.jsonl", TrainingStep)]
    assert [(line["step"], line.get("loss"), line["eval_dev_f1"]) for line in lines] == [
        (2, 0.5, scores[2]), (4, 0.25, 1.0), (5, None, scores[5]),
    ]  # fmt: skip
    [path] = (tmp_path / "work" / "curves").iterdir()
    *steps, end = read_jsonl(path, CurveLine)
    assert end.end == "FINISHED"
    assert [(line.step, line.metrics["eval_dev_f1"]) for line in steps] == [*scores.items()]
    with pytest.raises(ArtifactError, match="no checkpoints to choose from"):
        choose_on_dev(rollouts, out, tmp_path / "again", tmp_path / "work")


@pytest.mark.slow
def test_a_choice_that_was_cut_off_asks_only_what_is_missing_and_the_earliest_of_equals_is_left(
    rollouts: DevRollouts, trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "sft_adapter"
    reply, is_down = answers({"2": 1, "4": 3, "5": 3}), True
    with serve_chat(lambda body: 500 if is_down and body["model"] == "5" else reply(body)) as chat:
        describe_endpoints(trained, chat.endpoint.base_url)
        with pytest.raises(EndpointError):
            choose_on_dev(rollouts, trained, out, tmp_path / "work")
        assert not out.exists()
        is_down, before = False, len(chat.requests)
        choose_on_dev(rollouts, trained, out, tmp_path / "work")
        assert {body["model"] for body in chat.requests[before:]} == {"5"}
    assert read_json(out / "manifest.json")["best_step"] == 4


@pytest.mark.nightly
@pytest.mark.parametrize("interpolation", [1.0, 0.5])
def test_real_adapters_are_served_one_after_the_other_and_score(
    rollouts: DevRollouts, trained: Path, tmp_path: Path, interpolation: float
) -> None:
    shutil.rmtree(trained / "5")
    rollouts = replace(rollouts, interpolation=interpolation)
    scores = choose_on_dev(rollouts, trained, tmp_path / "out", tmp_path / "work")
    assert list(scores) == [2, 4]
    assert all(0 <= score <= 1 for score in scores.values())
    two, four = (tmp_path / "work" / f"{step}.jsonl" for step in (2, 4))
    assert two.read_text() != four.read_text(), "another adapter writes something else"


@pytest.mark.parametrize(
    ("by", "lowest", "step"), [("last", 2, 5), ("loss", 2, 2), ("loss", None, 5)]
)
def test_the_last_checkpoint_or_the_one_with_the_lowest_loss_goes_on(
    trained: Path, tmp_path: Path, by: Literal["last", "loss"], lowest: int | None, step: int
) -> None:
    write_json(trained / "manifest.json", {"steps": 5, "lowest_loss_step": lowest})
    out = tmp_path / "sft_adapter"
    assert choose_without_rollouts(by, 1.0, trained, out) == step
    assert sha256_file(out / WEIGHTS) == sha256_file(trained / str(step) / WEIGHTS)
    assert read_json(out / "manifest.json")["best_step"] == step
    assert sha256_file(out / "train_log.jsonl") == sha256_file(trained / "train_log.jsonl")


def test_a_loss_that_was_not_measured_and_a_checkpoint_that_is_gone_are_errors(
    trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"by is 'loss', .* set sft\.eval_share above 0"):
        choose_without_rollouts("loss", 1.0, trained, tmp_path / "out")
    write_json(trained / "manifest.json", {"steps": 5, "lowest_loss_step": 3})
    with pytest.raises(ArtifactError, match="does not hold step 3, which had the lowest loss"):
        choose_without_rollouts("loss", 1.0, trained, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interpolated_adapter_lies_its_share_of_the_way_from_the_base(
    trained: Path, tmp_path: Path, policy_folder: Path
) -> None:
    def merged(adapter: Path) -> dict[str, torch.Tensor]:
        model = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32)
        adapted: Any = peft.PeftModel.from_pretrained(model, str(adapter))
        return adapted.merge_and_unload().state_dict()

    adapter = trained / "5"
    settings = read_json(adapter / "adapter_config.json")
    settings["alpha_pattern"] = {"layers.0.self_attn.q_proj": 3.0}
    write_json(adapter / "adapter_config.json", settings)
    out = tmp_path / "sft_adapter"
    assert choose_without_rollouts("last", 0.25, trained, out) == 5

    base = AutoModelForCausalLM.from_pretrained(policy_folder, dtype=torch.float32).state_dict()
    whole, part = merged(adapter), merged(out)
    changed = [name for name in base if not torch.equal(base[name], whole[name])]
    assert len(changed) > 1
    for name, weights in base.items():
        torch.testing.assert_close(part[name], weights + 0.25 * (whole[name] - weights))


@pytest.mark.parametrize(
    "settings", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"bias": "lora_only"}]
)
def test_an_adapter_that_alpha_does_not_scale_is_not_interpolated(
    trained: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    adapter = trained / "5"
    path = adapter / "adapter_config.json"
    write_json(path, read_json(path) | settings)
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"has {name}, .* set choose_checkpoint.interpolation"):
        copy_adapter(adapter, tmp_path, 0.5)
    copy_adapter(adapter, tmp_path, 1.0)
    assert read_json(tmp_path / "adapter_config.json") == read_json(path)
