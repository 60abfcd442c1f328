"""What of DVC's cache is in use, and the removal of the rest.

`dvc gc` keeps what its flags name, and no combination of them names everything: the copies in which
`dvc exp run --temp` and `dvc queue start` work, the clones below ``work/checkouts``, other
worktrees of git, stashes. Here an object is in use if any lock file names it:

    in a folder   the project, every worktree of it, every clone below work/checkouts, every copy below .dvc/tmp/exps
    in a commit   that a branch, a tag, a remote's branch, a stash, an experiment or an entry of the queue leads to

A lock file is a ``dvc.lock`` or a ``*.dvc``. A folder object (``<digest>.dir``) stands for the
files that it lists. An entry of the run cache stays as long as all of its outputs do. What came
into the cache after we began to look stays, and no DVC command of these folders can record anything
meanwhile, because we hold the locks of all of them.
"""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from deepsearch_rl.core.copies import CHECKOUTS, EXPERIMENT_COPIES
from deepsearch_rl.core.errors import ArtifactError, ConfigError

LOCK_TIMEOUT_S = 10.0
DIRECTORY = ".dir"
# Refs whose earlier entries are in their reflog alone: git's stash, DVC's queue and its failures,
# what `apply` hid
_STASHES = re.compile(r"refs/(stash|exps/(stash|celery/\w+|apply/stash))$")
_EXPERIMENT = re.compile(r"refs/exps/([0-9a-f]{2})/([0-9a-f]{38})/[^/]+$")
_SKIPPED_FOLDERS = {"work", "mlruns", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Users:
    """Who uses a cache: folders with lock files, and commits, each with a folder that has it and a ref."""

    folders: tuple[Path, ...]
    commits: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Garbage:
    """What nobody uses: files of the cache and entries of the run cache, and the sizes of all."""

    files: tuple[Path, ...]
    runs: tuple[Path, ...]
    size_bytes: int
    kept_files: int
    kept_bytes: int


def find_users(project: Path, others: Iterable[Path] = ()) -> Users:
    """Return who uses the cache of a project: all of its folders, those of the clones ``others``, and their commits.

    Raises:
        ConfigError: one of the others is no project of DVC.
    """
    folders: dict[Path, None] = {}
    for clone in (project, *others):
        if not (clone / ".dvc").is_dir():
            raise ConfigError(
                f"{clone} is no project of DVC: it has no folder .dvc. Name the top folder of a clone."
            )

        for worktree in _worktrees(clone):
            folders.update(dict.fromkeys(_copies(worktree)))

    # Folders first: an experiment that ends while we look moves from its copy into a ref, never the
    # other way.
    return Users(tuple(folders), _commits(folders))


def _worktrees(clone: Path) -> Iterator[Path]:
    """Yield a clone and the other worktrees of its git repository, at the place of the project in each."""
    yield clone.resolve()
    if not _in_git(clone):
        return
    prefix = _git(clone, "rev-parse", "--show-prefix").strip()

    for line in _git(clone, "worktree", "list", "--porcelain").splitlines():
        kind, _, path = line.partition(" ")
        folder = Path(path, prefix)
        if kind == "worktree" and (folder / ".dvc").is_dir():
            yield folder.resolve()


def _copies(folder: Path) -> Iterator[Path]:
    """Yield a folder, and the clones and copies of the project inside it, which may have some of their own."""
    yield folder
    for place in (CHECKOUTS, EXPERIMENT_COPIES):
        for copy in sorted((folder / place).glob("*")):
            if (copy / ".dvc").is_dir():
                yield from _copies(copy)


def _commits(folders: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """Return the commits that refs of the folders' repositories lead to, each with a folder that has it and a ref."""
    commits: dict[str, tuple[str, str]] = {}
    for folder in filter(_in_git, folders):
        form = "--format=%(objectname) %(*objectname) %(refname)"
        for line in _git(folder, "for-each-ref", form).splitlines():
            *objects, ref = line.split()
            # The last: of a tag with a message, what it is of
            commits.setdefault(objects[-1], (str(folder), ref))
            for commit in _further_commits(folder, ref):
                commits.setdefault(commit, (str(folder), ref))

        for head in _git(folder, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).split():
            commits.setdefault(head, (str(folder), "HEAD"))

    return commits


def _further_commits(folder: Path, ref: str) -> Iterator[str]:
    """Yield the commit that an experiment began at; of a stash all entries, with what they hold of index and files."""
    match = _EXPERIMENT.match(ref)
    if match:
        yield "".join(match.groups())
    if _STASHES.match(ref):
        entries = _git(folder, "log", "--walk-reflogs", "--format=%H", ref).split()
        yield from _git(folder, "rev-list", "--no-walk", "--parents", ref, *entries).split()


def recorded_objects(users: Users) -> set[str]:
    """Return the digests of all objects that the users' lock files name.

    Raises:
        ArtifactError: a lock file cannot be read; what it names is not known, so nothing may be
            removed.
    """
    objects: set[str] = set()
    for folder in users.folders:
        for path in _lock_files(folder):
            objects.update(_digests(path.read_bytes(), str(path)))

    # Most commits have the lock files of the commit before
    known_blobs: set[str] = set()
    for commit, (folder, ref) in users.commits.items():
        for blob, path in _locks_of_commit(Path(folder), commit):
            if blob not in known_blobs:
                known_blobs.add(blob)
                text = _git(Path(folder), "cat-file", "blob", blob).encode()
                objects.update(_digests(text, f"{path} of {ref} (commit {commit[:7]})"))

    return objects


def _is_lock(name: str) -> bool:
    return name == "dvc.lock" or (name.endswith(".dvc") and name != ".dvc")


def _lock_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        # In place: os.walk goes on into those that are left
        folders[:] = [name for name in folders if not _is_skipped(name)]
        for name in filter(_is_lock, names):
            yield Path(parent, name)


def _is_skipped(folder: str) -> bool:
    return folder.startswith(".") or folder in _SKIPPED_FOLDERS


def _locks_of_commit(folder: Path, commit: str) -> Iterator[tuple[str, str]]:
    """Yield blob and path of every lock file of a commit; none of one that a shallow clone does not have."""
    if not _git(folder, "rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}", may_fail=True):
        return
    for line in _git(folder, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0"):
        description, _, path = line.partition("\t")
        if _is_lock(path.rpartition("/")[2]):
            yield description.split()[2], path


def _digests(text: bytes, name: str) -> Iterator[str]:
    """Yield every digest in a lock file, of outputs and of inputs: an input may be a result that is out of date."""
    try:
        values = yaml.load(text, yaml.CSafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = str(error).replace("\n", " ")
        raise ArtifactError(
            f"{name} cannot be read, so what it uses is not known, and nothing is removed: "
            f"{problem}. Repair the file, or remove the branch or folder that nobody needs."
        ) from error

    yield from _values(values, "md5")


def _values(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key and isinstance(inner, str):
                yield inner
            else:
                yield from _values(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, key)


@contextlib.contextmanager
def held_still(folders: Iterable[Path]) -> Iterator[None]:
    """Hold DVC's lock of every folder for a block, so that no command there records or fetches anything meanwhile.

    A stage may be running: DVC lets go of the lock until its command ends.

    Raises:
        ConfigError: a DVC command holds one for longer than :data:`LOCK_TIMEOUT_S`.
    """
    with contextlib.ExitStack() as locks:
        for folder in folders:
            # The copy of an experiment that ended meanwhile
            if not (folder / ".dvc").is_dir():
                continue
            path = folder / ".dvc" / "tmp" / "lock"
            path.parent.mkdir(exist_ok=True)

            try:
                locks.enter_context(FileLock(path, timeout=LOCK_TIMEOUT_S))
            except Timeout as error:
                raise ConfigError(
                    f"a DVC command is working in {folder}; run this again when it has ended."
                ) from error

        yield


def list_objects(cache: Path) -> dict[str, Path]:
    """Return the objects of a cache: digest -> file."""
    objects: dict[str, Path] = {}
    for path in (cache / "files" / "md5").glob("[0-9a-f][0-9a-f]/*"):
        # Not a file that is being written
        if re.fullmatch(r"[0-9a-f]{30}(\.dir)?", path.name):
            objects[path.parent.name + path.name] = path

    return objects


def find_garbage(cache: Path, objects: Mapping[str, Path], recorded: Iterable[str]) -> Garbage:
    """Return which of the ``objects`` of a cache nothing recorded needs, and the runs whose outputs are not all kept.

    Raises:
        ArtifactError: a folder object cannot be read.
    """
    needed = set(recorded)
    # A recorded folder is an object that lists its files, which are recorded nowhere else
    folders = [digest for digest in needed if digest.endswith(DIRECTORY)]
    for digest in folders:
        if digest in objects:
            needed.update(_files_of(objects[digest]))

    unused: list[Path] = []
    unused_bytes = 0
    total_bytes = 0
    for digest, path in sorted(objects.items()):
        size_bytes = path.stat().st_size
        total_bytes += size_bytes
        if digest not in needed:
            unused.append(path)
            unused_bytes += size_bytes

    runs: list[Path] = []
    for path in sorted((cache / "runs").glob("*/*/*")):
        if not _is_kept_run(path, needed):
            runs.append(path)

    return Garbage(
        files=tuple(unused),
        runs=tuple(runs),
        size_bytes=unused_bytes,
        kept_files=len(objects) - len(unused),
        kept_bytes=total_bytes - unused_bytes,
    )


def _files_of(directory: Path) -> Iterator[str]:
    try:
        for entry in json.loads(directory.read_bytes()):
            yield entry["md5"]
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(
            f"{directory} of DVC's cache is damaged, so what it uses is not known, and nothing is "
            "removed. Remove this file; `dvc fetch` or `dvc repro` makes it again."
        ) from error


def _is_kept_run(path: Path, kept: set[str]) -> bool:
    """Return whether all outputs of a run are kept; one that cannot be read is useless to DVC, too."""
    try:
        outs = yaml.load(path.read_bytes(), yaml.CSafeLoader)["outs"]
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError):
        return False

    return kept.issuperset(_values(outs, "md5"))


def remove(garbage: Garbage) -> None:
    """Remove garbage; the entries of the run cache first, so that a kill leaves none whose outputs are gone."""
    for path in garbage.runs:
        path.unlink(missing_ok=True)
        # Another run of the same inputs may be kept
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    # A folder object goes before its files, or a kill would leave one that lists missing files.
    for path in sorted(garbage.files, key=lambda path: path.suffix != DIRECTORY):
        path.unlink(missing_ok=True)


def _in_git(folder: Path) -> bool:
    """Return whether a folder is in a git repository; the sources of a release are in none."""
    path = folder.resolve()
    return any((parent / ".git").exists() for parent in (path, *path.parents))


def _git(folder: Path, *arguments: str, may_fail: bool = False) -> str:
    """Return what a git command prints.

    Raises:
        ArtifactError: git refuses, so that what its commits use is not known.
    """
    result = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )
    if result.returncode and not may_fail:
        raise ArtifactError(
            f"`git {arguments[0]}` failed in {folder}, so what its commits use is not known, and "
            f"nothing is removed: {result.stderr.strip()}"
        )

    return "" if result.returncode else result.stdout
