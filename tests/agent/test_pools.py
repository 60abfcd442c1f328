"""Connections to a server are used again, and spread over pools where many requests run at once."""

import asyncio
from collections import Counter
from contextlib import ExitStack, suppress

import httpx
import pytest

from deepsearch_rl.chat.pools import (
    POOLS,
    REQUESTS_PER_POOL,
    SpreadPools,
    SpreadTransport,
    spread_transport,
)
from deepsearch_rl.core.processes import LOOPBACK

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_many_requests_at_once_are_spread_over_all_pools_and_few_share_the_first() -> None:
    spread = SpreadPools(lambda: object())
    with ExitStack() as running:
        chosen = [running.enter_context(spread.choose()) for _ in range(POOLS * REQUESTS_PER_POOL)]
        assert Counter(map(spread.pools.index, chosen)) == dict.fromkeys(
            range(POOLS), REQUESTS_PER_POOL
        )
        # Where none has room, they are filled evenly
        more = {spread.pools.index(running.enter_context(spread.choose())) for _ in range(POOLS)}
        assert more == set(range(POOLS))

    with spread.choose() as first, pytest.raises(RuntimeError), spread.choose() as second:
        raise RuntimeError
    assert (first, second) == (spread.pools[0], spread.pools[0])
    with ExitStack() as running:
        chosen = [running.enter_context(spread.choose()) for _ in range(REQUESTS_PER_POOL)]
    assert set(chosen) == {spread.pools[0]}, "a failed request leaves its place"


def test_calls_one_after_the_other_share_a_connection_and_closing_closes_all() -> None:
    opened = 0
    closed = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened, closed
        opened += 1
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.02)
                writer.write(ANSWER)
        closed += 1
        writer.close()

    async def ask() -> tuple[int, int]:
        server = await asyncio.start_server(serve, LOOPBACK, 0)
        url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        async with server:
            async with httpx.AsyncClient(transport=SpreadTransport()) as client:
                for _ in range(5):
                    assert (await client.get(url)).text == "ok"
                one_by_one = opened
                answers = await asyncio.gather(*(client.get(url) for _ in range(64)))
                assert {answer.text for answer in answers} == {"ok"}
            for _ in range(100):
                if closed == opened:
                    break
                await asyncio.sleep(0.01)
        return one_by_one, opened

    one_by_one, all_at_once = asyncio.run(ask())
    assert one_by_one == 1
    assert all_at_once == 64
    assert closed == 64


def test_a_proxy_of_the_environment_is_httpxs_own_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert isinstance(spread_transport(), SpreadTransport)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert spread_transport() is None
