"""``deepsearch gc``: free the disk of results that nothing leads to any more, in DVC's cache and in its remote."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.cli.child_programs import run_program
from deepsearch_rl.core.copies import outer_project
from deepsearch_rl.core.dvc_cache import (
    Garbage,
    Users,
    find_garbage,
    find_users,
    held_still,
    list_objects,
    recorded_objects,
    remove,
)
from deepsearch_rl.core.errors import ConfigError

GIB = 2**30


def gc_command(
    yes: Annotated[
        bool, Option("--yes", help="Remove it, instead of saying what would be removed.")
    ] = False,
    remote: Annotated[
        bool, Option("--remote", help="The same in DVC's default remote, too.")
    ] = False,
    also: Annotated[
        list[Path] | None,
        Option(
            help="Another clone that uses this cache or remote; repeat it.", show_default="none"
        ),
    ] = None,
) -> None:
    """Free the disk of results that nothing leads to any more: say how much, and with `--yes` do it.

    Kept is what any `dvc.lock` names: of every profile in this folder, in other worktrees, in the
    clones of runs with other params (`work/checkouts/`), in the copies in which queued experiments
    work; of every branch, tag, stash, experiment and entry of the queue. The run cache keeps the
    runs whose results are kept. Results of params that were tried and are in none of these are
    removed.

    `--remote` knows only this clone and those of `--also`. Fetch the branches and experiments of
    other machines before (`git fetch origin --tags 'refs/exps/*:refs/exps/*'`), and run it while
    nobody pushes.

        deepsearch gc
        deepsearch gc --yes
    """
    typer.echo(collect(Path(), also or [], yes, remote))


def collect(project: Path, others: Sequence[Path], is_real: bool, with_remote: bool) -> str:
    """Remove what nothing leads to, or with ``is_real`` false only look, and return what to tell about it.

    Raises:
        ConfigError: the working directory is no project of DVC, or another project may use its
            cache.
        ArtifactError: what is in use is not known, because a lock file, a folder object or git
            cannot be read.
        CommandError: DVC failed.
    """
    cache = _cache_folder(project)
    # First, so that nothing that is written to the cache from now on can be removed
    objects = list_objects(cache)
    users = find_users(project, others)
    _require_own_cache(cache, users, bool(others))

    with held_still(users.folders):
        # Again: an experiment may have ended before its folder was held
        users = find_users(project, others)
        recorded = recorded_objects(users)
        garbage = find_garbage(cache, objects, recorded)
        if is_real:
            remove(garbage)

    texts = [describe(cache, users, garbage, is_real=is_real)]
    if with_remote:
        texts.append(_collect_remote(recorded, is_real))
    if not is_real:
        texts.append(
            f"Nothing was removed. `deepsearch gc --yes{' --remote' if with_remote else ''}` does it."
        )

    return "\n".join(texts)


def describe(cache: Path, users: Users, garbage: Garbage, *, is_real: bool) -> str:
    """Return what is kept, for whom, and what is removed, or could be if not ``is_real``, as lines of text."""
    kinds = Counter(_kind(ref) for _, ref in users.commits.values())
    commits = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
    copies = sum(outer_project(folder) != folder for folder in users.folders)
    freed = "freed" if is_real else "can be freed"
    return "\n".join(
        [
            f"DVC's cache {cache}",
            f"  kept: {_size(garbage.kept_bytes)} in {garbage.kept_files:,} files, which lock files name",
            f"    in folders: {len(users.folders)} (clones and copies in which runs work: {copies})",
            f"    in commits: {len(users.commits)} ({commits})",
            f"  {freed}: {_size(garbage.size_bytes)} in {len(garbage.files):,} files, and "
            f"{len(garbage.runs):,} entries of the run cache",
        ]
    )


def _kind(ref: str) -> str:
    if "stash" in ref or ref.startswith("refs/exps/celery/"):
        return "stashes and the queue"
    names = {
        "refs/exps/": "experiments",
        "refs/tags/": "tags",
        "refs/remotes/": "the remote's branches",
    }
    for prefix, name in names.items():
        if ref.startswith(prefix):
            return name
    return "branches and worktrees"


def _size(size_bytes: int) -> str:
    if size_bytes >= GIB / 10:
        return f"{size_bytes / GIB:.2f} GiB"
    return f"{size_bytes / 2**20:.1f} MiB"


def _cache_folder(project: Path) -> Path:
    if not (project / ".dvc").is_dir():
        raise ConfigError(
            f"{project.resolve()} is no project of DVC; run this in the top folder of a clone."
        )

    told = run_program("dvc", [sys.executable, "-m", "dvc", "cache", "dir"])
    return Path(told.strip()).resolve()


def _require_own_cache(cache: Path, users: Users, has_others: bool) -> None:
    """Raise ConfigError for a cache outside of the project, which clones that are not known here may use, too."""
    if has_others or any(cache.is_relative_to(folder / ".dvc") for folder in users.folders):
        return
    if cache.parent.name == ".dvc":
        raise ConfigError(
            f"this clone uses the cache of {cache.parent.parent}: run `deepsearch gc` there."
        )

    raise ConfigError(
        f"DVC's cache is {cache}, outside of this project, so other clones may use it. Name all of "
        "them, or this one if there is none: `deepsearch gc --also FOLDER`."
    )


def _collect_remote(recorded: set[str], is_real: bool) -> str:
    """Remove from the remote all but what is recorded, by the script that knows DVC; return what it says."""
    module = "graph_commands.collect_remote"
    command = [sys.executable, "-m", module, *(["--yes"] if is_real else [])]
    return run_program(module, command, "\n".join(sorted(recorded))).strip()
