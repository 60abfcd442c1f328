"""The time of limits per minute, which tests move."""

import asyncio
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import pyrate_limiter.limiter
import pytest
from pyrate_limiter.clocks import MonotonicClock

_CLOCK_NUMBERS = itertools.count(1)
_FAR_APART_S = 1e6


@dataclass(slots=True)
class LimitClock:
    """The clock of the limits per minute; nothing but their waits moves it."""

    start_s: float
    waited_s: float = 0.0

    def now_ms(self) -> int:
        return round(1000 * (self.start_s + self.waited_s))

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds

    async def sleep_in_loop(self, seconds: float) -> None:
        self.sleep(seconds)


@pytest.fixture
def limit_clock(monkeypatch: pytest.MonkeyPatch) -> LimitClock:
    """Have the limits per minute wait in a time of their own, which says how long they waited."""
    # Limits are kept for the process: no clock is behind that of an earlier test
    clock = LimitClock(start_s=_FAR_APART_S * next(_CLOCK_NUMBERS))
    own_asyncio = SimpleNamespace(**vars(asyncio) | {"sleep": clock.sleep_in_loop})
    monkeypatch.setattr(MonotonicClock, "now", lambda _: clock.now_ms())
    monkeypatch.setattr(pyrate_limiter.limiter, "sleep", clock.sleep)
    monkeypatch.setattr(pyrate_limiter.limiter, "asyncio", own_asyncio)
    return clock
