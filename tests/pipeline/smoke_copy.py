"""A copy of the working tree in a temporary folder, in which the smoke graph runs and nobody's data are touched."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from deepsearch_rl.cli.summary import latest_runs
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.core.stage import TIMINGS
from tests.ports import free_port
from tests.repository import commit_all, git
from tools import ROOT

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
        if (
            name
            and (source.is_file() or source.is_symlink())
            and not name.startswith("reports/smoke/")
        ):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    (folder / LOCK).unlink(missing_ok=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    git(folder, "init", "-q")
    commit_all(folder, "Copy")
    return folder


def finished_smoke_graph(folder: Path, kept: Path) -> Path:
    """Make a copy of the working tree in which the smoke graph has run to its end.

    Its stages come from DVC's run cache where that holds them: the checkout's own, filled by `make
    repro PROFILE=smoke`, or the one that an earlier run of the tests left in the folder ``kept``.
    DVC looks there by the digests of code, data and params, so what has changed since runs again.
    The objects of a cache are never written, so the copies share them by hard links. A cache counts
    where every stage has left its time beside it: results that came from elsewhere have none.
    """
    copy_of_working_tree(folder)
    with only_process(kept):
        sources = [source for source in (kept, ROOT) if has_all_times(source)]
        for source in sources:
            link_tree(source / CACHE, folder / CACHE)
        take_times([source / TIMINGS for source in sources], folder / TIMINGS)

        run(folder, "dvc", "repro", GRAPH)

        link_tree(folder / CACHE, kept / CACHE)
        (kept / TIMINGS).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / TIMINGS, kept / TIMINGS)
    return folder


def has_all_times(folder: Path) -> bool:
    """Return whether a folder has a time of every stage of the smoke graph."""
    stages = yaml.safe_load((ROOT / LOCK).read_text())["stages"]
    return stages.keys() <= {noted.stage for noted in latest_runs(folder, "smoke")}


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


def take_times(sources: Sequence[Path], target: Path) -> None:
    """Write the lines of those files, each line once, since what is kept holds lines of the checkout."""
    texts = [source.read_text() for source in sources]
    lines = dict.fromkeys(line for text in texts for line in text.splitlines(keepends=True))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(lines))


def run(folder: Path, *command: str) -> str:
    """Run a program of the environment in the copy, with the copy's own source."""
    places = {
        "PREFECT_HOME": str(folder / ".prefect"),
        "PREFECT_API_URL": f"http://{LOOPBACK}:{free_port()}/api",
    }
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), **places}
    result = subprocess.run(
        [str(ROOT / ".venv/bin" / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, (
        f"{' '.join(command)}\n{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
    )
    return result.stdout
