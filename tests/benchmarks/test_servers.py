"""The load generator must count what really happened, or the figures made with it mean nothing."""

import asyncio
import itertools
from collections.abc import Iterable

import pytest

from benchmarks.servers import Load, Request, drive, json_request

REQUEST = json_request({"queries": ["comet"]}, b'"result"')


def drive_against(
    answer: bytes, requests: Iterable[Request], close_after: bool = False, max_seconds: float = 10
) -> Load:
    """Three clients against a server that reads a request's one packet and writes ``answer``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(2**16):
            writer.write(answer)
            if close_after:
                break
        writer.close()

    async def scenario() -> Load:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            return await drive(server.sockets[0].getsockname()[1], requests, 3, max_seconds)

    return asyncio.run(scenario())


def test_every_request_is_sent_once_and_answered_once() -> None:
    load = drive_against(
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"result":[]}',
        itertools.repeat(REQUEST, 100),
    )
    assert (load.answered, load.errors, load.statuses) == (100, 0, {200: 100})
    assert load.percentile_ms(50) <= load.percentile_ms(99)


def test_refusals_are_errors_by_status() -> None:
    load = drive_against(
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        itertools.repeat(REQUEST, 10),
    )
    assert (load.errors, load.statuses, load.rate_per_s) == (10, {503: 10}, 0)


def test_an_answer_without_what_it_has_to_hold_is_wrong() -> None:
    load = drive_against(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", itertools.repeat(REQUEST, 10)
    )
    assert (load.wrong, load.errors, load.rate_per_s) == (10, 10, 0)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", b"no HTTP\r\n\r\n", b""]
)
def test_a_connection_that_ends_without_a_whole_answer_is_broken(answer: bytes) -> None:
    load = drive_against(answer, itertools.repeat(REQUEST, 100), close_after=True)
    assert (load.answered, load.broken) == (0, 3)


def test_a_server_that_is_not_there_breaks_every_client() -> None:
    async def scenario() -> Load:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
        return await drive(port, itertools.repeat(REQUEST, 100), 3, max_seconds=10)

    assert asyncio.run(scenario()).broken == 3


def test_time_ends_a_run_as_well_as_the_count() -> None:
    answer = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"result":[]}'
    load = drive_against(answer, itertools.repeat(REQUEST), max_seconds=0.1)
    assert load.answered > 0
    assert load.errors == 0
