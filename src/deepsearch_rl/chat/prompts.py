"""System prompts, the chat template, and the digests of what a model was trained with.

A profile names a prompt by its file, which is a dep of the stages that read it; commands take its
name.

``multihoprag`` is for models that think on their own, ``multihoprag_nothink`` for those that do
not, ``multihoprag_thinking`` asks for written reasoning before every search. These search again
where passages lack the answer; under ``multihoprag_published`` the model then gives up, as under
the published prompt for models that think. ``tiny`` is short enough for a model whose whole context
is a thousand tokens.

A model learns with a system prompt, a tool schema and a chat template, and is served with them. So
rollouts and trained models carry their digests in manifests, and whoever reads them compares: an
edited prompt is a different prompt, whatever its name. A snapshot from a hub and a model behind an
endpoint have no digests, which never counts as equal.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, JsonValue, ValidationError

from deepsearch_rl.chat.chat_messages import OPEN_THINK
from deepsearch_rl.core.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.core.files import read_json
from deepsearch_rl.core.records import Record

_FOLDER = Path(__file__).parents[1] / "prompts"
# The prompt's file in a folder that the stage `optimize_prompt` made
MADE_PROMPT = "prompt.txt"


def load_prompt(name: str) -> str:
    """Return the text of a prompt, without surrounding white space.

    ``name`` is that of a prompt in this folder; or the path of a text file, or of a folder that
    `optimize_prompt` made, which has a slash or ends in ``.txt``.

    Raises:
        UnknownNameError: there is no prompt of this name.
        ArtifactError: there is no file of this path, or its text is empty or not UTF-8.
    """
    path = prompt_path(name)
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"the prompt file {path} cannot be read ({error}); run the stage that makes it."
        ) from error

    if not text:
        raise ArtifactError(f"the prompt file {path} is empty; run the stage that makes it.")
    return text


def prompt_path(name: str) -> Path:
    """Return the file of a prompt, which a stage may still have to make; raise UnknownNameError for another name."""
    if "/" in name or name.endswith(".txt"):
        path = Path(name)
        return path / MADE_PROMPT if path.is_dir() else path
    return look_up("prompt", name, {path.stem: path for path in _FOLDER.glob("*.txt")})


def prompt_title(name: str) -> str:
    """Return how tables call a prompt: by its name where it is one of this folder, otherwise by its path."""
    path = Path(name)
    is_ours = path.parent.parts[-2:] == _FOLDER.parts[-2:] and path.suffix == ".txt"
    return path.stem if is_ours else name


def load_chat_template() -> str:
    """Return the Jinja chat template of models made here: ChatML with tools, equal to ms-swift's ``hermes``."""
    return Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")


PromptPart = Literal["prompt", "tool", "template"]
# How messages and tables call the parts
PART_NAMES: Final[dict[PromptPart, str]] = {
    "prompt": "system prompt",
    "tool": "tool schema",
    "template": "chat template",
}


def text_digest(text: str) -> str:
    """Return the hex SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def tools_text(*tools: dict[str, JsonValue]) -> str:
    """Return tools as the JSON text that training rows hold; the order of keys counts, for a model reads it."""
    return json.dumps(tools, ensure_ascii=False)


class PromptDigests(Record):
    """What rollouts were made with."""

    prompt: str = Field(description="SHA-256 of the system prompt, without surrounding white space")
    tool: str = Field(
        description="SHA-256 of the tools as JSON text; of an empty list where no tool is offered"
    )

    @classmethod
    def of(cls, prompt: str, tools: str) -> Self:
        """Return the digests of a system prompt and of tools, which are given as :func:`tools_text` writes them."""
        return cls(prompt=text_digest(prompt.strip()), tool=text_digest(tools))

    def with_template(self, template: str) -> "TrainedWith":
        """Return these digests and that of a model's chat template."""
        return TrainedWith(prompt=self.prompt, tool=self.tool, template=text_digest(template))

    def other_parts(self, other: "PromptDigests") -> tuple[PromptPart, ...]:
        """Return the parts that both have and that differ."""
        ours = self.model_dump()
        theirs = other.model_dump()
        parts: list[PromptPart] = []
        for part in PART_NAMES:
            if part in ours and part in theirs and ours[part] != theirs[part]:
                parts.append(part)

        return tuple(parts)


class TrainedWith(PromptDigests):
    """What a model was trained with: ``trained_with`` in the manifest of its folder."""

    template: str = Field(
        description="SHA-256 of the chat template that rendered the conversations"
    )


def parts_text(parts: tuple[PromptPart, ...]) -> str:
    """Return the names of parts: ``system prompt and tool schema``."""
    return " and ".join(PART_NAMES[part] for part in parts)


# Of a model folder
TEMPLATE_FILE = "chat_template.jinja"
MANIFEST = "manifest.json"
TRAINED_WITH = "trained_with"


def read_trained_with(folder: Path) -> TrainedWith | None:
    """Return what the manifest of a model folder says, None where it says nothing.

    Raise ArtifactError where that is malformed.
    """
    path = folder / MANIFEST
    entry = read_json(path).get(TRAINED_WITH) if path.is_file() else None
    if entry is None:
        return None
    try:
        return TrainedWith.model_validate(entry)
    except ValidationError as error:
        raise ArtifactError(
            f"{path}: {TRAINED_WITH} is malformed ({error.errors()[0]['msg']}); run the stage that "
            "makes it again."
        ) from error


def chat_template(folder: Path) -> str:
    """Return the text of the chat template of a model folder; empty where there is none.

    Tokenizers keep it in a file of its own, older ones in their settings.
    """
    file = folder / TEMPLATE_FILE
    settings = folder / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template: Any = read_json(settings).get("chat_template") if settings.is_file() else None
    return template if isinstance(template, str) else ""


def served_with(folder: Path, prompts: PromptDigests) -> TrainedWith:
    """Return the digests of what a model is served with by an agent of these ``prompts``.

    ``folder`` holds the tokenizer: of an adapter, that is its base.
    """
    return prompts.with_template(chat_template(folder))


def require_trained_with(folder: Path, served: PromptDigests, use: str) -> None:
    """Raise ConfigError where a model was trained with other texts than it would be ``served`` with.

    ``use`` says where these come from, e.g. ``the rows in train.jsonl``. A model of which nothing
    is known passes.
    """
    trained = read_trained_with(folder)
    other = trained.other_parts(served) if trained else ()

    if other:
        raise ConfigError(
            f"{folder} was trained with another {parts_text(other)} than that of {use}: its "
            "manifest.json holds other digests. Train again from prepare_model on (`dvc repro`), "
            "or set the old text back."
        )


def prompt_opens_thought(folder: Path) -> bool:
    """Return whether the chat template of a model folder ends every prompt in an opening think tag."""
    if OPEN_THINK not in chat_template(folder):
        return False
    from deepsearch_rl.chat.chat_format import load_chat_format  # noqa: PLC0415 - most templates need no tokenizer

    return load_chat_format(folder).prompt_opens_thought()
