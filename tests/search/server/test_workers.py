"""Several processes behind one port: they answer, count and stop together, and one that dies is replaced."""

import contextlib
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deepsearch_rl.server.launch import bind, listen
from tests.search.server.test_process import Served, error_of, served

WAIT_S = 60
PROGRAM = "deepsearch_rl.server.launch"

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def two_workers(index_dir: Path) -> Iterator[Served]:
    with served("--index", str(index_dir), "--workers", "2", "--threads", "1") as server:
        try:
            yield server
        finally:
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(WAIT_S)


def workers_of(server: Served) -> list[psutil.Process]:
    """The processes that serve, without those that supervise them."""
    workers: list[psutil.Process] = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if PROGRAM in command and "deepsearch_rl.core.supervisor" not in command:
                workers.append(process)

    return workers


def counted_requests(server: Served) -> int:
    figures = server.ask("GET", "/metrics")[1].decode()
    answered = r'deepsearch_requests_total{route="/retrieve",status="200"} ([\d.]+)'
    return sum(int(float(number)) for number in re.findall(answered, figures))


def test_workers_answer_and_count_together_one_that_dies_is_replaced_and_they_stop_together(
    index_dir: Path,
) -> None:
    with two_workers(index_dir) as server:
        assert "by 2 workers, 1 threads each" in server.first_line
        assert len(workers_of(server)) == 2
        for number in range(40):
            status, body = server.ask("POST", "/retrieve", {"queries": [f"comet {number}"]})
            assert (status, b'"comet-0"' in body) == (200, True)

        # 40 connections meet one worker alone with a probability of 2e-12.
        assert {counted_requests(server) for _ in range(20)} == {40}
        connections = [len(worker.net_connections()) for worker in workers_of(server)]
        assert len(connections) == 2
        assert server.ask("GET", "/sse")[0] == 404

        require_replacement(server)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(WAIT_S) == 0

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def require_replacement(server: Served) -> None:
    """Kill a worker: nobody is refused, and there are two again."""
    victim = workers_of(server)[0]
    victim.kill()
    victim.wait(WAIT_S)

    # Whoever comes to the socket of the dead worker is answered by the next one.
    for number in range(12):
        assert server.ask("POST", "/retrieve", {"queries": [f"comet {number}"]})[0] == 200

    deadline = time.monotonic() + WAIT_S
    while len(workers_of(server)) < 2:
        assert time.monotonic() < deadline
    assert victim.pid not in {worker.pid for worker in workers_of(server)}
    assert server.process.poll() is None


def test_an_index_that_cannot_be_opened_ends_the_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = error_of(["--index", str(tmp_path), "--port", "0", "--workers", "2"])
    assert "worker 1 of the retrieval server ended with status 1" in message
    assert capfd.readouterr().err.count("there is no index in") == 1


def test_a_port_where_another_server_listens_is_refused(index_dir: Path) -> None:
    with bind("127.0.0.1", 0, shared=True) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        message = error_of(["--index", str(index_dir), "--port", str(port), "--workers", "2"])
    assert "Address already in use" in message


def test_sockets_share_a_port_only_where_all_of_them_say_so() -> None:
    with bind("127.0.0.1", 0, shared=True) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port, shared=True) as second:
            assert second.getsockname() == first.getsockname()
        first.listen()
        with pytest.raises(Exception, match="Address already in use"):
            listen("127.0.0.1", port)
