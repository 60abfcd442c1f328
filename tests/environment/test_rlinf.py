"""Files for RLinf's Search-R1 example, and what RLinf itself makes of them (`make check-trainers`)."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.adapters.rlinf import RlinfRun, config_facts, main, rlinf_config
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.service import make_app
from deepsearch_rl.train.rl.rl_config import RlConfig
from tests.environment.check_environments import (
    ROOT,
    child_lines,
    interpreter_of,
    packages_of,
)
from tests.environment.params_of import write_params
from tests.environment.scripted import QUESTION, Script
from tests.search_servers import serve_app
from tests.server.searchers import engine, open_searcher, service_config

TAGS = Script("tags", (), tags=True)
QUESTIONS = [
    QUESTION,
    Question(id="q2", question="Who is née Müller?", golden_answers=("A", "B")),
]
TRAINED = {
    "rewards": {"exact_match": 1.0},
    "lora": None,
    "groups_per_step": 4,
    "group_size": 2,
    "minibatches": 2,
}


def rl_config(**changes: object) -> RlConfig:
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["rl"]
    values["loss"] |= {
        "algorithm": "grpo",
        "aggregation": "token",
        "sample_std": True,
        "unit_advantages": False,
        "truncated_importance_sampling": None,
    }
    return RlConfig.model_validate(values | TRAINED | changes)


def checkout_of(folder: Path) -> Path:
    """Make a folder that looks like RLinf's checkout."""
    example = folder / "examples/agent/searchr1/config"
    example.mkdir(parents=True)
    (example / "train_qwen2.5.yaml").write_text("runner: {}\n", encoding="utf-8")
    return folder


def written_files(
    folder: Path, policy: Path, url: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, Any]:
    """Run the documented line with the tag protocol's agent; return the config."""
    params = write_params(folder / "params.yaml", TAGS)
    values = yaml.safe_load(params.read_text(encoding="utf-8"))
    values["rl"] = rl_config().model_dump(mode="json")
    params.write_text(yaml.safe_dump(values), encoding="utf-8")
    write_jsonl(folder / "train.jsonl", QUESTIONS)
    write_jsonl(folder / "dev.jsonl", QUESTIONS[:1])

    options = {
        "params": params,
        "model": policy,
        "retrieval_url": url,
        "rlinf": checkout,
        "megatron_model": "Qwen3-0.6B",
        "output_dir": folder / "rows",
    }
    line = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    line += ["--questions", str(folder / "train.jsonl"), str(folder / "dev.jsonl")]
    monkeypatch.setattr(sys, "argv", ["rlinf", *line])
    main()
    return yaml.safe_load((folder / "rows" / "searchr1.yaml").read_text(encoding="utf-8"))


def test_a_row_is_the_prompt_in_the_models_template_with_its_answers(
    policy_folder: Path,
    retrieval_url: str,
    chat_format: ChatFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkout = checkout_of(tmp_path / "RLinf")
    config = written_files(tmp_path, policy_folder, retrieval_url, checkout, monkeypatch)

    text = (tmp_path / "rows" / "train.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["solutions"] for row in rows] == [["Mary Moss"], ["A", "B"]]
    assert all(set(row) == {"prompt", "solutions"} for row in rows)
    assert "Who directed Silent Harbor?" in rows[0]["prompt"]
    assert "<search>" in rows[0]["prompt"]

    encoded = [chat_format.tokenizer.encode(row["prompt"]) for row in rows]
    opening = chat_format.opening_ids()
    assert all(ids[-len(opening) :] == opening for ids in encoded)
    assert config["data"]["max_prompt_length"] == max(map(len, encoded))
    assert config["runner"]["seq_length"] == TAGS.config.context_tokens
    assert config["data"]["train_data_paths"] == [str(tmp_path / "rows" / "train.jsonl")]
    assert config["data"]["val_data_paths"] == [str(tmp_path / "rows" / "dev.jsonl")]
    assert config["tools"]["search"]["server_addr"] == retrieval_url.removeprefix("http://")


def run_of(tmp_path: Path, **changes: Any) -> RlinfRun:
    checkout = tmp_path / "RLinf"
    values: dict[str, Any] = {
        "rows": [tmp_path / "train.jsonl"],
        "max_prompt_tokens": 100,
        "model": tmp_path,
        "model_type": "qwen2",
        "layers": 36,
        "megatron_model": "Qwen2.5-3B",
        "top_k": 3,
        "retrieval_url": "http://10.0.0.1:8000",
        "checkout": checkout if checkout.exists() else checkout_of(checkout),
    }
    return RlinfRun(**values | changes)


@pytest.mark.parametrize(
    ("agent", "rl", "run", "named"),
    [
        (Script("calls", ()), {}, {}, "agent.protocol: function_calling"),
        (TAGS, {"rewards": {"f1": 1.0}}, {}, "rl.rewards"),
        (TAGS, {"minibatches": None}, {}, "rl.minibatches"),
        (TAGS, {"minibatches": 3}, {}, "rl.minibatches"),
        (TAGS, {"lora": {"rank": 8, "alpha": 16}}, {}, "rl.lora"),
        (TAGS, {}, {"model_type": "llama"}, "the start model of type llama"),
        (TAGS, {}, {"max_prompt_tokens": 2048}, "a prompt of 2048 tokens"),
        (TAGS, {}, {"retrieval_url": "https://search.example"}, "the address"),
        (TAGS, {}, {"retrieval_url": "http://10.0.0.1:8000/api"}, "the address"),
    ],
)
def test_what_rlinf_would_train_otherwise_is_named(
    agent: Script, rl: dict[str, Any], run: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        rlinf_config(agent.config, rl_config(**rl), run_of(tmp_path, **run))
    assert named in str(raised.value)


@pytest.mark.parametrize("changed", ["algorithm", "aggregation", "sample_std", "kl_penalty"])
def test_a_loss_that_rlinf_has_not_is_named(changed: str, tmp_path: Path) -> None:
    others = {
        "algorithm": "gspo",
        "aggregation": "sequence_art",
        "sample_std": False,
        "kl_penalty": 0.1,
    }
    loss = rl_config().loss.model_dump() | {changed: others[changed]}
    with pytest.raises(ConfigError) as raised:
        rlinf_config(TAGS.config, rl_config(loss=loss), run_of(tmp_path))
    assert f"rl.loss.{changed}" in str(raised.value)


def test_a_folder_without_the_example_and_a_model_without_a_type_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"no examples/agent/searchr1/config/train_qwen2\.5\.yaml"
    ):
        rlinf_config(TAGS.config, rl_config(), run_of(tmp_path, checkout=tmp_path / "nowhere"))
    with pytest.raises(ArtifactError, match="no model_type"):
        config_facts({"num_hidden_layers": 2}, tmp_path / "config.json")


@pytest.mark.slow
@pytest.mark.skipif(
    not packages_of("rlinf").is_dir() or not interpreter_of("verl").exists(),
    reason="make check-trainers clones RLinf, which runs on veRL's packages",
)
def test_rlinfs_own_loader_data_set_client_and_reward_take_what_was_written(
    policy_folder: Path,
    chat_format: ChatFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = Guard(token=None, loopback=True)
    app = make_app(engine(open_searcher()), service_config(), guard)
    with serve_app(app) as url:
        config = written_files(tmp_path, policy_folder, url, packages_of("rlinf"), monkeypatch)
        (line,) = child_lines(
            interpreter_of("verl"),
            ROOT / "tests" / "environment" / "rlinf_child.py",
            tmp_path / "rows",
            paths=[packages_of("rlinf")],
            folder=tmp_path,
            begin='{"',
        )

    text = (tmp_path / "rows" / "train.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(row) for row in text.splitlines()]
    prompts = [chat_format.tokenizer.encode(row["prompt"]) for row in rows]
    assert line["prompts"] == prompts
    assert line["lengths"] == [len(ids) for ids in prompts]
    assert line["answers"] == [["Mary Moss"], ["A", "B"]]
    assert line["max_new_tokens"] == TAGS.config.context_tokens - max(map(len, prompts))
    assert (line["layers"], line["model_type"], line["global_batch_size"]) == (2, "qwen3", 4)
    assert line["server"] == config["tools"]["search"]["server_addr"]

    ((answer),) = line["found"]
    assert len(answer["documents"]) == len(answer["urls"]) >= 1
    assert "capital of Austria" in answer["documents"][0]
    assert line["calls"] == [{"keyword": "capital of Austria"}]
    assert line["scores"] == [1, 0]
