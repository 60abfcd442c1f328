"""What a model folder was trained with: the digests of prompt, tool schema and chat template in its manifest.

A snapshot from a hub and a model behind an endpoint have none. What they were trained with is not
known, and that is never read as equal.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deepsearch_rl.chat.prompt_digests import PromptDigests, TrainedWith, parts_text
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import read_json

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
    file = folder / "chat_template.jinja"
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
