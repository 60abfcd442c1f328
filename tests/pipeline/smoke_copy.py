"""A copy of the working tree in a temporary folder, in which graphs run and nobody's data are touched."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.repository import commit_all, git

ROOT = Path(__file__).resolve().parents[2]
GRAPH = "profiles/smoke/dvc.yaml"
LOCK = "profiles/smoke/dvc.lock"
CACHE = ".dvc/cache"


def copy_of_working_tree(folder: Path) -> Path:
    """Make a repository of what git would commit of the working tree, with this environment linked into it."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listing.stdout.decode().split("\0"):
        source, target = ROOT / name, folder / name
        if name and source.is_file() and not name.startswith("reports/smoke/"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    (folder / LOCK).unlink(missing_ok=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    git(folder, "init", "-q")
    commit_all(folder, "Copy")
    return folder


def finished_smoke_graph(folder: Path, kept: Path) -> Path:
    """Make a copy of the working tree in which the smoke graph has run to its end.

    Stages that have not changed come from DVC's run cache: that of the checkout, or the one that an
    earlier run of the tests left in the folder ``kept``. Copies share the objects by hard links.
    """
    copy_of_working_tree(folder)
    with only_process(kept):
        for source in (kept, ROOT):
            link_tree(source / CACHE, folder / CACHE)
        run(folder, "dvc", "repro", GRAPH)
        link_tree(folder / CACHE, kept / CACHE)

    return folder


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Wait until no other process is in this block for a folder: what one runs, the next one finds in the cache."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def link_tree(source: Path, target: Path) -> None:
    """Hard-link every file of a folder that the target does not have, or copy it where a link is not possible."""
    for path in source.rglob("*"):
        linked = target / path.relative_to(source)
        if path.is_dir() or linked.exists():
            continue

        linked.parent.mkdir(parents=True, exist_ok=True)
        try:
            linked.hardlink_to(path)
        except OSError:
            shutil.copy2(path, linked)


def start(folder: Path, *command: str) -> "subprocess.Popen[str]":
    """Start a program of the environment in the copy, as a process group of its own."""
    return subprocess.Popen(
        [str(ROOT / ".venv/bin" / command[0]), *command[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for a program; return its status and what it printed."""
    output, _ = process.communicate()
    return process.returncode, output


def run(folder: Path, *command: str) -> str:
    """Run a program of the environment in the copy to a good end; return what it printed."""
    status, output = finish(start(folder, *command))
    assert status == 0, f"{' '.join(command)}\n{output[-8000:]}"
    return output
