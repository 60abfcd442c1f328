"""The prompts, and what the shortest of them costs."""

from pathlib import Path

import pytest

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import load_prompt, prompt_title
from deepsearch_rl.core.errors import ArtifactError, UnknownNameError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.toy.pretrained_model import world_tokenizer


@pytest.mark.parametrize(
    "name",
    ["multihoprag", "multihoprag_nothink", "multihoprag_thinking", "multihoprag_published", "tiny"],
)
def test_every_prompt_asks_for_an_answer_between_tags(name: str) -> None:
    assert "<answer>" in load_prompt(name)


def test_an_unknown_prompt_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'multihoprag_nothink'"):
        load_prompt("multihoprag_no_think")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("tiny", "tiny"),
        ("src/deepsearch_rl/prompts/tiny.txt", "tiny"),
        ("models/tiny/prompt/prompt.txt", "models/tiny/prompt/prompt.txt"),
    ],
)
def test_tables_call_a_prompt_of_ours_by_its_name_and_another_by_its_path(
    name: str, title: str
) -> None:
    assert prompt_title(name) == title


def test_a_prompt_can_be_a_file_that_a_stage_made(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Search twice.\n")
    assert load_prompt(f"{tmp_path}/prompt.txt") == "Search twice."


@pytest.mark.parametrize("content", [None, b" \n", b"\xff"])
def test_a_prompt_file_that_is_missing_empty_or_no_text_is_named_with_what_to_do(
    content: bytes | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "prompt.txt").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"prompt\.txt.*run the stage that makes it"):
        load_prompt(f"{tmp_path}/prompt.txt")


def test_settings_are_valid_before_the_stage_that_makes_their_prompt_has_run(
    root: Path, tmp_path: Path
) -> None:
    params = load_profile(root / "params.yaml")
    agent = params.section("agent", AgentConfig).model_dump() | {"prompt": f"{tmp_path}/prompt.txt"}
    config = AgentConfig.model_validate(agent)
    (tmp_path / "prompt.txt").write_text("Search twice.")
    first = config.rollout_fingerprint()
    (tmp_path / "prompt.txt").write_text("Search three times.")
    assert config.rollout_fingerprint() != first, "a changed prompt is another rollout"


def test_the_tiny_prompt_has_at_most_25_words_and_its_system_block_stays_under_150_tokens() -> None:
    assert len(load_prompt("tiny").split()) <= 25
    tokenizer = world_tokenizer(load_prompt("tiny"), 400, 2048)
    messages = [{"role": "system", "content": load_prompt("tiny")}]
    text = tokenizer.apply_chat_template(messages, tools=[RETRIEVE_TOOL], tokenize=False)
    assert len(tokenizer.encode(str(text))) < 150
