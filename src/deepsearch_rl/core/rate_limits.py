"""Limits of requests and tokens per minute that all callers of a process share.

A limit belongs to an address and a model, or to a search endpoint: every client of it takes from
one token bucket, so that a hundred rollouts send what one may send. A tenth of a minute's requests
can go out at once; after that they are spread evenly, so that no minute has many more than allowed.
"""

import functools
from dataclasses import dataclass

from pyrate_limiter import Duration, Limiter, Rate, StateBucket, TokenBucket

_BURST_SHARE = 10


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of one endpoint; None where there is none."""

    requests: Limiter | None
    tokens: Limiter | None
    tokens_per_minute: int

    async def wait(self, tokens: int) -> None:
        """Return when a request of about so many tokens may be sent; a larger one than a minute's waits for all."""
        if self.requests is not None:
            await self.requests.try_acquire_async()
        if self.tokens is not None:
            await self.tokens.try_acquire_async(weight=self._weight(tokens))

    def wait_in_thread(self) -> None:
        """Return when a request may be sent, to a caller that has no event loop and counts no tokens."""
        if self.requests is not None:
            self.requests.try_acquire()

    def _weight(self, tokens: int) -> int:
        return max(1, min(tokens, self.tokens_per_minute))


@functools.cache
def rate_limits(
    place: str,  # noqa: ARG001 - what the cache knows an endpoint by
    requests_per_minute: int | None,
    tokens_per_minute: int | None = None,
) -> RateLimits:
    """Return the limits of an endpoint, the same object for every caller in this process."""
    requests = None
    tokens = None
    if requests_per_minute is not None:
        burst = max(1, requests_per_minute // _BURST_SHARE)
        requests = _limiter(Rate(requests_per_minute, Duration.MINUTE, burst=burst))

    if tokens_per_minute is not None:
        tokens = _limiter(Rate(tokens_per_minute, Duration.MINUTE))
    return RateLimits(requests, tokens, tokens_per_minute or 0)


def _limiter(rate: Rate) -> Limiter:
    return Limiter(StateBucket([rate], algorithm=TokenBucket()))
