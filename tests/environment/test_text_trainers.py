"""The conformance suite through ms-swift's scheduler, SkyRL-gym's environment and Agent-Lightning's agent."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.environment.adapters.ms_swift import SwiftRolloutRow, swift_rows
from deepsearch_rl.train.rewards import reward_parts
from tests.environment import text_trainers_child
from tests.environment.check_environments import (
    ROOT,
    child_lines,
    lines_by_script,
    packages_of,
)
from tests.environment.params_of import write_params
from tests.environment.scripted import (
    NEVER_FITS,
    QUESTION,
    REWARDS,
    SCRIPTS,
    Reference,
    Script,
    own_rollout,
    policy_text,
)

pytestmark = pytest.mark.slow
PLAYED = [script for script in SCRIPTS if script.name != NEVER_FITS]
Lines = dict[str, dict[str, Any]]


def play(python: str | Path, trainer: str, folder: Path, url: str, work: Path) -> Lines:
    """Return what a trainer made of each script, by its name."""
    module = "tests.environment.text_trainers_child"
    lines = child_lines(
        python,
        "-m",
        module,
        trainer,
        folder,
        url,
        work,
        paths=(packages_of(trainer), ROOT),
        # litellm, which Agent-Lightning imports, asks the internet for prices otherwise
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    return lines_by_script(lines)


def reward_of(reference: Reference, chat_format: ChatFormat) -> float:
    parts = reward_parts(REWARDS, reference.trajectory, QUESTION, policy_text(chat_format))
    return sum(parts.values())


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the params of each script."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def swift_lines(policy_folder: Path, retrieval_url: str, work: Path) -> Lines:
    """In this process: ms-swift is a part of the environment, and other tests have imported it."""
    played = text_trainers_child.lines("ms_swift", policy_folder, retrieval_url, work)
    return {line["name"]: json.loads(json.dumps(line)) for line in played}


@pytest.mark.parametrize("script", PLAYED, ids=lambda script: script.name)
def test_ms_swift_trains_on_the_agents_own_rollout(
    script: Script, swift_lines: Lines, chat_format: ChatFormat, retrieval_url: str
) -> None:
    reference = own_rollout(script, chat_format, retrieval_url)
    rows = reference.rows()
    line = swift_lines[script.name]
    if script.stop_reason == "tool_error":
        assert "EndpointError: tool_error" in line["error"]
        return
    if len(rows) > 1 and not script.tags:
        assert "history_reasoning" in line["error"]
        return

    assert "error" not in line
    assert line["stop_reason"] == script.stop_reason
    assert line["reward"] == reward_of(reference, chat_format)
    assert len(line["logprobs"]) == sum(line["mask"])
    if script.tags:
        pairs = zip(line["completion_ids"], line["mask"], strict=True)
        sampled = [token for token, is_sampled in pairs if is_sampled]
        end = chat_format.tokenizer.eos_token_id
        assert sampled == [token for turn in reference.written for token in turn if token != end]
        return
    prompt = reference.prompts[0]
    assert line["prompts"] == reference.prompts
    assert (prompt + line["completion_ids"], [0] * len(prompt) + line["mask"]) == rows[0]


@pytest.fixture(scope="module")
def skyrl_lines(policy_folder: Path, retrieval_url: str, work: Path) -> Lines:
    if not packages_of("skyrl").is_dir():
        pytest.skip("make check-trainers builds SkyRL-gym's environment")
    return play(sys.executable, "skyrl", policy_folder, retrieval_url, work)


@pytest.mark.parametrize("script", PLAYED, ids=lambda script: script.name)
def test_skyrl_reads_what_the_agents_own_rollout_reads(
    script: Script, skyrl_lines: Lines, chat_format: ChatFormat, retrieval_url: str
) -> None:
    reference = own_rollout(script, chat_format, retrieval_url)
    line = skyrl_lines[script.name]
    if script.stop_reason == "tool_error":
        assert "EndpointError: tool_error" in line["error"]
        return
    theirs = reference.trajectory
    assert "error" not in line
    assert line["stop_reason"] == script.stop_reason
    assert line["reward"] == reward_of(reference, chat_format)
    read = [message.content for message in theirs.messages if message.role == "tool"]
    assert line["observations"] == read[: len(line["observations"])]
    assert line["opening"][-1]["content"] == theirs.messages[len(line["opening"]) - 1].content
    assert line["metrics"][f"stop_{script.stop_reason}"] == 1.0
    assert line["metrics"]["cut_by_skyrl"] == 0.0
    if not script.tags:
        assert line["prompt"] == reference.prompts[0]
    assert set(line["roles"]) <= {"user" if script.tags else "tool"}
    form, limit = line["refused"]
    assert f"use_conversation_multi_turn to {str(not script.tags).lower()}." in form
    assert f"set it to agent.max_tokens, which is {script.config.max_tokens}." in limit


def test_episodes_that_skyrl_cuts_are_counted_in_its_means(skyrl_lines: Lines) -> None:
    means = [line["with_a_cut_one"] for line in skyrl_lines.values() if "error" not in line]
    assert means
    for mean in means:
        assert mean["cut_by_skyrl"] == 0.5
        assert mean["stop_token_budget"] >= 0.5
        assert sum(value for name, value in mean.items() if name.startswith("stop_")) == 1.0


def test_rows_of_ms_swift_hold_messages_tools_and_what_plays_them(
    policy_folder: Path, retrieval_url: str, tmp_path: Path
) -> None:
    script = SCRIPTS[0]
    params = write_params(tmp_path / "params.yaml", script)
    write_jsonl(tmp_path / "questions.jsonl", [QUESTION])
    (row,) = swift_rows(
        tmp_path / "questions.jsonl",
        params=params,
        model=policy_folder,
        retrieval_url=retrieval_url,
    )
    assert isinstance(row, SwiftRolloutRow)
    assert [message["role"] for message in row.messages] == ["system", "user"]
    assert row.tools[0]["function"]["name"] == "retrieve"
    assert row.deepsearch.params == str(params)
