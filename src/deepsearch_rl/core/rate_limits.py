"""Limits of requests and tokens per minute that all callers of a process share.

A limit belongs to an address and a model: every client takes from the same token bucket. A tenth of
a minute's requests may go out at once; after that they are spread evenly, so that no minute exceeds
the limit by much.

The tokens of a request are known when it is answered. Until then it takes an estimate; the
difference is charged to the next request.
"""

import functools
from dataclasses import dataclass

from pyrate_limiter import Duration, Limiter, Rate, StateBucket, TokenBucket

# Larger bursts would exceed the limit of a provider that counts in seconds
_BURST_SHARE = 10


@dataclass(slots=True)
class RateLimits:
    """The limits of one endpoint; None means unlimited."""

    requests: Limiter | None
    tokens: Limiter | None
    tokens_per_minute: int
    # Tokens that earlier requests used beyond their estimates
    _owed: int = 0

    async def wait(self, tokens: int) -> None:
        """Return when a request of about so many tokens may be sent."""
        if self.requests is not None:
            await self.requests.try_acquire_async()
        if self.tokens is not None:
            due = self._owed + tokens
            # The bucket holds a minute's tokens; later requests owe the rest
            taken = max(0, min(due, self.tokens_per_minute))
            self._owed = due - taken
            if taken:
                await self.tokens.try_acquire_async(weight=taken)

    def correct(self, estimated: int, used: int) -> None:
        """Replace the estimate for an answered request by what it used."""
        self._owed += used - estimated

    def wait_in_thread(self) -> None:
        """Return when a request may be sent, for callers without an event loop; counts no tokens."""
        if self.requests is not None:
            self.requests.try_acquire()


@functools.cache
def rate_limits(
    place: str,  # noqa: ARG001 - the cache's key of an endpoint
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
