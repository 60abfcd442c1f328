"""Start models whose chat templates cannot show what the agent does are refused before the first rollout."""

from pathlib import Path

import pytest
from trl.chat_template_utils import qwen3_chat_template

from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.train.rl.task_checks import require_template
from tests.environment.scripted import Script
from tests.policies import policy_folder

__all__ = ["policy_folder"]

CALLS = Script("calls", ())
TAGS = Script("tags", (), tags=True)
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tool role') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
WITH_TOOLS = "{{ tools | tojson }}" + PLAIN
SHOWN = "{% if m.role != 'tool' %}{{ m | tojson }}{% endif %}"
WITHOUT_RESULTS = "{{ tools | tojson }}{% for m in messages %}" + SHOWN + "{% endfor %}"


def with_template(folder: Path, template: str) -> ChatFormat:
    chat_format = load_chat_format(folder)
    chat_format.tokenizer.chat_template = template
    return chat_format


def test_a_template_with_tools_is_taken(policy_folder: Path) -> None:
    require_template(load_chat_format(policy_folder), CALLS.config, policy_folder)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        (PLAIN, "leaves out tools, calls"),
        (STRICT, "refuses them (no tool role)"),
        (WITH_TOOLS, "leaves out calls"),
        (WITHOUT_RESULTS, "leaves out their results"),
    ],
)
def test_a_template_that_cannot_show_them_is_named_with_what_to_do(
    template: str, named: str, policy_folder: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        require_template(with_template(policy_folder, template), CALLS.config, policy_folder)
    assert named in str(raised.value)
    assert str(policy_folder) in str(raised.value)
    assert "search_tags" in str(raised.value)


def test_tags_need_no_tool_role(policy_folder: Path) -> None:
    require_template(with_template(policy_folder, PLAIN), TAGS.config, policy_folder)


def with_qwen3(folder: Path) -> ChatFormat:
    chat_format = load_chat_format(folder)
    chat_format.tokenizer.chat_template = qwen3_chat_template
    return chat_format


def test_a_template_that_keeps_messages_as_written_is_taken_for_tags(policy_folder: Path) -> None:
    require_template(load_chat_format(policy_folder), TAGS.config, policy_folder)


def test_a_template_that_takes_a_message_apart_at_its_thoughts_is_named(
    policy_folder: Path,
) -> None:
    with pytest.raises(ConfigError) as raised:
        require_template(with_qwen3(policy_folder), TAGS.config, policy_folder)
    for part in (str(policy_folder), "search_tags", "function_calling", "Qwen2.5"):
        assert part in str(raised.value)


def test_qwen3s_template_is_taken_for_tool_calls_and_for_a_prompt_that_asks_for_no_thought(
    policy_folder: Path, tmp_path: Path
) -> None:
    require_template(with_qwen3(policy_folder), CALLS.config, policy_folder)
    (tmp_path / "prompt.txt").write_text("Write <search> query </search>.", encoding="utf-8")
    agent = TAGS.config.model_copy(update={"prompt": str(tmp_path / "prompt.txt")})
    require_template(with_qwen3(policy_folder), agent, policy_folder)
