"""Which commit a result names, and when it counts as edited."""

from pathlib import Path

import pytest

from deepsearch_rl.track.store import source_tags
from tests.repository import commit_all, git

WRITTEN = ("dvc.lock", "profiles/smoke/dvc.lock", "reports/tiny/f1_table.md")
EDITED = ("src/loop.py", "params.yaml", "profiles/smoke/profile.yaml")


def test_only_edited_sources_and_params_make_a_commit_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*WRITTEN, *EDITED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    git(tmp_path, "init", "-q")
    commit = commit_all(tmp_path, "first")

    for name in WRITTEN:
        (tmp_path / name).write_text("2")
    assert source_tags("tiny")["git.commit"] == commit
    for name in EDITED:
        (tmp_path / name).write_text("2")
        assert source_tags("tiny")["git.commit"] == f"{commit}-dirty"
        (tmp_path / name).write_text("1")


def test_outside_a_repository_and_before_its_first_commit_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "git.commit" not in source_tags("tiny")

    # As in a downloaded ZIP file, for which DVC needs a repository
    (tmp_path / "params.yaml").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "--all")
    assert "git.commit" not in source_tags("tiny")
