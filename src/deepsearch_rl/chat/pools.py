"""Connections to a server that many rollouts ask at once.

A connection pool of httpx looks through its idle connections at the beginning and at the end of
every request, and for each idle one through all of them (httpcore 1.0.9,
``_assign_requests_to_connections``). With 64 rollouts at once that is a tenth of the agent's CPU
time. httpx2, which searches use, looks through them once, but asks the system about the socket of
every idle one. So connections are spread over pools of a few.
"""

import functools
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar
from urllib.request import getproxies

import httpx

POOLS = 16
# A pool takes so many requests at once before the next one is used
REQUESTS_PER_POOL = 4


class Closable(Protocol):
    """What a pool of httpx and of httpx2 have in common here."""

    async def aclose(self) -> None:
        """Close all connections."""


PoolT = TypeVar("PoolT", bound=Closable)


class SpreadPools(Generic[PoolT]):
    """Equal connection pools: few requests at once share the first, many are spread over all."""

    def __init__(self, open_pool: Callable[[], PoolT]) -> None:
        self.pools = [open_pool() for _ in range(POOLS)]
        self._running = [0] * POOLS

    @contextmanager
    def choose(self) -> Iterator[PoolT]:
        """Yield the pool for a request that runs until the end of the block.

        A streamed answer counts until its headers have come.
        """
        place = self._place()
        self._running[place] += 1

        try:
            yield self.pools[place]
        finally:
            self._running[place] -= 1

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self.pools:
            await pool.aclose()

    def _place(self) -> int:
        """Return the first pool with room, so that connections are used again before they expire.

        Where none has room, return the one with the fewest requests.
        """
        for place, running in enumerate(self._running):
            if running < REQUESTS_PER_POOL:
                return place

        return self._running.index(min(self._running))


@functools.cache
def certificates() -> ssl.SSLContext:
    """Return the certificates of all authorities; to read them takes 20 ms, so a process does it once."""
    return httpx.create_ssl_context()


class SpreadTransport(httpx.AsyncBaseTransport):
    """Sends requests over several connection pools."""

    def __init__(self) -> None:
        # The caller limits how many requests there are at once
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._spread = SpreadPools(
            lambda: httpx.AsyncHTTPTransport(verify=certificates(), limits=limits)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the response, whose body may still be on its way."""
        with self._spread.choose() as pool:
            return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._spread.aclose()


def spread_transport() -> SpreadTransport | None:
    """Return a transport over several pools.

    Return None where the environment names a proxy: httpx's own transport then decides, by
    NO_PROXY, which hosts are asked through it.
    """
    is_proxied = {"http", "https", "all"} & getproxies().keys()
    return None if is_proxied else SpreadTransport()
