"""The conformance suite inside the trainers themselves, in throw-away environments (`make check-trainers`)."""

import sys
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.train.rewards import reward_parts
from tests.environment.check_environments import (
    ROOT,
    child_lines,
    lines_by_script,
    packages_of,
)
from tests.environment.scripted import (
    NEVER_FITS,
    QUESTION,
    REWARDS,
    SCRIPTS,
    Script,
    own_rollout,
    policy_text,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not packages_of("trl").is_dir(), reason="make check-trainers builds TRL's environment"
    ),
]


def run_in_trl(
    *arguments: object, module: str = "tests.environment.trl_child"
) -> list[dict[str, Any]]:
    """Return the JSON lines of a process that imports TRL from its own folder."""
    return child_lines(
        sys.executable,
        "-m",
        module,
        *arguments,
        paths=(packages_of("trl"), ROOT),
        begin='{"',
        TRL_EXPERIMENTAL_SILENCE="1",
    )


@pytest.fixture(scope="module")
def trl_lines(policy_folder: Path, retrieval_url: str) -> dict[str, dict[str, Any]]:
    return lines_by_script(run_in_trl("tools", policy_folder, retrieval_url))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_trl_trains_on_the_agents_own_rollout(
    script: Script,
    trl_lines: dict[str, dict[str, Any]],
    chat_format: ChatFormat,
    retrieval_url: str,
) -> None:
    if script.name == NEVER_FITS:
        assert script.name not in trl_lines
        return
    reference = own_rollout(script, chat_format, retrieval_url)
    rows = reference.rows()
    line = trl_lines[script.name]
    if len(rows) > 1 and not script.tags:
        assert "history_reasoning" in line["error"]
        return

    trajectory = reference.trajectory
    assert line["stop_reason"] == trajectory.stop_reason
    assert line["observations"] == [
        message.content for message in trajectory.messages if message.role == "tool"
    ]
    reward = sum(reward_parts(REWARDS, trajectory, QUESTION, policy_text(chat_format)).values())
    assert line["reward"] == (None if script.stop_reason == "tool_error" else reward)
    ids = line["prompt_ids"] + line["completion_ids"]
    if script.tags:
        written = [
            token
            for turn in reference.written
            for token in turn
            if token != chat_format.tokenizer.eos_token_id
        ]
        sampled = zip(line["completion_ids"], line["mask"], strict=True)
        assert [token for token, is_sampled in sampled if is_sampled] == written
        return
    assert line["prompts"] == reference.prompts
    assert (ids, [0] * len(line["prompt_ids"]) + line["mask"]) == rows[0]


def test_trl_trains_two_steps_on_a_cpu(
    policy_folder: Path, retrieval_url: str, tmp_path: Path
) -> None:
    (line,) = run_in_trl("train", policy_folder, retrieval_url, tmp_path)
    assert len(line["log"]) == 2
    assert all(norm > 0 for norm in line["grad_norms"])
    assert line["changed"] > 0
    assert any(name.startswith("search/") for name in line["log"][0])


def test_the_documented_line_trains_with_the_tiny_params(
    policy_folder: Path, retrieval_url: str, tmp_path: Path
) -> None:
    questions = [
        QUESTION.model_copy(update={"id": str(number), "question": f"Who is {number}?"})
        for number in (1, 2)
    ]
    write_jsonl(tmp_path / "train.jsonl", questions)
    paths = {
        "params": ROOT / "params.yaml",
        "questions": tmp_path / "train.jsonl",
        "model": policy_folder,
    }
    options = {
        **paths,
        "retrieval_url": retrieval_url,
        "output_dir": tmp_path / "out",
        "max_steps": 2,
    }
    options |= {"max_completion_length": 96, "per_device_train_batch_size": 2, "num_generations": 2}
    options |= {"use_cpu": True, "bf16": False, "report_to": "none"}
    line = [text for name, value in options.items() for text in (f"--{name}", value)]
    run_in_trl(*line, module="deepsearch_rl.environment.adapters.trl")
    assert (tmp_path / "out" / "model.safetensors").is_file()
