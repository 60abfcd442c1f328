"""Limits of requests and tokens per minute that all callers of a process share.

A limit belongs to an address and a model, or to a search endpoint: every client of it takes from
one token bucket, so that a hundred rollouts send what one may send. A tenth of a minute's requests
can go out at once; after that they are spread evenly, so that no minute has many more than allowed.

How many tokens a request takes is known when it is answered. Until then it has taken an estimate;
the difference is added to what the next request takes, or subtracted from it.
"""

import functools
from dataclasses import dataclass

from pyrate_limiter import Duration, Limiter, Rate, StateBucket, TokenBucket

# A tenth of a minute's requests at once: more would make two bursts in a row exceed the limit of a
# provider that counts in seconds.
_BURST_SHARE = 10


@dataclass(slots=True)
class RateLimits:
    """The limits of one endpoint; None where there is none."""

    requests: Limiter | None
    tokens: Limiter | None
    tokens_per_minute: int
    _owed: int = 0
    """Tokens that earlier requests used beyond what they had taken; negative: took beyond what they used."""

    async def wait(self, tokens: int) -> None:
        """Return when a request of about so many tokens may be sent; one takes a minute's tokens at most at once."""
        if self.requests is not None:
            await self.requests.try_acquire_async()
        if self.tokens is not None:
            due = self._owed + tokens
            taken = max(0, min(due, self.tokens_per_minute))
            self._owed = due - taken
            if taken:
                await self.tokens.try_acquire_async(weight=taken)

    def correct(self, estimated: int, used: int) -> None:
        """Count what an answered request used in place of its estimate."""
        self._owed += used - estimated

    def wait_in_thread(self) -> None:
        """Return when a request may be sent, to a caller that has no event loop and counts no tokens."""
        if self.requests is not None:
            self.requests.try_acquire()


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
