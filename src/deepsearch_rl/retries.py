"""The two policies of repeated attempts.

A call that fails is repeated a number of times, with waits that double (:func:`retry`). A call that a server has no
capacity for is repeated for minutes (:func:`wait_for_capacity`), because a limit per minute needs a minute to pass.
"""

import contextlib
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from typing import TypeVar

import tenacity

CallT = TypeVar("CallT", bound=Callable[..., object])
FIRST_CAPACITY_WAIT_S = 2.0
LONGEST_CAPACITY_WAIT_S = 60.0
MAX_CAPACITY_ATTEMPTS = 50  # a server that asks for waits of milliseconds is not asked for ever


def retry(
    attempts: int,
    backoff_s: float,
    errors: type[Exception],
    on_failure: Callable[[BaseException, int], None],
    *,
    max_wait_s: float = 60.0,
) -> Callable[[CallT], CallT]:
    """Return a decorator that repeats a function, or a coroutine function, after errors of one kind.

    The wait before the second attempt is ``backoff_s``; it doubles for each further one. An error may carry ``wait_s``,
    the seconds that a server asks to wait, in its place; it ends the attempts where it is longer than ``max_wait_s``.
    The last attempt's error is raised as it is. ``on_failure`` is called with the error and the attempt's number, from
    1, before each wait.
    """

    def wait_s(state: tenacity.RetryCallState) -> float:
        asked_s = getattr(_error_of(state), "wait_s", None)
        return min(backoff_s * 2 ** (state.attempt_number - 1) if asked_s is None else asked_s, max_wait_s)

    def is_last(state: tenacity.RetryCallState) -> bool:
        return state.attempt_number >= attempts or (getattr(_error_of(state), "wait_s", None) or 0.0) > max_wait_s

    return tenacity.retry(  # pyright: ignore[reportReturnType]
        reraise=True,
        retry=tenacity.retry_if_exception_type(errors),
        stop=is_last,
        wait=wait_s,
        before_sleep=lambda state: on_failure(_error_of(state), state.attempt_number),
    )


def wait_for_capacity(
    errors: type[Exception],
    total_wait_s: float,
    on_failure: Callable[[BaseException, int], None],
    *,
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> Callable[[CallT], CallT]:
    """Return a decorator that repeats a function, or a coroutine function, while a server has no capacity for it.

    The waits double from :data:`FIRST_CAPACITY_WAIT_S` to :data:`LONGEST_CAPACITY_WAIT_S`, each drawn from its upper
    half, so that callers come back one after the other. An error's ``wait_s`` takes the place of a wait. The error is
    raised where the next wait would make all of them longer than ``total_wait_s``. ``sleep`` is for coroutines.
    """
    drawn = tenacity.wait_exponential(FIRST_CAPACITY_WAIT_S / 2, LONGEST_CAPACITY_WAIT_S / 2)

    def wait_s(state: tenacity.RetryCallState) -> float:
        asked_s = getattr(_error_of(state), "wait_s", None)
        half_s = drawn(state)
        return half_s + random.uniform(0.0, half_s) if asked_s is None else asked_s

    def is_last(state: tenacity.RetryCallState) -> bool:
        waits_s = state.idle_for + state.upcoming_sleep
        return waits_s > total_wait_s or state.attempt_number >= MAX_CAPACITY_ATTEMPTS

    own_sleep = {} if sleep is None else {"sleep": sleep}
    return tenacity.retry(  # pyright: ignore[reportReturnType, reportCallIssue]
        reraise=True,
        retry=tenacity.retry_if_exception_type(errors),
        stop=is_last,
        wait=wait_s,
        before_sleep=lambda state: on_failure(_error_of(state), state.attempt_number),
        **own_sleep,  # pyright: ignore[reportArgumentType]
    )


def _error_of(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome and state.outcome.exception()
    assert error is not None
    return error


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how long a server asks to wait (RFC 9110, section 10.2.3; OpenAI's milliseconds); None if it does not."""
    with contextlib.suppress(ValueError):
        return float(headers["retry-after-ms"]) / 1000 if "retry-after-ms" in headers else _seconds_of(headers)
    return None


def _seconds_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, which holds a number or a date; raise ValueError for neither."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    until = email.utils.parsedate_to_datetime(value)
    return max(0.0, (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp() - time.time())
