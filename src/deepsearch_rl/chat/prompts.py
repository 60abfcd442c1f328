"""System prompts, and the chat template.

A profile names a prompt by its file, which is then a dep of the stages that read it; commands take
its name.

``multihoprag`` is for models that think on their own, ``multihoprag_nothink`` for those that do
not, ``multihoprag_thinking`` asks for written reasoning before every search. These search again
where passages lack the answer; under ``multihoprag_published`` the model then gives up, as under
the published prompt for models that think. ``tiny`` is short enough for a model whose whole context
is a thousand tokens.
"""

from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError, look_up

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
