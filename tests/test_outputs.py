"""What is not written over: a file that is read, and a folder with files."""

from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.outputs import require_another_file, require_new_folder


def test_a_file_that_is_read_is_not_written_whatever_its_path(tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    source.touch()
    (tmp_path / "link").symlink_to(source)
    for out in (source, tmp_path / "link"):
        with pytest.raises(ConfigError, match="is the source itself"):
            require_another_file(out, [tmp_path / "missing.jsonl", source])

    (tmp_path / "other.jsonl").touch()
    require_another_file(tmp_path / "other.jsonl", [source, tmp_path / "missing.jsonl"])
    require_another_file(tmp_path / "new.jsonl", [source])


def test_a_new_or_an_empty_folder_is_written_and_another_one_is_not(tmp_path: Path) -> None:
    require_new_folder(tmp_path / "new")
    require_new_folder(tmp_path)

    (tmp_path / "notes.txt").touch()
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match="exists already; remove it, or name another folder"):
            require_new_folder(path)
