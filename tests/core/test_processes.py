import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psutil
import pytest

from deepsearch_rl.core.errors import EndpointError, UnavailableError
from deepsearch_rl.core.processes import (
    LOOPBACK,
    ProcessGuard,
    free_port,
    last_lines,
    running_server,
    stream_lines,
)
from deepsearch_rl.core.supervisor import CANCELLED_STATUS, NOT_STARTED_STATUS
from tests import ports

# A shell that starts a server in a session of its own, which ignores SIGHUP, notes both pids and
# waits.
STUBBORN = "setsid sleep 600 & echo $! > server.pid; echo $$ > shell.pid; echo started; wait"
HOLDER = """
import sys
from deepsearch_rl.core.processes import ProcessGuard
with ProcessGuard() as guard:
    process = guard.start(sys.argv[1:])
    print(process.stdout.readline(), end="", flush=True)
    process.wait()
"""
SERVE = [sys.executable, "-m", "http.server", "--bind", LOOPBACK]


def gone(pid_file: Path, within_s: float = 30) -> bool:
    """Whether the process whose pid the file holds has ended, or does within the time."""
    try:
        psutil.Process(int(pid_file.read_text())).wait(within_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_output_comes_line_by_line_and_the_exit_status_is_the_commands() -> None:
    lines: list[str] = []
    with ProcessGuard() as guard:
        process = guard.start(["sh", "-c", "echo one; echo; echo two >&2; exit 7"])
        assert stream_lines(process, lines.append) == lines == ["one", "two"]
        assert process.returncode == 7


def test_a_command_reads_its_settings_and_has_its_folder_and_environment(tmp_path: Path) -> None:
    with ProcessGuard() as guard:
        environment = {**os.environ, "COLOUR": "green"}
        process = guard.start(
            ["sh", "-c", "cat; echo; pwd; echo $COLOUR"],
            folder=tmp_path,
            environment=environment,
            settings='{"port": 1}',
        )
        assert stream_lines(process, str) == ['{"port": 1}', str(tmp_path), "green"]


def test_a_command_inherits_the_descriptors_that_are_passed_to_it_and_no_others() -> None:
    with (
        socket.create_server((LOOPBACK, 0)) as passed,
        socket.create_server((LOOPBACK, 0)) as other,
    ):
        other.set_inheritable(True)
        with ProcessGuard() as guard:
            process = guard.start(["sh", "-c", "ls -l /proc/self/fd"], inherited=[passed.fileno()])
            sockets = [line for line in stream_lines(process, str) if "socket:" in line]
        assert len(sockets) == 1
        assert f" {passed.fileno()} -> socket:" in sockets[0]


def test_a_program_that_does_not_exist_is_named() -> None:
    with ProcessGuard() as guard:
        process = guard.start(["no-such-program"])
        assert stream_lines(process, str) == [
            "no-such-program cannot be started: No such file or directory"
        ]
        assert process.returncode == NOT_STARTED_STATUS


def test_closing_the_guard_ends_the_command_and_servers_in_sessions_of_their_own(
    tmp_path: Path,
) -> None:
    with ProcessGuard() as guard:
        process = guard.start(["sh", "-c", STUBBORN], folder=tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    assert process.returncode == CANCELLED_STATUS
    assert gone(tmp_path / "shell.pid")
    assert gone(tmp_path / "server.pid")


def test_a_command_that_ends_leaves_no_server_behind(tmp_path: Path) -> None:
    with ProcessGuard() as guard:
        process = guard.start(["sh", "-c", STUBBORN.replace("wait", "exit 3")], folder=tmp_path)
        assert process.wait() == 3
        assert gone(tmp_path / "server.pid")


def test_an_error_of_the_reader_ends_the_command(tmp_path: Path) -> None:
    def refuse(line: str) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="started"), ProcessGuard() as guard:
        stream_lines(guard.start(["sh", "-c", STUBBORN], folder=tmp_path), refuse)
    assert gone(tmp_path / "shell.pid", within_s=0)
    assert gone(tmp_path / "server.pid", within_s=0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", HOLDER, "sh", "-c", STUBBORN]
    parent = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()
    assert gone(tmp_path / "shell.pid")
    assert gone(tmp_path / "server.pid")


@pytest.mark.slow
def test_a_command_whose_supervisor_is_killed_ends_with_the_guard(tmp_path: Path) -> None:
    with ProcessGuard() as guard:
        process = guard.start(
            ["sh", "-c", "echo $$ > shell.pid; echo started; sleep 600"], folder=tmp_path
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.kill()
    assert gone(tmp_path / "shell.pid")


@pytest.mark.slow
def test_a_command_whose_guard_cannot_be_watched_is_ended() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    supervisor = [sys.executable, "-m", "deepsearch_rl.core.supervisor", str(nothing)]
    # The guard is the standard input, and this supervisor has none
    without_guard = ["sh", "-c", 'exec "$@" <&-', "sh", *supervisor, "sleep", "600"]
    answer = subprocess.run(
        without_guard, pass_fds=[nothing], capture_output=True, timeout=60, check=False
    )
    os.close(nothing)
    assert answer.returncode == CANCELLED_STATUS
    assert b"watch_guard" in answer.stderr


@pytest.mark.nightly
def test_a_command_that_ignores_sigterm_is_killed() -> None:
    with ProcessGuard() as guard:
        process = guard.start(["sh", "-c", "trap '' TERM; echo started; while :; do sleep 1; done"])
        assert process.stdout is not None
        process.stdout.readline()
    assert process.returncode == CANCELLED_STATUS


def test_nothing_starts_after_the_guard_was_closed() -> None:
    with ProcessGuard() as guard:
        pass
    with pytest.raises(UnavailableError):
        guard.start(["true"])


@pytest.mark.slow
def test_a_server_answers_within_the_block_and_is_gone_after_it(tmp_path: Path) -> None:
    port = ports.free_port()
    url = f"http://{LOOPBACK}:{port}"
    with running_server(
        "the server", [*SERVE, "--directory", str(tmp_path), str(port)], url, "/", 30
    ) as server:
        assert httpx.get(server.url).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_server_that_ends_while_it_starts_is_named_with_its_exit_code_and_last_lines() -> None:
    command = ["sh", "-c", "for i in $(seq 99); do echo line $i; done; exit 7"]
    with (
        pytest.raises(EndpointError, match="the server ended with exit code 7") as caught,
        running_server("the server", command, f"http://{LOOPBACK}:{ports.free_port()}", "/", 30),
    ):
        pass
    assert "line 99" in str(caught.value)
    assert "line 80" not in str(caught.value)


def test_of_a_server_of_several_processes_the_error_that_came_first_is_shown_too(
    tmp_path: Path,
) -> None:
    # The shape of vLLM's log: the engine's process names the cause, the API server's says that one failed
    engine = "(EngineCore_DP0 pid=91) ERROR 11-26 09:14:02 [core.py:842]"
    lines = [
        "INFO loading weights: no Error: is in this word",
        f"{engine} Traceback (most recent call last):",
        f"{engine} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        *(f"  File api_server.py, line {number}" for number in range(40)),
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    log = tmp_path / "output.log"
    log.write_text("\n".join(lines))

    shown = last_lines(log).splitlines()

    assert shown[0] == lines[2]
    assert shown[1] == "..."
    assert shown[2:] == lines[-15:]
    log.write_text("\n".join(lines[-41:]))
    assert last_lines(log).splitlines() == lines[-15:], "no earlier error"


@pytest.mark.slow
def test_a_server_that_does_not_answer_in_time_is_named_with_its_address() -> None:
    url = f"http://{LOOPBACK}:{ports.free_port()}"
    with (
        pytest.raises(
            EndpointError, match=rf"the server did not answer at {url} within 2 s[\s\S]*waiting"
        ),
        running_server("the server", ["sh", "-c", "echo waiting; sleep 600"], url, "/", 2),
    ):
        pass


def test_a_port_in_use_is_passed_over() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert free_port(port) > port


@pytest.mark.slow
def test_a_guard_does_not_wait_for_ever_for_a_supervisor_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepsearch_rl.core.processes._SUPERVISOR_GRACE_S", 0.5)
    with ProcessGuard() as guard:
        process = guard.start(
            ["sh", "-c", "echo $$ > shell.pid; echo started; sleep 600"], folder=tmp_path
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        # As if it waited for a child that the kernel does not end
        os.kill(process.pid, signal.SIGSTOP)
    assert process.returncode == -signal.SIGKILL
    assert gone(tmp_path / "shell.pid")


@pytest.mark.slow
def test_the_log_of_a_server_that_failed_is_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines = "for i in $(seq 40); do echo line $i; done; exit 3"
    url = f"http://{LOOPBACK}:{ports.free_port()}"
    with (
        pytest.raises(EndpointError) as failed,
        running_server("the server", ["sh", "-c", lines], url, "/", 30),
    ):
        raise AssertionError("it never answers")
    [log] = tmp_path.glob("deepsearch-*/output.log")
    assert str(log) in str(failed.value)
    assert log.read_text().splitlines()[0] == "line 1"
    with running_server(
        "the server",
        [*SERVE, "--directory", str(tmp_path), str(port := ports.free_port())],
        f"http://{LOOPBACK}:{port}",
        "/",
        30,
    ):
        assert len(list(tmp_path.glob("deepsearch-*"))) == 2
    assert list(tmp_path.glob("deepsearch-*")) == [log.parent]
