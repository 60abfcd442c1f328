"""Locks between flow runs of one machine, held by the operating system and so freed with the process that held them."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.5


def gpu_lock() -> Path:
    """Path of the lock of the visible GPUs; all clones of this machine share it."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(",", "-")
    return Path(tempfile.gettempdir(), f"deepsearch-gpu-{devices}.lock")


@contextmanager
def held(path: Path, holder: str, say: Callable[[str], object], check: Callable[[], object]) -> Iterator[int]:
    """Hold a lock for a block, after those who came before.

    Args:
        path: the lock's file; it names its holder.
        holder: who we are, for those who wait.
        say: called once with a sentence that names the holder if we have to wait.
        check: called twice a second while we wait; it raises if nobody needs the lock any more.

    Yields:
        The file descriptor of the lock. The lock is free when all processes that have it open have ended.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        has_spoken = False
        while not _try(descriptor):
            if not has_spoken:
                say(f"waiting for {path.read_text(encoding='utf-8') or 'another run'}, which holds {path}")
                has_spoken = True
            check()
            time.sleep(POLL_S)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
