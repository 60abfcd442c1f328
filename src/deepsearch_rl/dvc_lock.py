"""Repair of DVC's lock files after a kill.

DVC writes into ``.dvc/tmp/rwlock``, in place, which process uses which output; a DVC that is killed while it writes
leaves half a file, which every later command refuses. Every writer holds a lock (flock(2)) on ``rwlock.lock`` beside
it; we hold it while we look. Only the notes of killed processes are lost.
"""

import contextlib
import json
import re
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from deepsearch_rl.errors import ConfigError

LOCK_FILES = (Path(".dvc", "tmp", "rwlock"), Path(".dvc", "tmp", "exps", "rwlock"))  # of the graph, and of `dvc exp`
_PID = re.compile(r'"pid": (\d+)[,}]')


def repair_dvc_locks(root: Path) -> list[str]:
    """Remove every unreadable lock file and say so in sentences; raise ConfigError while a DVC command is running."""
    root, sentences = root.resolve(), list[str]()
    for path in filter(_is_unreadable, (root / name for name in LOCK_FILES)):
        guard_path = path.with_name(f"{path.name}.lock")
        # Under DVC's setting hardlink_lock, DVC's lock on writing the file exists only while it is written.
        guard = FileLock(guard_path, blocking=False) if guard_path.exists() else contextlib.nullcontext()
        with contextlib.suppress(Timeout), guard:  # Timeout: a living process is writing it
            if not _is_unreadable(path):
                continue
            if holder := _living_holder(root, path):
                raise ConfigError(
                    f"{path} is unreadable, because a DVC command was killed while it wrote it, and another one is "
                    f"still running: {holder}. Wait for it or stop it, then run this again."
                )
            path.unlink()
            sentences.append(f"removed {path}: a DVC command was killed while it wrote it, and no process holds it.")
    return sentences


def _is_unreadable(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:  # no JSON, or no text
        return True
    return False


def _living_holder(root: Path, path: Path) -> str | None:
    """Return the command line of a living process that the file names, or of a DVC command in the project."""
    written_at = path.stat().st_mtime
    pids = {int(pid) for pid in _PID.findall(path.read_text(encoding="utf-8", errors="replace"))}
    for process in psutil.process_iter(["cmdline", "cwd", "create_time"]):
        command, folder = process.info["cmdline"] or [], process.info["cwd"]
        is_holder = process.pid in pids and process.info["create_time"] < written_at  # not a later one of that number
        # `dvc`, `python .../dvc` or `python -m dvc`, with any arguments
        is_dvc = "dvc" in [Path(part).name for part in command[:2]] or command[1:3] == ["-m", "dvc"]
        if is_holder or (is_dvc and folder and Path(folder).is_relative_to(root)):
            return f"`{' '.join(command)}` (pid {process.pid})"
    return None
