"""Connections to a server that many rollouts ask at once.

A connection pool of httpx looks through its idle connections at the beginning and at the end of
every request, and for each idle one through all of them (httpcore 1.0.9,
``_assign_requests_to_connections``). With 64 rollouts at once that is a tenth of the agent's CPU
time. Sixteen pools of four connections look at a handful.
"""

import itertools
from collections.abc import Callable
from typing import Generic, TypeVar
from urllib.request import getproxies

import httpx

POOLS = 16
Pool = TypeVar("Pool")


class TurnsOfPools(Generic[Pool]):
    """Equal connection pools, which requests take in turn."""

    def __init__(self, open_pool: Callable[[], Pool]) -> None:
        self.pools = [open_pool() for _ in range(POOLS)]
        self._turns = itertools.cycle(self.pools)

    def next(self) -> Pool:
        """Return the pool of the next request."""
        return next(self._turns)


class SpreadTransport(httpx.AsyncBaseTransport):
    """Sends requests over several connection pools in turn."""

    def __init__(self) -> None:
        # Read once: it holds the certificates of all authorities
        certificates = httpx.create_ssl_context()
        # The caller limits how many requests there are at once
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._turns = TurnsOfPools(
            lambda: httpx.AsyncHTTPTransport(verify=certificates, limits=limits)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request over the next pool."""
        return await self._turns.next().handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._turns.pools:
            await pool.aclose()


def spread_transport() -> SpreadTransport | None:
    """Return a transport over several pools; None where the environment names a proxy, which httpx then asks."""
    is_proxied = {"http", "https", "all"} & getproxies().keys()
    return None if is_proxied else SpreadTransport()
