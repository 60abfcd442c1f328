"""Artifacts travel between machines through DVC's remote."""

import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from flows import stage_run
from flows.reproduce import reproduce
from tests.flows.conftest import MakeProject
from tests.repository import commit_all, git

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]

STAGES = {
    "write": {
        "cmd": "mkdir number && cp seven number/number.txt",
        "deps": ["seven"],
        "outs": ["number"],
    },
    "copy": {"cmd": "cp number/number.txt copy.txt", "deps": ["number"], "outs": ["copy.txt"]},
}


@pytest.fixture
def project(make_project: MakeProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose DVC has a remote, a folder in place of a bucket."""
    folder = make_project(STAGES)
    (folder / ".gitignore").write_text("/work/\n/number\n/copy.txt\n")
    (folder / "uv.lock").touch()
    (folder / "seven").write_text("7\n")
    remote = tmp_path_factory.mktemp("remote")
    (folder / ".dvc" / "config").write_text(
        f"[core]\n    remote = storage\n['remote \"storage\"']\n    url = {remote}\n"
    )
    commit_all(folder, "first")
    return folder


def remote_of(project: Path) -> Path:
    return Path((project / ".dvc" / "config").read_text().rpartition("url = ")[2].strip())


def test_what_a_run_made_is_restored_on_another_machine_and_in_a_clone_without_the_remote(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reproduce() == {"write": "Completed", "copy": "Completed"}
    other = tmp_path_factory.mktemp("other") / "clone"
    git(project, "clone", "--quiet", str(project), str(other))
    with monkeypatch.context() as patch:
        patch.chdir(other)
        assert reproduce() == {"write": "Restored", "copy": "Restored"}
    assert (other / "copy.txt").read_text() == "7\n"

    # A run in a clone has the project's cache
    shutil.rmtree(remote_of(project))
    assert reproduce(revision="HEAD") == {"write": "Restored", "copy": "Restored"}
    subprocess.run(["git", "diff", "--exit-code"], cwd=project, check=True)


def test_a_remote_that_is_away_delays_the_run_and_fails_no_stage(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remote = remote_of(project)
    shutil.rmtree(remote)
    remote.write_text("a file, where DVC can neither read nor write objects")
    monkeypatch.setattr(stage_run, "PUSH_BACKOFF_S", 0.1)
    monkeypatch.setattr(stage_run, "PUSH_ATTEMPTS", 2)
    with caplog.at_level(logging.INFO):
        assert reproduce(targets=("write",)) == {"write": "Completed"}
    assert "the push of write failed (attempt 1)" in caplog.text
    assert "NOT PUSHED to DVC's remote" in caplog.text
