"""What a command shall write is checked before it computes."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.targets import os_problem, writable_file, writable_folder
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_directory, atomic_file


def test_a_target_that_can_be_written_is_returned_also_where_its_folders_are_new(
    tmp_path: Path,
) -> None:
    for path in (tmp_path / "page.html", tmp_path / "new" / "folder" / "page.html"):
        assert writable_file(path) == path
        assert writable_folder(path) == path
    assert (writable_file(None), writable_folder(None)) == (None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_file_and_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"is a folder; name a file in it\."):
        writable_file(tmp_path)
    with pytest.raises(ConfigError, match=r"file is a file; name a folder\."):
        writable_folder(file)
    with pytest.raises(ConfigError, match=r"page\.html cannot be written: .*file is a file"):
        writable_file(file / "new" / "page.html")


def test_a_folder_without_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root, who runs tests in containers, may write anywhere
    monkeypatch.setattr(os, "access", lambda *_: False)
    for check in (writable_file, writable_folder):
        with pytest.raises(ConfigError, match=rf"you may not write in {tmp_path}"):
            check(tmp_path / "out")


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
    error = CliRunner().invoke(app, line.split()).exception
    assert isinstance(error, ConfigError)
    assert "; name a f" in str(error)


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
