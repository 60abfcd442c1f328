"""What a model folder says of its training, and who refuses it."""

from pathlib import Path

import pytest

from deepsearch_rl.chat.prompts import (
    PromptDigests,
    TrainedWith,
    chat_template,
    read_trained_with,
    require_trained_with,
    served_with,
    tools_text,
)
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import write_json

TOOL = {"type": "function", "function": {"name": "retrieve"}}
PROMPTS = PromptDigests.of("Search.", tools_text(TOOL))


def trained(
    folder: Path,
    prompt: str = "Search.",
    tools: str = tools_text(TOOL),
    template: str = "{{ messages }}",
) -> None:
    digests = PromptDigests.of(prompt, tools).with_template(template)
    write_json(folder / "manifest.json", {"trained_with": digests.model_dump()})
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def test_the_white_space_around_a_prompt_does_not_count_and_every_other_character_does() -> None:
    assert PromptDigests.of(" Search.\n", tools_text(TOOL)) == PROMPTS
    assert PromptDigests.of("Search!", tools_text(TOOL)).other_parts(PROMPTS) == ("prompt",)
    reordered = dict(reversed(TOOL.items()))
    assert PromptDigests.of("Search.", tools_text(reordered)).other_parts(PROMPTS) == ("tool",)


@pytest.mark.parametrize("manifest", [None, {"best_step": 3}])
def test_of_a_snapshot_nothing_is_known_and_nothing_is_refused(
    manifest: object, tmp_path: Path
) -> None:
    if manifest is not None:
        write_json(tmp_path / "manifest.json", manifest)
    assert read_trained_with(tmp_path) is None
    require_trained_with(tmp_path, served_with(tmp_path, PROMPTS), "the agent")


def test_a_manifest_that_is_malformed_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"trained_with": {"prompt": "p"}})
    with pytest.raises(ArtifactError, match=r"manifest\.json: trained_with is malformed"):
        read_trained_with(tmp_path)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"prompt": "Find."}, "another system prompt than"),
        ({"tools": "[]"}, "another tool schema than"),
        ({"template": "{{ turns }}"}, "another chat template than"),
        ({"prompt": "Find.", "tools": "[]"}, "another system prompt and tool schema than"),
    ],
)
def test_a_model_that_was_trained_with_another_text_is_refused_with_its_name_and_what_to_do(
    change: dict[str, str], names: str, tmp_path: Path
) -> None:
    trained(tmp_path, **change)
    with pytest.raises(
        ConfigError,
        match=f"{names} that of the agent.*Train again from prepare_model on.*set the old",
    ):
        require_trained_with(tmp_path, served_with(tmp_path, PROMPTS), "the agent")


def test_a_model_is_used_with_the_texts_that_it_was_trained_with(tmp_path: Path) -> None:
    trained(tmp_path)
    require_trained_with(tmp_path, served_with(tmp_path, PROMPTS), "the agent")
    assert read_trained_with(tmp_path) == TrainedWith.model_validate(
        served_with(tmp_path, PROMPTS).model_dump()
    )


def test_a_chat_template_is_read_from_its_file_or_from_the_tokenizers_settings(
    tmp_path: Path,
) -> None:
    assert chat_template(tmp_path) == ""
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "old"})
    assert chat_template(tmp_path) == "old"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert chat_template(tmp_path) == "new"
