import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from deepsearch_rl.errors import UnavailableError
from flows.leash import CANCELLED_STATUS, Leash

# A shell that starts a server in a session of its own, which ignores SIGHUP, notes both pids and waits.
STUBBORN = "setsid sleep 600 & echo $! > server.pid; echo $$ > shell.pid; echo started; wait"
HOLDER = """
import os, sys
from pathlib import Path
from flows.leash import Leash
with Leash() as leash:
    process = leash.start(sys.argv[1:], Path.cwd(), os.environ)
    print(process.stdout.readline(), end="", flush=True)
    process.wait()
"""


def gone(pid_file: Path, within_s: float = 30) -> bool:
    """Whether the process whose pid the file holds has ended, or does within the time."""
    try:
        psutil.Process(int(pid_file.read_text())).wait(within_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_output_comes_line_by_line_and_the_status_is_the_commands(tmp_path: Path) -> None:
    with Leash() as leash:
        process = leash.start(["sh", "-c", "echo one; echo two >&2; exit 7"], tmp_path, os.environ)
        assert process.stdout is not None
        assert list(process.stdout) == ["one\n", "two\n"]
        assert process.wait() == 7


def test_letting_go_ends_the_command_and_servers_in_sessions_of_their_own(tmp_path: Path) -> None:
    with Leash() as leash:
        process = leash.start(["sh", "-c", STUBBORN], tmp_path, os.environ)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    assert process.returncode == CANCELLED_STATUS
    assert gone(tmp_path / "shell.pid")
    assert gone(tmp_path / "server.pid")


def test_a_command_that_ends_leaves_no_server_behind(tmp_path: Path) -> None:
    with Leash() as leash:
        process = leash.start(["sh", "-c", STUBBORN.replace("wait", "exit 3")], tmp_path, os.environ)
        assert process.wait() == 3
        assert gone(tmp_path / "server.pid")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_holder_that_is_killed(tmp_path: Path, root: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", HOLDER, "sh", "-c", STUBBORN]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    holder = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "started\n"
    holder.send_signal(how)
    holder.wait()
    holder.stdout.close()
    assert gone(tmp_path / "shell.pid")
    assert gone(tmp_path / "server.pid")


@pytest.mark.slow
def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    started = time.monotonic()
    with Leash() as leash:
        stubborn = "trap '' TERM; echo started; while :; do sleep 1; done"
        process = leash.start(["sh", "-c", stubborn], tmp_path, os.environ)
        assert process.stdout is not None
        process.stdout.readline()
    assert process.returncode == CANCELLED_STATUS
    assert time.monotonic() - started < 30


def test_nothing_starts_after_the_leash_was_let_go(tmp_path: Path) -> None:
    with Leash() as leash:
        pass
    with pytest.raises(UnavailableError):
        leash.start(["true"], tmp_path, os.environ)
