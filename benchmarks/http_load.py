"""A load generator for servers on this machine: closed-loop clients over raw keep-alive HTTP/1.1 connections.

    .venv/bin/python -m benchmarks.load.http_load --self-test

Each of C clients holds one connection, sends a request, waits for the whole answer and sends the next. Requests are
bytes made beforehand, answers are parsed by httptools, and both run in one uvloop thread: what is left per request is
a few tens of microseconds, so that one core outruns the servers it is to measure. `--self-test` proves that against a
server that does nothing, in requests per CPU second of the generator, which a busy machine does not change.

Closed loops answer "how fast for C clients", not "what happens at R requests/s": a slow answer delays its client's next
request, and latencies count from the moment a request is sent.
"""

import argparse
import asyncio
import contextlib
import ipaddress
import itertools
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import httptools
import numpy as np
import uvloop

from benchmarks.load.server_process import forked_server, json_response, serve_bytes

TARGET_PER_S = 4000
TRIVIAL_ANSWER = json_response(b'{"result":[]}')


class Request(NamedTuple):
    """``payload`` is what goes over the wire; an answer of status 200 is wrong unless its body holds ``expected``."""

    payload: bytes
    expected: bytes = b""


@dataclass(frozen=True, slots=True)
class Load:
    """What C clients sent and got. Latencies are those of complete answers, whatever their status."""

    clients: int
    elapsed_s: float
    generator_cpu_s: float
    latencies_s: np.ndarray
    statuses: dict[int, int]
    wrong: int
    """Answers of status 200 without the text that they had to hold."""
    broken: int
    """Requests without an answer: connection refused or lost, bytes that are no HTTP, nothing before the grace ends."""

    @property
    def answered(self) -> int:
        """Complete answers of any status."""
        return len(self.latencies_s)

    @property
    def rate_per_s(self) -> float:
        """Right answers per second of wall time."""
        return (self.statuses.get(200, 0) - self.wrong) / self.elapsed_s

    @property
    def errors(self) -> int:
        """Everything that is not a right answer of status 200."""
        return self.answered - self.statuses.get(200, 0) + self.wrong + self.broken

    def percentile_ms(self, percent: float) -> float:
        """Latency that ``percent`` % of the answers stayed below."""
        return float(np.percentile(self.latencies_s, percent)) * 1000 if self.answered else float("nan")


@dataclass(slots=True)
class _Run:
    """What the clients of one run share."""

    requests: Iterator[Request]
    deadline_s: float
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    latencies_s: array = field(default_factory=lambda: array("d"))
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    broken: int = 0
    running: int = 0

    def next_request(self) -> Request | None:
        """The next request to send; None once the count or the time is used up."""
        return next(self.requests, None) if time.perf_counter() < self.deadline_s else None

    def leave(self) -> None:
        """One client less; the run ends with the last one."""
        self.running -= 1
        if not self.running:
            self.finished.set()


class _Client(asyncio.Protocol):
    """One connection: the next request goes out as soon as the answer to the last one is whole."""

    __slots__ = ("_body", "_parser", "_request", "_run", "_sent_s", "_transport")

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._request: Request | None = None
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none of asyncio's
        self._send_next()

    def _send_next(self) -> None:
        self._request = self._run.next_request()
        if self._request is None:
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._sent_s = time.perf_counter()
        self._transport.write(self._request.payload)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()  # counted as broken when the connection is gone

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        run, request = self._run, self._request
        assert request is not None
        run.latencies_s.append(time.perf_counter() - self._sent_s)
        status = self._parser.get_status_code()
        run.statuses[status] += 1
        if status == 200 and request.expected and request.expected not in b"".join(self._body):
            run.wrong += 1
        self._body.clear()
        if self._parser.should_keep_alive():
            self._send_next()
        else:
            self._request = None
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio hands it over
        self._run.broken += self._request is not None
        self._run.leave()


async def drive(
    address: tuple[str, int],
    requests: Iterator[Request],
    clients: int,
    max_requests: int,
    max_seconds: float,
    grace_s: float = 30,
) -> Load:
    """Send requests from ``clients`` connections at once until the count, the time or the requests are used up.

    Args:
        address: host and port of a server on loopback.
        requests: consumed one by one, by whichever client is free.
        clients: open connections; a client whose connection is closed by the server does not come back.
        max_requests: how many are sent at most.
        max_seconds: after which no further request is sent.
        grace_s: how long answers may take after that; what is still open then is broken.

    Raises:
        ValueError: the address is not a loopback address.
    """
    host, port = address
    if not ipaddress.ip_address(host).is_loopback:
        raise ValueError(f"{host} is not a loopback address: this generator loads servers of this machine alone.")
    loop = asyncio.get_running_loop()
    cpu_s, started_s = time.process_time(), time.perf_counter()
    run = _Run(itertools.islice(requests, max_requests), started_s + max_seconds, running=clients)
    connected = await asyncio.gather(
        *(loop.create_connection(lambda: _Client(run), host, port) for _ in range(clients)), return_exceptions=True
    )
    for outcome in connected:
        if isinstance(outcome, BaseException):
            run.broken += 1
            run.leave()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(run.finished.wait(), max_seconds + grace_s)
    elapsed_s = time.perf_counter() - started_s
    open_transports = [
        pair[0] for pair in connected if not isinstance(pair, BaseException) and not pair[0].is_closing()
    ]
    for transport in open_transports:
        transport.abort()
    return Load(
        clients=clients,
        elapsed_s=elapsed_s,
        generator_cpu_s=time.process_time() - cpu_s,
        latencies_s=np.array(run.latencies_s),
        statuses=dict(run.statuses),
        wrong=run.wrong,
        broken=run.broken + len(open_transports),
    )


@contextlib.contextmanager
def trivial_server() -> Iterator[tuple[str, int]]:
    """Yield the address of a server process that only answers."""
    with forked_server(lambda listener: serve_bytes(listener, lambda _: TRIVIAL_ANSWER)) as server:
        yield server.address


def retrieve_request(body: bytes, path: str = "/retrieve", headers: str = "", expected: bytes = b'"result"') -> Request:
    """A POST of a JSON body; ``headers`` are further lines, each with its CRLF."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return Request(head.encode() + body, expected)


def _self_test(clients: int, seconds: float) -> bool:
    request = retrieve_request(b'{"queries": ["what does a search cost that nobody makes"], "topk": 3}')
    with trivial_server() as address:
        load = uvloop.run(drive(address, itertools.repeat(request), clients, sys.maxsize, seconds))
    per_cpu_s = load.answered / load.generator_cpu_s
    sys.stdout.write(
        f"{load.answered} requests from {clients} clients in {load.elapsed_s:.1f} s: {load.rate_per_s:,.0f}/s, "
        f"p50 {load.percentile_ms(50):.2f} ms, p99 {load.percentile_ms(99):.2f} ms, {load.errors} errors\n"
        f"generator: {1e6 / per_cpu_s:.0f} us of CPU per request = {per_cpu_s:,.0f} requests/s on a core of its own "
        f"(wanted: {TARGET_PER_S:,})\n"
    )
    return not load.errors and per_cpu_s >= TARGET_PER_S


def main() -> None:
    """Run the self-test; status 1 if the generator is too slow or an answer is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true", required=True, help="load a server that does nothing")
    parser.parse_args()
    sys.exit(0 if _self_test(clients=64, seconds=5) else 1)


if __name__ == "__main__":
    main()
