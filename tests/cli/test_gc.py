"""`deepsearch gc` on a real project of DVC: what anything leads to can be checked out afterwards, the rest is gone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from typer.testing import CliRunner, Result

from deepsearch_rl.cli.main import app
from deepsearch_rl.core import dvc_cache
from deepsearch_rl.core.dvc_cache import find_garbage, find_users, list_objects, recorded_objects
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from flows.checkout import open_checkout
from tests.flows.conftest import empty_project, fill_project  # noqa: F401  fixtures
from tests.flows.test_checkout import nobody
from tests.repository import commit_all, git

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STAGES = {
    "model": {
        "cmd": "mkdir -p model && echo ${number} > model/weights && echo same > model/config; echo ran >> ran.log",
        "params": ["number"],
        "deps": ["code.py"],
        "outs": ["model"],
    },
    "score": {
        "cmd": "echo [$(cat model/weights)] > score.json",
        "deps": ["model"],
        "metrics": [{"score.json": {"cache": False}}],
    },
}
PARAMS = "profile: tiny\nnumber: 1\nflow: {gpu_stages: [], outside_stages: []}\n"


def dvc(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = {**os.environ, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c"}
    environment |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.c"}
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def set_number(folder: Path, number: int, params: str = "params.yaml") -> None:
    (folder / params).write_text(PARAMS.replace("number: 1", f"number: {number}"))


def gc(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["gc", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def weights(folder: Path) -> str:
    return (folder / "model" / "weights").read_text().strip()


@pytest.fixture(scope="module")
def finished(empty_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A project with committed results."""
    folder = fill_project(empty_project, tmp_path_factory.mktemp("gc") / "first", STAGES, PARAMS)
    (folder / "code.py").write_text("")
    (folder / ".gitignore").write_text(
        "/work/\n/model\n/ran.log\n/storage\n/other/model\n/elsewhere\n"
    )
    (folder / ".dvcignore").write_text("work\nelsewhere\n")
    dvc(folder, "repro")
    commit_all(folder, "the results of 1")
    return folder


@pytest.fixture
def project(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working directory."""
    shutil.copytree(finished, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_whatever_leads_to_a_result_keeps_it_and_the_rest_is_gone(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # 2: tried and given up. 3: an experiment. 4: one that waits in the queue, with results of its
    # own below it.
    set_number(project, 2)
    dvc(project, "repro")
    dvc(project, "exp", "run", "--name", "three", "--set-param", "number=3")
    git(project, "restore", ".")
    dvc(project, "checkout")
    dvc(project, "exp", "run", "--temp", "--name", "five", "--set-param", "number=5")
    dvc(project, "exp", "run", "--queue", "--name", "four", "--set-param", "number=4")
    # 6: a second profile, never committed.
    (project / "other").mkdir()
    set_number(project, 6, "other/params.yaml")
    (project / "other" / "dvc.yaml").write_text(
        yaml.safe_dump({"stages": {"model": STAGES["model"]}})
    )
    (project / "other" / "code.py").write_text("")
    dvc(project, "repro", "other/dvc.yaml")
    # 7: a worktree that shares the cache. 8: a clone of a run with other params. 9: a stash. 10: a
    # copy of an experiment that goes on, as DVC makes it.
    worktree = tmp_path_factory.mktemp("worktrees") / "seven"
    git(project, "worktree", "add", "--quiet", "--detach", str(worktree))
    clone = open_checkout(project, "tiny", "", {"number": 8}, nobody)
    copy = project / ".dvc" / "tmp" / "exps" / "tmp0123"
    git(project, "clone", "--quiet", str(project), str(copy))
    for folder, number in ((worktree, 7), (copy, 10)):
        dvc(folder, "cache", "dir", "--local", str(project / ".dvc" / "cache"))
        set_number(folder, number)
    for folder in (worktree, clone, copy):
        dvc(folder, "repro")
    set_number(project, 9)
    dvc(project, "repro", "dvc.yaml")
    git(project, "stash")
    dvc(project, "checkout", "dvc.yaml")

    before = list_objects(project / ".dvc" / "cache")
    said = gc().output
    assert "can be freed" in said
    assert "Nothing was removed" in said
    assert list_objects(project / ".dvc" / "cache") == before
    gc("--yes")
    freed = before.keys() - list_objects(project / ".dvc" / "cache").keys()
    assert len(freed) == 3, (
        "the folder of 2, its weights, and its score, which git keeps and DVC has for its run cache"
    )
    assert "0 files, and 0 entries" in gc().output

    executions = (project / "ran.log").read_text()
    for name, number in (("three", "3"), ("five", "5")):
        dvc(project, "exp", "apply", name)
        assert weights(project) == number
    git(project, "restore", ".")
    git(project, "stash", "pop")
    places = {project: "9", worktree: "7", clone: "8", copy: "10", project / "other": "6"}
    for folder, number in places.items():
        subprocess.run(["rm", "-r", str(folder / "model")], check=True)
        dvc(folder, "checkout")
        assert weights(folder) == number
    git(project, "restore", ".")
    dvc(project, "checkout")
    assert weights(project) == "1"
    set_number(project, 3)
    dvc(project, "repro", "dvc.yaml")
    assert weights(project) == "3"
    assert (project / "ran.log").read_text() == executions, (
        "what is kept is also known to the run cache"
    )
    git(project, "restore", ".")
    dvc(project, "exp", "run", "--run-all")
    dvc(project, "exp", "apply", "four")
    assert weights(project) == "4"


def test_a_result_that_nothing_leads_to_goes_only_with_yes_and_the_committed_one_stays(
    project: Path,
) -> None:
    cache = project / ".dvc" / "cache"
    committed = list_objects(cache).keys()
    set_number(project, 2)
    dvc(project, "repro")
    git(project, "restore", ".")
    given_up = list_objects(cache).keys() - committed
    gc()
    assert list_objects(cache).keys() == committed | given_up
    gc("--yes")
    assert list_objects(cache).keys() == committed
    shutil.rmtree(project / "model")
    dvc(project, "checkout")
    assert weights(project) == "1"


@pytest.mark.nightly
def test_the_remote_keeps_the_same_also_what_this_machine_never_had(
    project: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dvc(project, "remote", "add", "--default", "storage", str(project / "storage"))
    commit_all(project, "a remote")
    for number in (2, 3):
        set_number(project, number)
        dvc(project, "repro")
        dvc(project, "push")
    branch = git(project, "branch", "--show-current")
    git(project, "checkout", "--quiet", "-b", "of-three")
    commit_all(project, "the results of 3")
    git(project, "checkout", "--quiet", branch)
    dvc(project, "checkout")
    dvc(project, "push")
    subprocess.run(["rm", "-r", str(project / ".dvc" / "cache")], check=True)

    # The project has a folder scripts, this one has not
    monkeypatch.setenv("PYTHONPATH", str(root))
    assert "storage\n  can be freed: 2 files" in gc("--remote").output
    assert "storage\n  freed: 2 files" in gc("--remote", "--yes").output
    for name, number in ((branch, "1"), ("of-three", "3")):
        git(project, "checkout", "--quiet", name)
        dvc(project, "pull")
        assert weights(project) == number


def test_a_lock_file_that_cannot_be_read_removes_nothing(project: Path) -> None:
    lock = project / "dvc.lock"
    lock.write_text("<<<<<<< HEAD\n" + lock.read_text())
    with pytest.raises(
        ArtifactError, match=r"dvc\.lock cannot be read, so what it uses is not known"
    ):
        gc("--yes")


def test_a_damaged_folder_object_removes_nothing(project: Path) -> None:
    cache = project / ".dvc" / "cache"
    objects = list_objects(cache)
    (directory,) = (path for digest, path in objects.items() if digest.endswith(".dir"))
    directory.chmod(0o644)
    directory.write_text("[")
    with pytest.raises(ArtifactError, match="is damaged"):
        find_garbage(cache, objects, recorded_objects(find_users(project)))


def test_while_a_command_of_dvc_records_results_nothing_is_removed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dvc_cache, "LOCK_TIMEOUT_S", 0.1)
    with (
        FileLock(project / ".dvc" / "tmp" / "lock"),
        pytest.raises(ConfigError, match="a DVC command is working in"),
    ):
        gc("--yes")


def test_a_cache_that_others_may_use_is_collected_only_with_their_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = open_checkout(project, "tiny", "", {"number": 8}, nobody)
    monkeypatch.chdir(clone)
    with pytest.raises(
        ConfigError, match=f"uses the cache of {project}: run `deepsearch gc` there"
    ):
        gc("--yes")
    monkeypatch.chdir(project)
    dvc(project, "cache", "dir", "--local", str(project / "elsewhere"))
    with pytest.raises(ConfigError, match="other clones may use it"):
        gc("--yes")
    assert "0 files" in gc("--also", str(clone)).output
