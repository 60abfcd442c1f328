"""The process between a ProcessGuard and a command.

    python -m deepsearch_rl.core.supervisor DESCRIPTORS COMMAND...

Standard input is a pipe to which only the guard can write. When the guard closes it, or the kernel
does because the guard's process was killed, the supervisor ends the command with all of its
descendants: on Linux it adopts orphans (``PR_SET_CHILD_SUBREAPER``, prctl(2)), because servers
start others in sessions of their own.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import psutil

# Between SIGTERM and SIGKILL: longer than a retrieval server takes for its last answers
GRACE_S = 12.0
# Descendants may start others while they end
KILL_ROUNDS = 3
# The exit status of a process that SIGTERM ended
CANCELLED_STATUS = 143
# The shells' exit status for a command that does not exist
NOT_STARTED_STATUS = 127

_WATCH_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36


def supervise(descriptors: Sequence[int], command: Sequence[str]) -> int:
    """Run a command until it or the guard ends and return its exit status.

    The first descriptor is the command's standard input; it inherits the others.
    """
    # Other systems find descendants by parentage alone
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    cancelled = threading.Event()

    def watch_guard() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        cancelled.set()
        if not _end_descendants():
            # Nobody waits for a command that cannot be killed
            os._exit(CANCELLED_STATUS)

    try:
        process = subprocess.Popen(command, stdin=descriptors[0], pass_fds=descriptors[1:])
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return NOT_STARTED_STATUS

    for descriptor in descriptors:
        os.close(descriptor)
    watch = threading.Thread(target=watch_guard, daemon=True)
    watch.start()
    status: int | None = None

    # Without a watch the command would outlive its guard
    while status is None and watch.is_alive():
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(_WATCH_S)

    _end_descendants()
    if status is None or cancelled.is_set():
        return CANCELLED_STATUS

    # Python says -SIGNAL, shells 128 + SIGNAL
    return status if status >= 0 else 128 - status


def _end_descendants() -> bool:
    """End all descendants by SIGTERM, then SIGKILL; return whether none is left.

    A process in a system call on a dead disk, for example, cannot be killed.
    """
    for _ in range(KILL_ROUNDS):
        descendants = psutil.Process().children(recursive=True)
        if not descendants:
            return True
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()

        _, alive = psutil.wait_procs(descendants, timeout=GRACE_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=GRACE_S)

    left = [process.pid for process in psutil.Process().children(recursive=True)]
    if left:
        sys.stderr.write(f"processes {left} cannot be killed and are left behind\n")
    return not left


if __name__ == "__main__":
    sys.exit(supervise([int(number) for number in sys.argv[1].split(",")], sys.argv[2:]))
