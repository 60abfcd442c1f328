"""The state of a project's folder, with real git and real DVC; every remedy is tried."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.project_state import (
    notices,
    project_problems,
    require_git,
    require_sound_project,
)

GRAPH = "stages:\n  long:\n    cmd: echo > started; cat go > text.txt\n    params: [number]\n    outs: [text.txt]\n"


def git(folder: Path, *arguments: str, fails: bool = False) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert bool(result.returncode) == fails, result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed DVC project, whose stage says that it has started and then waits."""
    folder = tmp_path_factory.mktemp("committed")
    git(folder, "init", "--quiet", "--initial-branch=main")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=folder, check=True)
    (folder / "dvc.yaml").write_text(GRAPH)
    (folder / "params.yaml").write_text("number: 1\n")
    (folder / ".gitignore").write_text("/started\n/go\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


@pytest.fixture
def project(committed: Path, tmp_path: Path) -> Path:
    """A copy of the project that a test may break."""
    return shutil.copytree(committed, tmp_path / "project")


def run_remedy(problem: str, folder: Path, begins: str) -> None:
    """Run the command between backticks in a sentence."""
    [command] = re.findall(rf"`({begins}[^`]*)`", problem)
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c", "GIT_COMMITTER_NAME": "a"}
    identity |= {
        "GIT_COMMITTER_EMAIL": "a@b.c",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = command.replace(".venv/bin/", "")
    subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=os.environ | identity,
        check=True,
        capture_output=True,
    )


def test_a_project_in_order_has_no_problems(project: Path) -> None:
    assert require_sound_project(project) == []


@pytest.mark.slow
@pytest.mark.parametrize("remedy", ["git init", r"\.venv/bin/dvc config"])
def test_an_unpacked_archive_needs_git_or_the_word_that_there_is_none(
    project: Path, remedy: str
) -> None:
    shutil.rmtree(project / ".git")
    [problem] = project_problems(project)
    assert problem.startswith(f"{project} is no git repository")
    run_remedy(problem, project, remedy)
    assert list(project_problems(project)) == []


def test_a_repository_around_an_unpacked_archive_is_not_the_projects(project: Path) -> None:
    outer = project.parent / f"{project.name}-outer"
    shutil.copytree(project, outer / "project", ignore=shutil.ignore_patterns(".git"))
    git(outer, "init", "--quiet")
    assert [problem.partition(" (")[0] for problem in project_problems(outer / "project")] == [
        f"{outer / 'project'} is no git repository"
    ]
    git(outer, "add", "--all")
    assert list(project_problems(outer / "project")) == []


def test_a_clone_of_another_owner_needs_gits_permission(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    with pytest.raises(ConfigError, match="belongs to another user") as caught:
        require_git(project)
    run_remedy(str(caught.value), project, "git config")
    require_git(project)


@pytest.mark.parametrize(
    "name", ["dvc.lock", "params.yaml", "dvc.yaml", "profiles/smoke/profile.yaml"]
)
def test_a_conflict_that_git_left_is_named_with_its_line(project: Path, name: str) -> None:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for branch, value in (("main", 1), ("other", 2), ("main", 3)):
        git(project, "switch", "--quiet", *(["--create"] if branch == "other" else []), branch)
        path.write_text(f"first: 0\nnumber: {value}\n")
        git(project, "add", "--all")
        git(project, "commit", "--quiet", "--message", f"{branch} {value}")
    assert list(project_problems(project)) == []
    git(project, "merge", "other", fails=True)
    [problem] = project_problems(project)
    assert problem.startswith(f"{name}, line 2: git left both sides of a conflict in this file.")
    run_remedy(problem, project, "git checkout")
    run_remedy(problem, project, "git add")
    assert list(project_problems(project)) == []
    assert path.read_text() == "first: 0\nnumber: 3\n"


@pytest.mark.nightly
def test_a_killed_experiment_leaves_a_detached_head_and_the_way_back_is_named(
    project: Path,
) -> None:
    (project / "notes.txt").write_text("kept\n")
    for name in ("started", "go"):
        os.mkfifo(project / name)
    command = [sys.executable, "-m", "dvc", "exp", "run", "-S", "number=2"]
    with subprocess.Popen(
        command, cwd=project, stdout=subprocess.DEVNULL, start_new_session=True
    ) as experiment:
        (project / "started").read_text()  # ends when the stage runs
        git(project, "symbolic-ref", "--quiet", "HEAD", fails=True)
        assert list(project_problems(project)) == [], "it is running"
        os.killpg(experiment.pid, signal.SIGKILL)
    [problem] = project_problems(project)
    assert problem.startswith("HEAD is detached, because a `dvc exp run` was killed")
    run_remedy(problem, project, "git switch")
    assert git(project, "symbolic-ref", "--short", "HEAD") == "main"
    assert list(project_problems(project)) == []
    assert ((project / "params.yaml").read_text(), (project / "notes.txt").read_text()) == (
        "number: 2\n",
        "kept\n",
    )
    for path in (project / ".dvc" / "tmp" / "exps").rglob("*"):
        os.utime(path, (path.stat().st_mtime - 60,) * 2)  # it was killed a minute ago
    git(project, "checkout", "--quiet", "--detach")
    assert list(project_problems(project)) == [], "detached by the user"


def test_folders_of_a_foreign_pythonpath_are_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{project / 'src'}:/opt/ros/lib")
    [notice] = notices(project)
    assert notice.startswith("PYTHONPATH names /opt/ros/lib: ")
