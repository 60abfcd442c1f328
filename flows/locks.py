"""Locks between the runs of one machine, held by the operating system and so freed with the processes that held them.

Whatever runs a profile's graph holds the profile's lock while it works: `make repro`, a flow, a
worker's run, a make target of several DVC commands, `dvc repro` of the project's environment, and a
stage by hand. So two runs of one profile take turns, and runs of two profiles do not. Stages that
need a GPU hold the lock of each visible GPU as well, which all clones and users of the machine
share. The file of a lock names its holder.

What a run starts belongs to it and waits for nobody: a run writes the locks that it holds into the
variable ``DEEPSEARCH_LOCKS``, which its processes inherit.

Only the standard library, and nothing of the package: every `dvc repro` and every stage loads this
when its Python starts, also where it then runs another revision of the package.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_S = 0.5
LOCKS_FOLDER = "/tmp"
DRIVER_LIST = Path("/proc/driver/nvidia/gpus")
# ``PID@PATH`` of every lock of a profile that we or a process that started us hold, separated as
# in ``PATH``
LOCKS_VARIABLE = "DEEPSEARCH_LOCKS"
# What that variable was when this process began. What it takes later is no reason for its threads
# not to wait.
_INHERITED = frozenset(os.environ.get(LOCKS_VARIABLE, "").split(os.pathsep))


@dataclass(frozen=True, slots=True)
class Holder:
    """Who is in the way: its command, its process, and the local time when it began."""

    what: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid}, since {self.since})"


Check = Callable[[], object]
Say = Callable[[str], object]
FindHolder = Callable[[], Holder | None]


def nothing() -> None:
    """Do nothing; the check of a run that ends by Ctrl-C alone, and the holder where nobody else can be in the way."""


def gpu_locks() -> list[Path]:
    """Paths of the locks of the visible GPUs, one for each, in the order in which everybody takes them.

    All clones and users of this machine share them, whatever ``TMPDIR`` says.
    """
    return [Path(LOCKS_FOLDER, f"deepsearch-gpu-{device}.lock") for device in visible_devices()]


def visible_devices() -> list[str]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` shows, sorted, by the names that they have for everybody.

    A number and a UUID of one device are one name. Where the driver's list does not tell what an
    entry stands for, it is the entry itself; ``all`` where there is no list and no variable.
    """
    devices = _devices()
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return sorted(devices) or ["all"]

    names: set[str] = set()
    for entry in filter(None, map(str.strip, variable.split(","))):
        if entry.isdecimal() and int(entry) < len(devices):
            names.add(devices[int(entry)])
            continue
        # A UUID may be shortened as long as it is unique
        matches = [device for device in devices if device.startswith(entry)]
        names.add(matches[0] if len(matches) == 1 else entry.replace("/", "-"))

    return sorted(names)


def _devices() -> list[str]:
    """Return the UUIDs of this machine's GPUs in the order of their buses, as NVIDIA's driver lists them."""
    uuids: list[str] = []
    for path in sorted(DRIVER_LIST.glob("*/information")):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name == "GPU UUID":
                uuids.append(value.strip())

    return uuids


def run_lock(root: Path, profile: str) -> Path:
    """Path of the lock of a profile's runs in the project at ``root``."""
    return root.resolve() / "work" / profile / "run.lock"


@contextmanager
def held(path: Path, what: str, purpose: str, say: Say, check: Check = nothing) -> Iterator[int]:
    """Hold a lock for a block, after those who came before.

    Args:
        path: the lock's file.
        what: who we are, for those who wait.
        purpose: what a holder of the lock does, as in "uses the GPU".
        say: called with a sentence that names the holder if we have to wait.
        check: called twice a second while we wait; it raises if nobody needs the lock any more.

    Yields:
        The file descriptor of the lock. The lock is free when all processes that have it open have
            ended.
    """
    descriptor = wait_and_take(path, what, purpose, say, check)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def run_held(
    root: Path,
    profile: str,
    what: str,
    say: Say,
    check: Check = nothing,
    find_other: FindHolder = nothing,
) -> Iterator[tuple[int, ...]]:
    """Hold the lock of a profile's runs for a block, as :func:`held`.

    Args:
        root: the project's folder.
        profile: tiny, or a folder of profiles/.
        what: who we are, for those who wait.
        say: called with a sentence that names the holder if we have to wait.
        check: called twice a second while we wait.
        find_other: returns a run of the profile that does not know of the lock, and that we wait
            for as well.

    Yields:
        The file descriptor of the lock; nothing where a process that started us holds it.
    """
    descriptor = take_run_lock(root, profile, what, say, check, find_other)
    if descriptor is None:
        yield ()
        return

    try:
        yield (descriptor,)
    finally:
        _forget(run_lock(root, profile))
        os.close(descriptor)


def take_run_lock(
    root: Path,
    profile: str,
    what: str,
    say: Say,
    check: Check = nothing,
    find_other: FindHolder = nothing,
) -> int | None:
    """Wait for the lock of a profile's runs, take it until this process ends, and return its file descriptor.

    The arguments are those of :func:`run_held`. None: a process that started us holds it.
    """
    path = run_lock(root, profile)
    if is_inherited(path):
        return None
    descriptor = wait_and_take(
        path, what, f"works on the profile {profile}", say, check, find_other
    )
    inherited = os.environ.get(LOCKS_VARIABLE)
    os.environ[LOCKS_VARIABLE] = os.pathsep.join(
        [*([inherited] if inherited else []), _note(os.getpid(), path)]
    )
    return descriptor


def wait_and_take(
    path: Path,
    what: str,
    purpose: str,
    say: Say,
    check: Check = nothing,
    find_other: FindHolder = nothing,
) -> int:
    """Wait for a lock, take it and return its file descriptor; see :func:`held` and :func:`run_held`."""
    # The file stays open while we wait: that shows others that we know of the lock.
    descriptor = _open(path)
    known_holders: set[Holder | None] = set()

    try:
        while True:
            # Who does not know of the lock is looked for first: taken for a moment, it would turn
            # his next stage away.
            other = find_other()
            if other is None and _try(descriptor):
                if not _is_removed(descriptor, path):
                    break
                os.close(descriptor)
                descriptor = _open(path)
                continue

            other = other or read_holder(path)
            if other not in known_holders:
                say(waiting_sentence(other, purpose))
                known_holders.add(other)

            check()
            time.sleep(POLL_S)

        _write_holder(descriptor, Holder(what, os.getpid(), local_time()))
    except BaseException:
        os.close(descriptor)
        raise

    return descriptor


def _open(path: Path) -> int:
    """Open the file of a lock, or make it so that every user can open it; return its descriptor.

    A file of another user in a folder like ``/tmp`` may be opened, but not with O_CREAT
    (``fs.protected_regular`` of Linux).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            return os.open(path, os.O_RDWR)
        except FileNotFoundError:
            pass

        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            # Another process has just made it
            continue
        # Whatever our umask is: other users of the machine take this lock, too
        os.fchmod(descriptor, 0o666)
        return descriptor


def local_time(seconds: float | None = None) -> str:
    """Return a time in seconds since 1970, now if not given, as a user reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def waiting_sentence(holder: Holder | None, purpose: str) -> str:
    """Return for whom we wait and how to end that; ``purpose`` is what it does, as in "uses the GPU"."""
    if holder is None:
        return f"waiting for another run, which {purpose}. Ctrl-C ends the waiting."
    if not _is_alive(holder.pid):
        return f"waiting for the processes that {holder} has left behind to end. Ctrl-C ends the waiting."
    return (
        f"waiting for {holder}, which {purpose}. To stop it, press Ctrl-C in its terminal or run "
        f"`kill {holder.pid}`; Ctrl-C here ends the waiting alone."
    )


def say_waiting(say: Say, purpose: str, what: str, pid: int, began_s: float) -> None:
    """Say that we wait for a process that began at a time in seconds since 1970."""
    say(waiting_sentence(Holder(what, pid, local_time(began_s)), purpose))


def read_holder(path: Path) -> Holder | None:
    """Return who holds a lock, or held it last; None where nobody has written that yet."""
    try:
        return Holder(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_inherited(path: Path) -> bool:
    """Return whether a process that started us holds the lock now, or we have held it since before an exec(3)."""
    holder = current_holder(path)
    return holder is not None and _note(holder.pid, path) in _INHERITED


def current_holder(path: Path) -> Holder | None:
    """Return who holds a lock now; None where it is free."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None

    try:
        return None if _try(descriptor) else read_holder(path)
    finally:
        os.close(descriptor)


def is_noted(path: Path, variable: str) -> bool:
    """Return whether a process with this value of ``DEEPSEARCH_LOCKS`` was started by a run that held the lock."""
    return any(note.partition("@")[2] == str(path) for note in variable.split(os.pathsep))


def _note(pid: int, path: Path) -> str:
    return f"{pid}@{path}"


def _forget(path: Path) -> None:
    """Take our own lock out of what processes that we start from now on inherit."""
    notes = os.environ.get(LOCKS_VARIABLE, "").split(os.pathsep)
    left = [note for note in notes if note and note != _note(os.getpid(), path)]

    if left:
        os.environ[LOCKS_VARIABLE] = os.pathsep.join(left)
    else:
        os.environ.pop(LOCKS_VARIABLE, None)


def _write_holder(descriptor: int, holder: Holder) -> None:
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False

    return True


def _is_removed(descriptor: int, path: Path) -> bool:
    """Return whether somebody has removed the lock's file, and perhaps made a new one, since we opened it."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return True

    return (now.st_dev, now.st_ino) != (os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Another user's
        return True

    return True
