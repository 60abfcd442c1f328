"""The commands that write rows for other trainers, where their user made a mistake."""

import importlib
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.records import Question

# The options of each command besides params, questions, model and server
OPTIONS = {
    "ms_swift": ["--output", "rows.jsonl"],
    "rlinf": ["--output_dir", "rows", "--rlinf", "RLinf", "--megatron_model", "Qwen3-0.6B"],
    "verl": ["--output_dir", "rows"],
}

PARAMS = Path(__file__).resolve().parents[2] / "params.yaml"
ANYTHING = Question(id="q", question="Who?", golden_answers=("A",))


@pytest.fixture(autouse=True)
def _train_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a file of questions, in which the command is called."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("train.jsonl"), [ANYTHING])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_command_ends_with_one_paragraph_that_names_the_missing_params(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "missing.yaml" in message_of(name, monkeypatch, *OPTIONS[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_model_folder_that_is_missing_or_has_no_tokenizer_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*OPTIONS[name], "--params", str(PARAMS)]
    message = message_of(name, monkeypatch, *given, "--model", "models/stf")
    assert "there is no model folder models/stf" in message.replace(f"{tmp_path}/", "")

    Path("model").mkdir()
    message = message_of(name, monkeypatch, *given, "--model", "model")
    assert "model cannot be loaded" in message


@pytest.mark.parametrize("name", ["rlinf", "verl"])
def test_files_of_one_name_in_two_folders_are_refused_before_one_replaces_the_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []
    for folder in ("one", "two"):
        write_jsonl(Path(folder, "train.jsonl"), [ANYTHING])
        paths.append(f"{folder}/train.jsonl")

    message = message_of(name, monkeypatch, *OPTIONS[name], "--questions", *paths)
    assert "one/train.jsonl and of two/train.jsonl" in message


@pytest.mark.parametrize(
    ("name", "target"),
    [("rlinf", ["--output_dir", "."]), ("ms_swift", ["--output", "train.jsonl"])],
)
def test_questions_are_not_replaced_by_their_rows(
    name: str, target: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = message_of(name, monkeypatch, *OPTIONS[name], *target)
    assert "train.jsonl is the source itself" in message


def message_of(name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """Return the one paragraph that a command ends with, without params; later options replace earlier ones."""
    command = importlib.import_module(f"deepsearch_rl.environment.adapters.{name}")
    line = ["--params", "missing.yaml", "--questions", "train.jsonl", "--model", "model"]
    line += ["--retrieval_url", "http://127.0.0.1:9", *options]
    monkeypatch.setattr(sys, "argv", [name, *line])
    with pytest.raises(SystemExit) as end:
        command.main()

    message = str(end.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message
