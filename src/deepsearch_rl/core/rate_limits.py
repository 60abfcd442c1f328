"""Limits of requests and tokens per minute that all callers of a process share.

A limit belongs to an address and a model, or to a search endpoint: every client of it takes from
one token bucket, so that a hundred rollouts send what one may send. A tenth of a minute's requests
can go out at once; after that they are spread evenly, so that no minute has many more than allowed.

A :class:`MachineLimit` is shared further: by all processes of a user on a machine.

How many tokens a request takes is known when it is answered. Until then it has taken an estimate;
the difference is added to what the next request takes, or subtracted from it.
"""

import fcntl
import functools
import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyrate_limiter import Duration, Limiter, Rate, StateBucket, TokenBucket

# A tenth of a minute's requests at once: more would make two bursts in a row exceed the limit of a
# provider that counts in seconds.
_BURST_SHARE = 10
# How far the clock may be set without that a file of places counts as one from before a restart
_CLOCK_CHANGE_S = 60.0
_LONG_AGO_S = 1e6


@dataclass(slots=True)
class RateLimits:
    """The limits of one endpoint; None where there is none."""

    requests: Limiter | None
    tokens: Limiter | None
    tokens_per_minute: int
    # Tokens that earlier requests used beyond what they had taken; negative: took beyond what they
    # used
    _owed: int = 0

    async def wait(self, tokens: int) -> None:
        """Return when a request of about so many tokens may be sent; one takes a minute's tokens at most at once."""
        if self.requests is not None:
            await self.requests.try_acquire_async()
        if self.tokens is not None:
            due = self._owed + tokens
            # More than a minute's tokens could never be taken: the rest is owed by later requests
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


class MachineLimit:
    """Requests per second to one address, of all processes of a user on this machine together.

    Requests are spread evenly. A file in the machine's folder for temporary files holds when the
    newest of them may go out; a request takes the next place behind it, and waits for it. A place
    that nobody uses, because its process was killed, is lost.
    """

    def __init__(self, place: str, requests_per_second: float) -> None:
        self._interval_s = 1 / requests_per_second
        folder = Path(tempfile.gettempdir(), f"deepsearch-rl-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        digest = hashlib.sha256(place.encode()).hexdigest()[:16]
        self._path = folder / f"requests-{digest}"

    def wait_in_thread(self) -> None:
        """Return when a request may be sent."""
        time.sleep(self.take_place())

    def take_place(self) -> float:
        """Take the next place and return the seconds until then."""
        # The only clock that all processes share and that nobody sets; it begins at the machine's start
        now_s = time.monotonic()
        with self._path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            taken_s = _seconds(file.read(), now_s)
            place_s = max(now_s, taken_s + self._interval_s)

            file.truncate(0)
            file.write(f"{_started_s()} {place_s}")

        return place_s - now_s


def _seconds(text: str, now_s: float) -> float:
    """Return the newest place in a file; long ago where there is none, or it is from before the machine's start."""
    started, _, place = text.partition(" ")
    is_of_now = bool(place) and abs(float(started) - _started_s()) < _CLOCK_CHANGE_S
    return float(place) if is_of_now else now_s - _LONG_AGO_S


def _started_s() -> float:
    return round(time.time() - time.monotonic(), 1)


def _limiter(rate: Rate) -> Limiter:
    return Limiter(StateBucket([rate], algorithm=TokenBucket()))
