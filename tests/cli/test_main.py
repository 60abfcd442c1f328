import errno
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from deepsearch_rl import __version__
from deepsearch_rl.cli.main import COMMANDS, app, load_command, main, os_problem
from deepsearch_rl.cli.shared import changed_field
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_directory, atomic_file

RUNNER = CliRunner()


def deepsearch(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The exit status or message of a command line."""
    monkeypatch.setattr(sys, "argv", ["deepsearch", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return str(ended.value.code)


def project(folder: Path) -> Path:
    (folder / "profiles" / "smoke").mkdir(parents=True)
    (folder / "profiles" / "smoke" / "params.yaml").write_text("profile: smoke\n")
    return folder


def test_help_teaches_the_commands_in_order_of_use() -> None:
    text = RUNNER.invoke(app, ["--help"]).output
    positions = [
        text.index(f"  {line}")
        for line in ("deepsearch doctor ", "make repro ", "deepsearch table ")
    ]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("option", "shown"), [("--version", __version__), ("--help", "deepsearch doctor")]
)
def test_help_and_version_load_neither_a_subcommand_nor_anything_heavy(
    option: str, shown: str
) -> None:
    code = (
        f"import sys; sys.argv[1:] = ['{option}']\n"
        "from deepsearch_rl.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    text, _, modules = output.strip().rpartition("\n")
    assert shown in text
    heavy = {"torch", "mlflow", "prefect", "dvc", "transformers", "numpy", "pydantic", "yaml"}
    assert not {"deepsearch_rl.cli.doctor", *heavy} & set(modules.split())


def test_completion_knows_the_commands_and_what_is_below_them() -> None:
    command = typer.main.get_command(app)
    for words, names in (
        ("deepsearch sc", {"score"}),
        ("deepsearch retrieve se", {"search", "serve"}),
    ):
        variables = {"_DEEPSEARCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
        output = RUNNER.invoke(app, [], prog_name=command.name, env=variables).output
        assert set(re.findall(r'"(\w+)":', output)) == names


def test_the_table_is_printed_as_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(tmp_path))
    table = tmp_path / "reports" / "smoke" / "f1_table.md"
    table.parent.mkdir(parents=True)
    table.write_text("| model | f1 |\n")
    assert RUNNER.invoke(app, ["table", "smoke"]).output == "| model | f1 |\n"


def test_a_profile_without_a_report_or_without_a_folder_is_one_paragraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project(tmp_path))
    assert deepsearch(monkeypatch, "table", "smoke").endswith(
        "`make repro PROFILE=smoke` makes it."
    )
    assert deepsearch(monkeypatch, "table", "smok").startswith(
        "error: unknown profile 'smok'. Did you mean 'smoke'?"
    )
    assert "Traceback" not in capsys.readouterr().err
    deepsearch(monkeypatch, "--debug", "table")
    assert "Traceback" in capsys.readouterr().err


def test_an_error_of_the_system_is_one_paragraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.jsonl").touch()
    build = ("retrieve", "build", "--corpus", str(tmp_path / "corpus.jsonl"), "--out")
    told = deepsearch(monkeypatch, *build, str(tmp_path / "corpus.jsonl" / "index"))
    assert told.startswith("error: ")
    assert str(tmp_path / "corpus.jsonl") in told
    assert "\n" not in told
    assert "Traceback" not in capsys.readouterr().err
    deepsearch(monkeypatch, "--debug", *build, str(tmp_path / "corpus.jsonl" / "index"))
    assert "Traceback" in capsys.readouterr().err


def test_a_package_that_is_missing_is_one_paragraph_with_the_part_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "answers.jsonl").touch()
    # Importing it now raises ModuleNotFoundError
    monkeypatch.setitem(sys.modules, "numpy", None)
    packages = ("deepsearch_rl.evaluate", "deepsearch_rl.cli.score")
    for name in [name for name in sys.modules if name.startswith(packages)]:
        monkeypatch.delitem(sys.modules, name)
    message = deepsearch(monkeypatch, "score", str(tmp_path / "answers.jsonl"))
    assert message.startswith("error: ")
    assert "numpy" in message
    assert "`pip install deepsearch-rl`" in message


def help_texts() -> Iterator[tuple[str, str]]:
    """The words of every command with its help, of groups as well."""
    yield "", typer.main.get_group(app).help or ""
    for name in COMMANDS:
        command = load_command(name)
        yield name, command.help or ""
        if isinstance(command, typer.core.TyperGroup):
            yield from (
                (f"{name} {inner}", leaf.help or "") for inner, leaf in command.commands.items()
            )


EXAMPLE = re.compile("^    (.*)$", re.MULTILINE)
WITH_EXAMPLES = [
    pytest.param(words, text, id=words) for words, text in help_texts() if EXAMPLE.search(text)
]


@pytest.mark.parametrize(("words", "text"), WITH_EXAMPLES)
def test_examples_of_a_help_text_stand_line_by_line(
    words: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    lines = [
        line.strip() for line in RUNNER.invoke(app, [*words.split(), "--help"]).output.splitlines()
    ]
    for example in EXAMPLE.findall(text):
        assert example.strip() in lines


@pytest.mark.parametrize("command", ["ask", "evaluate", "trajectories convert"])
def test_the_option_prompt_says_that_it_takes_names_and_paths(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    text = RUNNER.invoke(app, [*command.split(), "--help"]).output
    assert "the name of one in src/deepsearch_rl/prompts, or the path of a text file" in " ".join(
        text.replace("│", " ").split()
    )


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["retrieve", "serve", "--index", "none", "--host", ""], "--host"),
        (["retrieve", "serve", "--index", "none", "--host="], "--host"),
        (["retrieve", "serve", "--index", "none", "--token-variable", ""], "--token-variable"),
        (["ask", ""], "QUESTION"),
    ],
)
def test_an_empty_value_is_one_paragraph_that_names_its_option(
    command: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = deepsearch(monkeypatch, *command)
    assert message.startswith(f"error: {named}: ")
    assert "\n" not in message


class _Settings(BaseModel):
    host: str = Field(min_length=1)


@pytest.mark.parametrize("failure", [lambda: _Settings(host=""), lambda: int("x")])
def test_an_error_about_no_value_of_the_command_line_keeps_its_traceback(
    failure: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["deepsearch", "table"])
    monkeypatch.setattr("deepsearch_rl.cli.main.app", failure)
    with pytest.raises(ValueError, match=r"host|invalid literal"):
        main()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_taken_for_that_of_the_working_directory(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write's error names no file, and the file may be on another disk."""

    def fail() -> None:
        raise OSError(number, "No space left on device")

    monkeypatch.setattr("deepsearch_rl.cli.main.app", fail)
    message = deepsearch(monkeypatch, "table")
    assert "the disk is full (while writing)" in message
    assert str(Path.cwd()) not in message


def test_a_changed_field_that_is_no_yaml_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^-S rl\.seed: "):
        changed_field("rl.seed={1: 2")


@pytest.mark.parametrize(
    "line",
    [
        "explain runs.jsonl --page FOLDER",
        "trajectories convert runs.jsonl FOLDER --to trl",
        "evaluate --model m --out FILE",
        "model convert actor FILE --from verl-fsdp --start base --python python",
        "retrieve build --corpus corpus.jsonl --out FILE",
        "retrieve import vectors.npy --corpus corpus.jsonl --out FILE",
    ],
)
def test_every_command_that_computes_checks_its_target_first(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    Path("FOLDER").mkdir()
    result = RUNNER.invoke(app, line.split())
    assert result.exit_code == 2
    assert re.search("is a (file|directory)", result.output)


def test_an_error_while_writing_names_what_was_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught, atomic_file(tmp_path / "folder") as partial:
        partial.touch()
    assert os_problem(caught.value).startswith(f"{tmp_path}/folder cannot be written: Is a dir")

    with atomic_directory(tmp_path / "index") as partial:
        names = [partial.name, f".{partial.name}.lock"]
    for name in names:
        refused = OSError(errno.EACCES, "Permission denied", str(tmp_path / name))
        assert os_problem(refused).startswith(f"{tmp_path}/index cannot be written: Permission")

    other = OSError(errno.EACCES, "Permission denied", "questions.jsonl")
    assert os_problem(other) == str(other)


OF_A_PROFILE = (
    "table",
    "summary smoke",
    "plan",
    "preflight gpu",
)


@pytest.mark.parametrize("line", OF_A_PROFILE)
@pytest.mark.parametrize("is_inside", [True, False])
def test_the_top_folder_is_named(
    line: str, is_inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project" / "docs"
    folder.mkdir(parents=True)
    if is_inside:
        (tmp_path / "project" / ".dvc").mkdir()
    monkeypatch.chdir(folder)
    result = RUNNER.invoke(app, line.split())
    assert isinstance(result.exception, ConfigError), result.output
    expected = f"run this in {tmp_path / 'project'}." if is_inside else "top folder of a clone"
    assert expected in str(result.exception)
