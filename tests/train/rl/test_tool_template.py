"""Start models whose chat templates show no tools, calls or results are refused before the first rollout."""

from pathlib import Path

import pytest

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
