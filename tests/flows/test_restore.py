"""`make restore` on two machines with different results of the same params: a real project of DVC, and a clone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError
from flows.restore import restore, save_workspace
from tests.flows.conftest import PROFILE, changed_stages, fill_project
from tests.repository import commit_all, git

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STAGES = {
    "base": {
        "cmd": "echo base >> ran.log; mkdir -p base && cat machine > base/weights",
        "deps": ["code.py"],
        "outs": ["base"],
    },
    "rl": {
        "cmd": "echo rl >> ran.log; echo ${number} | cat base/weights - > rl",
        "params": ["number"],
        "deps": ["base"],
        "outs": ["rl"],
    },
    "report": {
        "cmd": "mkdir -p reports/tiny; cp rl reports/tiny/f1_table.md",
        "deps": ["rl"],
        "outs": [{"reports/tiny/f1_table.md": {"cache": False}}],
    },
}


def dvc(folder: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=folder, check=True, capture_output=True
    )


def run_log(folder: Path) -> list[str]:
    return (folder / "ran.log").read_text().split()


@pytest.fixture(scope="module")
def machines(empty_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the machine "one", whose results are committed, and a clone, "two", with results of its own."""
    folder = tmp_path_factory.mktemp("machines")
    one = fill_project(empty_project, folder / "one", STAGES, f"{PROFILE}number: 8\n")
    (one / "code.py").write_text("")
    (one / "machine").write_text("one\n")
    (one / ".gitignore").write_text("/work/\n/base\n/rl\n/ran.log\n/machine\n/storage\n")
    dvc(one, "repro")
    commit_all(one, "the results of machine one")

    two = folder / "two"
    git(one, "clone", "--quiet", str(one), str(two))
    (two / "machine").write_text("two\n")
    dvc(two, "repro")
    return folder


@pytest.fixture
def project(machines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the machine "one"."""
    for name, value in {"NAME": "a", "EMAIL": "a@b.c"}.items():
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    shutil.copytree(machines, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture
def other_machine(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy of the machine "two"."""
    folder = project.parent / "two"
    monkeypatch.chdir(folder)
    assert (folder / "rl").read_text() == "two\n8\n"
    return folder


def test_a_machine_with_other_results_gets_its_own_back_and_trains_nothing(
    other_machine: Path,
) -> None:
    lock = (other_machine / "dvc.lock").read_text()
    dvc(other_machine, "exp", "run", "-S", "number=16", "--name", "sixteen")
    assert (other_machine / "rl").read_text() == "two\n16\n"
    trained = run_log(other_machine)

    sentences: list[str] = []
    restore(other_machine, "tiny", sentences.append)
    assert sentences[0].startswith("what was here is the experiment sixteen:"), (
        "it is an experiment already"
    )
    assert git(other_machine, "diff", "--name-only", "--", "params.yaml") == ""
    assert (other_machine / "reports/tiny/f1_table.md").read_text() == "two\n8\n"
    assert (other_machine / "dvc.lock").read_text() == lock
    assert changed_stages(other_machine) == set()
    assert run_log(other_machine) == trained
    dvc(other_machine, "exp", "apply", "sixteen")
    assert (other_machine / "rl").read_text() == "two\n16\n"


def test_where_dvc_has_the_committed_results_they_come_back_and_what_was_there_is_kept(
    project: Path,
) -> None:
    (project / "params.yaml").write_text(f"{PROFILE}number: 16\n")
    dvc(project, "repro")
    trained = run_log(project)

    sentences: list[str] = []
    restore(project, "tiny", sentences.append)
    assert git(project, "status", "--porcelain") == ""
    assert (project / "rl").read_text() == "one\n8\n"
    assert run_log(project) == trained
    name = sentences[0].split("`")[1].split()[-1]
    dvc(project, "exp", "apply", name)
    assert (project / "rl").read_text() == "one\n16\n"
    assert run_log(project) == trained


def test_the_committed_results_come_from_the_remote(project: Path, other_machine: Path) -> None:
    dvc(project, "remote", "add", "--default", "storage", str(project / "storage"))
    dvc(project, "push")
    dvc(other_machine, "remote", "add", "--local", "--default", "storage", str(project / "storage"))
    restore(other_machine, "tiny", lambda _: None)
    assert git(other_machine, "status", "--porcelain") == ""
    assert (other_machine / "rl").read_text() == "one\n8\n"


def test_a_stage_that_was_never_run_with_the_committed_params_is_named_and_does_not_run(
    other_machine: Path,
) -> None:
    (other_machine / "params.yaml").write_text(f"{PROFILE}number: 9\n")
    git(other_machine, "commit", "--quiet", "--message", "other params, not run", "params.yaml")
    (other_machine / "params.yaml").write_text(f"{PROFILE}number: 8\n")
    trained = run_log(other_machine)
    with pytest.raises(
        ConfigError,
        match=r"no result of the stage rl for them .*: `make repro PROFILE=tiny` runs it",
    ):
        restore(other_machine, "tiny", lambda _: None)
    assert run_log(other_machine) == trained
    assert "number: 9" in (other_machine / "params.yaml").read_text()


def test_a_workspace_is_saved_once_and_as_it_is(project: Path) -> None:
    assert save_workspace(project, "dvc.lock") == ""
    # And nothing was run with them
    (project / "params.yaml").write_text(f"{PROFILE}number: 10\n")
    (project / "note").touch()
    name = save_workspace(project, "dvc.lock")
    assert save_workspace(project, "dvc.lock") == name
    assert git(project, "status", "--porcelain") == "M params.yaml\n?? note"
    head = git(project, "rev-parse", "HEAD")
    assert (
        git(project, "diff", "--name-only", head, f"refs/exps/{head[:2]}/{head[2:]}/{name}")
        == "params.yaml"
    )
