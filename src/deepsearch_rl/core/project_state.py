"""What is wrong around a project's files before anything runs; each in one sentence with its remedy.

    python -m deepsearch_rl.core.project_state

`make repro`, flows, workers and other targets of the Makefile ask before they start and end with
the first problem; `deepsearch doctor` shows all. A kill, a merge, an archive or another user leaves
the project in a state in which DVC or git would fail later, with a message about a file of theirs,
or would go on with the wrong files in silence.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from deepsearch_rl.core.dvc_lock import repair_dvc_locks
from deepsearch_rl.core.errors import ConfigError, DeepsearchError

# The folder of the project that these modules are of
SOURCES = Path(__file__).resolve().parents[3]
DVC_CONFIGS = (Path(".dvc", "config"), Path(".dvc", "config.local"))
GRAPH_FILES = ("dvc.yaml", "dvc.lock", "params.yaml", "profile.yaml")
# Files below ``.dvc/tmp/exps/run`` with the number of the process that runs an experiment in the
# project's folder.
EXPERIMENT_FILES = (Path("workspace", "workspace.json"), Path("..", "rwlock"))
# How long after DVC noted its process it may detach HEAD
DETACHING_S = 10.0
_NO_GIT = re.compile(r"^\s*no_scm\s*=\s*true\s*$", re.IGNORECASE | re.MULTILINE)
_CONFLICT = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
_PID = re.compile(r'"pid": (\d+)[,}]')
_LEFT_BRANCH = re.compile(r"^HEAD@\{(\d+)\} checkout: moving from (\S+) to ", re.MULTILINE)


def require_sound_project(root: Path) -> list[str]:
    """Repair DVC's lock files, and return in sentences what a user should know.

    Raises:
        ConfigError: the first problem of the project, or a lock file that cannot be repaired now.
    """
    for problem in project_problems(root):
        raise ConfigError(problem)
    return [*repair_dvc_locks(root), *notices(root)]


def require_git(root: Path) -> None:
    """Raise ConfigError where git cannot say which commit the project at ``root`` is of."""
    problem = _git_problem(root.resolve())
    if problem:
        raise ConfigError(problem)


def project_problems(root: Path) -> Iterator[str]:
    """Yield what must be put right before the graph of the project at ``root`` can run, a sentence each."""
    root = root.resolve()
    yield from filter(None, [_git_problem(root)])
    yield from _conflicts(root)
    yield from filter(None, [_killed_experiment(root)])


def notices(root: Path) -> list[str]:
    """Return what is good to know and hinders nothing."""
    # An empty PYTHONPATH names no folder; "".split would name the working directory
    value = os.environ.get("PYTHONPATH")
    names = value.split(os.pathsep) if value else []
    foreign: list[str] = []
    for folder in [Path(name).resolve() for name in names]:
        if not _is_inside(folder, (root.resolve(), SOURCES)):
            foreign.append(str(folder))

    if not foreign:
        return []
    return [
        f"PYTHONPATH names {', '.join(foreign)}: modules there are used only where neither the "
        "project nor its environment has one of that name. `unset PYTHONPATH` leaves them out."
    ]


def _is_inside(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _git(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # Its messages are translated otherwise
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        ["git", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def _git_problem(root: Path) -> str | None:
    """Return why git cannot say which commit this is."""
    if not any((root / name).is_file() for name in DVC_CONFIGS) or _is_without_git(root):
        return None
    if shutil.which("git") is None:
        return "git is not installed, which DVC and reports need: install it, on Debian with `apt-get install git`."

    top = _git(root, "rev-parse", "--show-toplevel")
    if "dubious ownership" in top.stderr:
        return (
            f"git refuses to read {root}, which belongs to another user, and so reports would name "
            f"no commit: run `git config --global --add safe.directory {root}`, or make the folder "
            "yours with `chown`."
        )

    if top.returncode == 0:
        is_own = Path(top.stdout.strip()).resolve() == root
        # Or a folder of a larger repository, whose commits hold the graph
        if is_own or _git(root, "ls-files", "--error-unmatch", "dvc.yaml").returncode == 0:
            return None

    return (
        f"{root} is no git repository (an unpacked archive is none); DVC asks for one, and reports "
        "name its commit: clone the project with git, or make it a repository with `git init && "
        "git add --all && git commit -m 'From an archive'`. To go on without git, run "
        "`.venv/bin/dvc config --local core.no_scm true`."
    )


def _is_without_git(root: Path) -> bool:
    """Return whether DVC was told that there is no git."""
    for path in map(root.joinpath, DVC_CONFIGS):
        if path.is_file() and _NO_GIT.search(path.read_text(encoding="utf-8")):
            return True
    return False


def _conflicts(root: Path) -> Iterator[str]:
    """Yield the files of the graph in which git left both sides of a conflict."""
    paths: list[Path] = []
    for folder in [root, *sorted(root.glob("profiles/*"))]:
        paths += map(folder.joinpath, GRAPH_FILES)
    paths += map(root.joinpath, DVC_CONFIGS)

    for path in filter(Path.is_file, paths):
        content = path.read_bytes()
        conflict = _CONFLICT.search(content)

        if conflict:
            name = path.relative_to(root)
            line = content.count(b"\n", 0, conflict.start()) + 1
            again = ""
            # A lock's sides are results of two states: no edit makes one lock of them
            if path.name == "dvc.lock":
                again = " `dvc repro` then runs what this side does not have."
            yield (
                f"{name}, line {line}: git left both sides of a conflict in this file. Take one "
                f"side with `git checkout --ours {name}` (or `--theirs`), or edit the file; then "
                f"`git add {name}`.{again}"
            )


def _killed_experiment(root: Path) -> str | None:
    """Return how to go back to the branch that a killed `dvc exp run` has left; None while one is running.

    It works in the project's folder on a detached HEAD. One that the user detached, before or
    since, is left alone.
    """
    folder = root / ".dvc" / "tmp" / "exps" / "run"
    noted_at: list[float] = []
    for path in filter(Path.is_file, map(folder.joinpath, EXPERIMENT_FILES)):
        for pid in _PID.findall(path.read_text(encoding="utf-8")):
            if _is_running(int(pid), path):
                return None
            noted_at.append(path.stat().st_mtime)

    if not noted_at:
        return None
    # HEAD is on a branch
    if _git(root, "symbolic-ref", "--quiet", "HEAD").returncode == 0:
        return None

    branch = _left_branch(root, max(noted_at))
    if branch is None:
        return None
    # It puts the user's changes into git's stash for a moment, before it writes the experiment's
    # own commit.
    has_stash = _git(root, "show-ref", "--verify", "--quiet", "refs/stash").returncode == 0
    stash = "; changes of yours that are missing are in `git stash list`" if has_stash else ""
    return (
        f"HEAD is detached, because a `dvc exp run` was killed: `git switch {branch}` goes back to "
        "your branch and keeps the files as they are. `git diff` shows the values of the "
        f"experiment that are still in them{stash}."
    )


def _left_branch(root: Path, noted_at: float) -> str | None:
    """Return the branch that HEAD left last, where it did so when DVC noted its process (seconds since the epoch)."""
    moves = _git(root, "reflog", "--max-count=10", "--date=unix", "--format=%gd %gs", "HEAD").stdout
    last = _LEFT_BRANCH.search(moves)
    if last is None or int(last[1]) > noted_at + DETACHING_S:
        return None
    is_branch = (
        _git(root, "show-ref", "--verify", "--quiet", f"refs/heads/{last[2]}").returncode == 0
    )
    # HEAD was detached before, where it left a commit
    return last[2] if is_branch else None


def _is_running(pid: int, path: Path) -> bool:
    """Return whether the process that wrote a file is running, and not a later one with its number."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).create_time() <= path.stat().st_mtime
    return False


def main() -> None:
    """Look at the working directory's project; a problem ends with status 1 and one paragraph."""
    try:
        sys.stderr.writelines(f"{sentence}\n" for sentence in require_sound_project(Path()))
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
