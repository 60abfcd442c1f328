"""The conformance suite inside veRL's own agent loop worker, in its own environment (`make check-trainers`)."""

from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.chat.chat_format import ChatFormat
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.environment.adapters.verl import compute_score
from deepsearch_rl.environment.episode import STOPS
from deepsearch_rl.train.rewards import reward_parts
from tests.environment.check_environments import (
    child_lines,
    interpreter_of,
    lines_by_script,
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

needs_verl = pytest.mark.skipif(
    not interpreter_of("verl").exists(), reason="make check-trainers builds veRL's environment"
)


@pytest.fixture(scope="module")
def verl_lines(policy_folder: Path, retrieval_url: str) -> dict[str, dict[str, Any]]:
    lines = child_lines(
        interpreter_of("verl"),
        "-m",
        "tests.environment.verl_child",
        "tools",
        policy_folder,
        retrieval_url,
        HF_HOME=str(policy_folder),
    )
    return lines_by_script(lines)


@needs_verl
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_verl_trains_on_the_agents_own_rollout(
    script: Script,
    verl_lines: dict[str, dict[str, Any]],
    chat_format: ChatFormat,
    retrieval_url: str,
) -> None:
    line = verl_lines[script.name]
    if script.name == NEVER_FITS:
        assert "1 of 1 questions (q1) do not fit agent.context_tokens" in line["error"]
        return
    if script.stop_reason == "tool_error":
        assert "EndpointError: tool_error in a rollout of q1" in line["error"]
        return

    reference = own_rollout(script, chat_format, retrieval_url)
    trajectory = reference.trajectory
    parts = reward_parts(REWARDS, trajectory, QUESTION, policy_text(chat_format))
    scores = score_rollout(trajectory)
    assert line["reward"] == pytest.approx(sum(parts.values()))
    assert line["rewarded_at"] == (sum(parts.values()) > 0)
    assert line["figures"] == {
        **{f"reward_{name}": part for name, part in parts.items()},
        "f1": scores.f1,
        "em": scores.em,
        "searches": trajectory.tool_calls,
        **{f"stop_{reason}": float(reason == trajectory.stop_reason) for reason in STOPS},
    }
    assert line["version"] == 3
    assert line["num_turns"] == sum(message.role != "system" for message in trajectory.messages)
    assert line["logprobs"] == [-sum(mask) for _, mask in line["rows"]]

    if script.tags:
        ((ids, mask),) = line["rows"]
        sampled = [token for token, is_sampled in zip(ids, mask, strict=True) if is_sampled]
        ends = chat_format.tokenizer.eos_token_id
        written = [token for turn in reference.written for token in turn if token != ends]
        assert sampled == written
        return
    assert line["prompts"] == reference.prompts
    assert [tuple(row) for row in line["rows"]] == reference.rows()
    assert line["prompt_tokens"][0] == len(reference.prompts[0])


def test_the_reward_function_scores_the_last_answer_of_any_data_source() -> None:
    solution = "<answer> no </answer> then <answer> the Mary Moss </answer>"
    truth = {"target": ["Mary Moss"]}
    scores = compute_score("anything", solution, truth, {"index": 0}, metric="em")
    assert (scores["score"], scores["em"], scores["f1"]) == (1, 1, 1)
    assert compute_score("anything", "<answer> Mary </answer>", truth)["score"] == pytest.approx(
        2 / 3
    )
    assert compute_score("anything", "Mary Moss", truth)["score"] == 0
    thought = "<think>Maybe <answer>Mary Moss</answer></think>I cannot tell."
    assert compute_score("anything", thought, truth)["score"] == 0
