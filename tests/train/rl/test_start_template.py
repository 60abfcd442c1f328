"""Start models whose chat templates rewrite a text in tags are refused before the first rollout."""

from pathlib import Path

import pytest
from trl.chat_template_utils import qwen3_chat_template

from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.train.rl.task_checks import require_template
from tests.environment.scripted import Script

CALLS = Script("calls", ()).config
TAGS = Script("tags", (), tags=True).config


def with_qwen3(folder: Path) -> ChatFormat:
    chat_format = load_chat_format(folder)
    chat_format.tokenizer.chat_template = qwen3_chat_template
    return chat_format


def test_a_template_that_writes_messages_as_they_are_is_taken(policy_folder: Path) -> None:
    require_template(load_chat_format(policy_folder), TAGS, policy_folder)


def test_a_template_that_takes_a_message_apart_at_its_thoughts_is_named(
    policy_folder: Path,
) -> None:
    with pytest.raises(ConfigError) as raised:
        require_template(with_qwen3(policy_folder), TAGS, policy_folder)
    for part in (str(policy_folder), "search_tags", "function_calling", "Qwen2.5"):
        assert part in str(raised.value)


def test_it_is_taken_for_tool_calls_and_for_a_prompt_that_asks_for_no_thought(
    policy_folder: Path, tmp_path: Path
) -> None:
    require_template(with_qwen3(policy_folder), CALLS, policy_folder)
    (tmp_path / "prompt.txt").write_text("Write <search> query </search>.", encoding="utf-8")
    agent = TAGS.model_copy(update={"prompt": str(tmp_path / "prompt.txt")})
    require_template(with_qwen3(policy_folder), agent, policy_folder)
