"""The retrieval server in a process of its own, and clients that load it: closed loops over keep-alive HTTP/1.1.

Each client holds one connection, sends a request, waits for the whole answer and sends the next.
Requests are bytes made beforehand, answers are parsed by httptools, and both run in one uvloop
thread: what is left per request is a few tens of microseconds, so that one core outruns the servers
it is to measure.

Closed loops answer "how fast for C clients", not "what happens at R requests/s": a slow answer
delays its client's next request, and latencies count from the moment a request is sent.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httptools
import numpy as np
import psutil
import uvloop

from benchmarks.measure import status_kb
from deepsearch_rl.core import processes
from deepsearch_rl.core.processes import LOOPBACK, free_port

STARTUP_TIMEOUT_S = 180
GRACE_S = 30
MAIN = "from deepsearch_rl.cli.main import main; main()"


# --- servers
# --------------------------------------------------------------------------------------------------------


def spare_core() -> int | None:
    """Return the last core, which the servers run on; None where there is only one."""
    cores = os.sched_getaffinity(0)
    return max(cores) if len(cores) > 1 else None


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server on a loopback port."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return f"http://{LOOPBACK}:{self.port}"

    def cpu_s(self) -> float:
        """Return user and system time of all its threads since it started, in seconds."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def anonymous_mb(self) -> float:
        """Return the anonymous memory in RAM: heaps and stacks, without mapped files."""
        return status_kb("RssAnon", self.pid) * 1024 / 1e6


def on_core(core: int | None) -> list[str]:
    """Return what stands before a command that is to run on one core, or anywhere for None."""
    if core is None:
        return []

    # One thread for the numeric libraries: the server's core is one, and the other belongs to the
    # clients.
    return ["taskset", "-c", str(core), "env", "OMP_NUM_THREADS=1"]


@contextmanager
def running_server(
    index: tuple[Path, Path], options: Sequence[str], core: int | None, program: str = MAIN
) -> Iterator[ServerProcess]:
    """Start the retrieval server, wait until it answers, and stop it when the block ends; EndpointError if it fails.

    ``index`` is an index's folder and its chunk file, ``options`` are further ones of the server's
    command line, which ``program`` reads. All its threads run on ``core``, or anywhere.
    """
    port = free_port()
    command = [
        *on_core(core),
        sys.executable,
        "-c",
        program,
        "retrieve",
        "serve",
        "--port",
        str(port),
        "--index",
        str(index[0]),
        "--chunks",
        str(index[1]),
        *options,
    ]

    with running_command(command, port) as server:
        yield server


@contextmanager
def running_command(command: Sequence[str], port: int) -> Iterator[ServerProcess]:
    """Run a server's command until the end of the block, which begins when ``/healthz`` answers at the port."""
    with processes.running_server(
        "the retrieval server",
        command,
        f"http://{LOOPBACK}:{port}",
        "/healthz",
        STARTUP_TIMEOUT_S,
    ) as server:
        yield ServerProcess(port, psutil.Process(server.process.pid).children()[0].pid)


# --- load
# -----------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """``payload`` is what goes over the wire; an answer of status 200 is wrong unless its body holds ``expected``."""

    payload: bytes
    expected: bytes = b""


def json_request(body: object, expected: bytes, path: str = "/retrieve") -> Request:
    """Return a POST of a JSON body, whose answer may be what MCP asks for."""
    payload = json.dumps(body).encode()
    accepted = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{accepted}Content-Length: {len(payload)}\r\n\r\n"
    return Request(head.encode() + payload, expected)


@dataclass(slots=True)
class Load:
    """What clients sent and got. Latencies are those of complete answers, whatever their status."""

    elapsed_s: float = 0.0
    generator_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    latencies_s: array = field(default_factory=lambda: array("d"))
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    """Answers of status 200 without the text that they had to hold."""
    broken: int = 0
    """Requests without an answer: connection refused or lost, bytes that are no HTTP, nothing before the grace ends."""

    @property
    def answered(self) -> int:
        """Complete answers of any status."""
        return len(self.latencies_s)

    @property
    def rate_per_s(self) -> float:
        """Right answers per second of wall time."""
        return (self.statuses[200] - self.wrong) / self.elapsed_s

    @property
    def errors(self) -> int:
        """Everything that is not a right answer of status 200."""
        return self.answered - self.statuses[200] + self.wrong + self.broken

    def percentile_ms(self, percent: float) -> float:
        """Latency that ``percent`` % of the answers stayed below."""
        return (
            float(np.percentile(self.latencies_s, percent)) * 1000
            if self.answered
            else float("nan")
        )

    @property
    def figures(self) -> dict[str, float]:
        """The columns of a table."""
        return {
            "queries/s": self.rate_per_s,
            "p50 ms": self.percentile_ms(50),
            "p99 ms": self.percentile_ms(99),
            "CPU ms/query": self.server_cpu_s / self.answered * 1000,
            "client us/query": self.generator_cpu_s / self.answered * 1e6,
            "errors": self.errors,
        }


class _Client(asyncio.Protocol):
    """One connection: the next request goes out as soon as the answer to the last one is whole."""

    def __init__(self, requests: Iterator[Request], load: Load) -> None:
        self._requests = requests
        self._load = load
        self._request: Request | None = None
        self._body: list[bytes] = []
        self.left = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._send_next()

    def _send_next(self) -> None:
        self._request = next(self._requests, None)
        if self._request is None:
            self.transport.close()
            return

        self._parser = httptools.HttpResponseParser(self)
        self._sent_s = time.perf_counter()
        self.transport.write(self._request.payload)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()  # counted as broken when the connection is gone

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        assert self._request
        self._load.latencies_s.append(time.perf_counter() - self._sent_s)
        status = self._parser.get_status_code()
        self._load.statuses[status] += 1
        self._load.wrong += status == 200 and self._request.expected not in b"".join(self._body)
        self._body.clear()

        if self._parser.should_keep_alive():
            self._send_next()
        else:
            self._request = None
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio hands it over
        self._load.broken += self._request is not None
        self.left.set_result(None)


async def drive(port: int, requests: Iterable[Request], clients: int, max_seconds: float) -> Load:
    """Send requests from ``clients`` connections at once until the time or the requests are used up.

    Whichever client is free sends the next request; one whose connection is closed by the server
    does not come back. A request that is unanswered half a minute after the end counts as broken.
    """
    loop = asyncio.get_running_loop()
    load = Load()
    cpu_s = time.process_time()
    started_s = time.perf_counter()
    in_time = itertools.takewhile(lambda _: time.perf_counter() < started_s + max_seconds, requests)
    connections = (
        loop.create_connection(lambda: _Client(in_time, load), LOOPBACK, port)
        for _ in range(clients)
    )
    results = await asyncio.gather(*connections, return_exceptions=True)
    connected = [result[1] for result in results if not isinstance(result, BaseException)]
    load.broken += clients - len(connected)
    if connected:
        await asyncio.wait([client.left for client in connected], timeout=max_seconds + GRACE_S)
    load.elapsed_s = time.perf_counter() - started_s
    load.generator_cpu_s = time.process_time() - cpu_s

    for client in connected:
        if not client.left.done():
            client.transport.abort()
            await client.left

    return load


def load_server(
    server: ServerProcess, requests: Sequence[Request], clients: int, seconds: float
) -> Load:
    """Send requests, again and again, for some seconds; write the rate to stderr."""
    server_cpu_s = server.cpu_s()
    load = uvloop.run(drive(server.port, itertools.cycle(requests), clients, seconds))
    load.server_cpu_s = server.cpu_s() - server_cpu_s
    sys.stderr.write(f"{server.url}, {clients} clients: {load.rate_per_s:.0f}/s\n")
    return load
