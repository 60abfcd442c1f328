"""A load generator for servers on this machine: closed-loop clients over raw keep-alive HTTP/1.1 connections.

    .venv/bin/python -m benchmarks.http_load                # its own speed

Each client holds one connection, sends a request, waits for the whole answer and sends the next. Requests are bytes
made beforehand, answers are parsed by httptools, and both run in one uvloop thread: what is left per request is a few
tens of microseconds, so that one core outruns the servers it is to measure. Run as a command it proves that against a
server that does nothing, in requests per CPU second of the generator, which a busy machine does not change.

Closed loops answer "how fast for C clients", not "what happens at R requests/s": a slow answer delays its client's next
request, and latencies count from the moment a request is sent.
"""

import asyncio
import ipaddress
import itertools
import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import httptools
import numpy as np
import uvloop

from benchmarks.measure import parse_options
from benchmarks.servers import ServerProcess, trivial_server

TARGET_PER_S = 4000
NameT = TypeVar("NameT")


class Request(NamedTuple):
    """``payload`` is what goes over the wire; an answer of status 200 is wrong unless its body holds ``expected``."""

    payload: bytes
    expected: bytes = b""


def json_request(body: object, expected: bytes, path: str = "/retrieve", headers: str = "") -> Request:
    """Return a POST of a JSON body; ``headers`` are further lines, each with its CRLF."""
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    return Request(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload, expected)


@dataclass(slots=True)
class Load:
    """What clients sent and got. Latencies are those of complete answers, whatever their status."""

    clients: int
    elapsed_s: float = 0.0
    generator_cpu_s: float = 0.0
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
        return float(np.percentile(self.latencies_s, percent)) * 1000 if self.answered else float("nan")


class _Client(asyncio.Protocol):
    """One connection: the next request goes out as soon as the answer to the last one is whole."""

    def __init__(self, requests: Iterator[Request], load: Load) -> None:
        self._requests, self._load = requests, load
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


async def drive(
    address: tuple[str, int], requests: Iterable[Request], clients: int, max_seconds: float, grace_s: float = 30
) -> Load:
    """Send requests from ``clients`` connections at once until the time or the requests are used up.

    Args:
        address: host and port of a server on loopback.
        requests: consumed one by one, by whichever client is free.
        clients: open connections; a client whose connection is closed by the server does not come back.
        max_seconds: after which no further request is sent.
        grace_s: how long answers may take after that; what is still open then is broken.

    Raises:
        ValueError: the address is not a loopback address.
    """
    if not ipaddress.ip_address(address[0]).is_loopback:
        raise ValueError(f"{address[0]} is not a loopback address: this generator loads servers of this machine alone.")
    loop, load = asyncio.get_running_loop(), Load(clients)
    cpu_s, started_s = time.process_time(), time.perf_counter()
    in_time = itertools.takewhile(lambda _: time.perf_counter() < started_s + max_seconds, requests)
    connections = (loop.create_connection(lambda: _Client(in_time, load), *address) for _ in range(clients))
    results = await asyncio.gather(*connections, return_exceptions=True)
    connected = [result[1] for result in results if not isinstance(result, BaseException)]
    load.broken += clients - len(connected)
    if connected:
        await asyncio.wait([client.left for client in connected], timeout=max_seconds + grace_s)
    load.elapsed_s, load.generator_cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    for client in connected:
        if not client.left.done():
            client.transport.abort()
            await client.left
    return load


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A server under load: what the clients got, and what it took the server."""

    load: Load
    server_cpu_s: float
    batch_size: float
    """Mean queries per search, from the server's own counters; NaN where it searched nothing."""

    @property
    def figures(self) -> dict[str, float]:
        """The columns of a table."""
        return {
            "queries/s": self.load.rate_per_s,
            "p50 ms": self.load.percentile_ms(50),
            "p99 ms": self.load.percentile_ms(99),
            "CPU ms/query": self.server_cpu_s / self.load.answered * 1000,
            "queries per batch": self.batch_size,
        }


def drive_in_turn(
    servers: Mapping[NameT, ServerProcess], requests: list[Request], clients: int, seconds: float, repetitions: int
) -> dict[NameT, list[ServerLoad]]:
    """Load the servers one after the other, in reverse order every second time, so that a busy machine slows all."""
    measured: dict[NameT, list[ServerLoad]] = {name: [] for name in servers}
    for repetition in range(repetitions):
        for name in list(servers) if repetition % 2 == 0 else reversed(servers):
            server = servers[name]
            before, cpu_s = server.metrics(), server.cpu_s()
            load = uvloop.run(drive(server.address, itertools.cycle(requests), clients, seconds))
            cpu_s, after = server.cpu_s() - cpu_s, server.metrics()
            batches, queries = (
                after[f"deepsearch_batch_queries_{what}"] - before[f"deepsearch_batch_queries_{what}"]
                for what in ("count", "sum")
            )
            measured[name].append(ServerLoad(load, cpu_s, queries / batches if batches else float("nan")))
            sys.stderr.write(f"{name}, {clients} clients: {load.rate_per_s:.0f}/s\n")
    return measured


def main() -> None:
    """Load a server that does nothing; status 1 if the generator is too slow or an answer is missing."""
    options = parse_options(__doc__, clients=64, seconds=5.0)
    request = json_request({"queries": ["what does a search cost that nobody makes"], "topk": 3}, b'"result"')
    with trivial_server() as server:
        load = uvloop.run(drive(server.address, itertools.repeat(request), options.clients, options.seconds))
    per_cpu_s = load.answered / load.generator_cpu_s
    sys.stdout.write(
        f"{load.answered} requests from {load.clients} clients in {load.elapsed_s:.1f} s: {load.rate_per_s:,.0f}/s, "
        f"p50 {load.percentile_ms(50):.2f} ms, p99 {load.percentile_ms(99):.2f} ms, {load.errors} errors\n"
        f"generator: {1e6 / per_cpu_s:.0f} us of CPU per request = {per_cpu_s:,.0f} requests/s on a core of its own "
        f"(wanted: {TARGET_PER_S:,})\n"
    )
    sys.exit(bool(load.errors or per_cpu_s < TARGET_PER_S))


if __name__ == "__main__":
    main()
