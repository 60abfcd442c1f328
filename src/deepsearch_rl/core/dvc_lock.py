"""DVC's lock files: their repair after a kill, and waiting for the processes that they name.

DVC writes into ``.dvc/tmp/rwlock``, in place, which process uses which output; a DVC that is killed
while it writes leaves half a file, which every later command refuses. Every writer holds a lock
(flock(2)) on ``rwlock.lock`` beside it; we hold it while we look. Only the notes of killed
processes are lost.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import atomic_file

# Of the graph, and of `dvc exp`
LOCK_FILES = (Path(".dvc", "tmp", "rwlock"), Path(".dvc", "tmp", "exps", "rwlock"))
POLL_S = 0.5
_PID = re.compile(r'"pid": (\d+)[,}]')
_BLOCKER = re.compile(r"^ *\(PID (\d+)\): ", re.MULTILINE)


def repair_dvc_locks(root: Path) -> list[str]:
    """Remove every unreadable lock file, and notes of ended processes, and say so in sentences.

    Raises:
        ConfigError: a file is unreadable, and a DVC command is running.
    """
    root = root.resolve()
    paths = [root / name for name in LOCK_FILES]
    sentences: list[str] = []
    for path in paths:
        sentences += _remove_notes_of_the_dead(path)
    for path in filter(_is_unreadable, paths):
        # Timeout: a living process is writing it
        with contextlib.suppress(Timeout), _guard(path):
            # Its writer may have finished it before we got the lock
            if not _is_unreadable(path):
                continue
            if holder := _living_holder(root, path):
                raise ConfigError(
                    f"{path} is unreadable, because a DVC command was killed while it wrote it, "
                    f"and another one is still running: {holder}. Wait for it or stop it, then run "
                    "this again."
                )

            path.unlink()
            sentences.append(
                f"removed {path}: a DVC command was killed while it wrote it, and no process holds it."
            )

    return sentences


def blocking_pids(message: str) -> list[int]:
    """Return the processes that DVC's refusal "... is busy, it is being blocked by: (PID 12): dvc repro" names."""
    return [int(pid) for pid in _BLOCKER.findall(message)]


def wait_for_users(
    path: Path, pids: Iterable[int], on_wait: Callable[[str, int, float], object]
) -> None:
    """Wait until no process of some numbers works on what a lock file notes for it.

    A DVC command is waited for to its end: between two stages it has no notes for a moment.
    ``on_wait`` is called with the command of each, its process number, and when it began, in
    seconds since 1970.
    """
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            command = process.cmdline()
            on_wait(" ".join(command), pid, process.create_time())

            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                if not _is_dvc(command) and pid not in _noted_pids(path):
                    break
                time.sleep(POLL_S)


def _remove_notes_of_the_dead(path: Path) -> list[str]:
    """Remove the notes of a lock file whose process has ended and whose number another process has; say so."""
    if not _foreign_notes(_read_notes(path)):
        return []
    with contextlib.suppress(Timeout), _guard(path):
        # Again, under the lock: DVC may have written in between
        notes = _read_notes(path)
        foreign = _foreign_notes(notes)

        # Many processes may read a file, and one write it: a list of notes, and a note
        readers: dict[str, list[dict[str, Any]]] = {}
        for file, users in notes["read"].items():
            readers[file] = [note for note in users if note not in foreign]
        writers: dict[str, dict[str, Any]] = {}
        for file, note in notes["write"].items():
            if note not in foreign:
                writers[file] = note

        with atomic_file(path) as partial:
            partial.write_text(json.dumps({"read": readers, "write": writers}), encoding="utf-8")
        names = ", ".join(f"`{note['cmd']}` (process {note['pid']})" for note in foreign)
        return [
            f"removed the notes of {names} from {path}: it has ended, and its number is another "
            "process's now."
        ]

    return []


def _read_notes(path: Path) -> dict[str, dict[str, Any]]:
    """Return what a lock file says by "read" and "write"; nothing where there is no such file or it is unreadable."""
    try:
        notes = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        notes = {}

    return {"read": notes.get("read", {}), "write": notes.get("write", {})}


def _all_notes(notes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    # A process has a note at each of its files, and notes are dictionaries, which no set can hold
    unique: list[dict[str, Any]] = []
    for users in [*notes["read"].values(), notes["write"].values()]:
        for note in users:
            if note not in unique:
                unique.append(note)

    return unique


def _noted_pids(path: Path) -> set[int]:
    return {note["pid"] for note in _all_notes(_read_notes(path))}


def _foreign_notes(notes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the notes whose number is that of a living process with another command line."""
    return [note for note in _all_notes(notes) if _has_other_command(note["pid"], note["cmd"])]


def _has_other_command(pid: int, noted: str) -> bool:
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        # DVC removes such a note itself
        return False
    except psutil.AccessDenied:
        # Another user's process: nothing proves that the note is not its own
        return False

    # DVC notes sys.argv: the program as Python calls it, and the arguments as they are in the
    # command line.
    words = noted.split()
    has_arguments = len(words) > 1
    return bool(command) and has_arguments and words[-1:] != " ".join(command).split()[-1:]


def _guard(path: Path) -> contextlib.AbstractContextManager[object]:
    """Return DVC's own lock on writing a lock file; under its setting hardlink_lock it exists only while it writes."""
    guard_path = path.with_name(f"{path.name}.lock")
    return FileLock(guard_path, blocking=False) if guard_path.exists() else contextlib.nullcontext()


def _is_dvc(command: list[str]) -> bool:
    """Return whether a command line is `dvc`, `python .../dvc` or `python -m dvc`, with any arguments."""
    return "dvc" in [Path(part).name for part in command[:2]] or command[1:3] == ["-m", "dvc"]


def _is_unreadable(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        # No JSON, or no text
        return True

    return False


def _living_holder(root: Path, path: Path) -> str | None:
    """Return the command line of a living process that the file names, or of a DVC command in the project."""
    written_at = path.stat().st_mtime
    pids = {int(pid) for pid in _PID.findall(path.read_text(encoding="utf-8", errors="replace"))}

    for process in psutil.process_iter(["cmdline", "cwd", "create_time"]):
        command = process.info["cmdline"] or []
        folder = process.info["cwd"]
        # Not a later one of that number
        is_holder = process.pid in pids and process.info["create_time"] < written_at
        if is_holder or (_is_dvc(command) and folder and Path(folder).is_relative_to(root)):
            return f"`{' '.join(command)}` (pid {process.pid})"

    return None
