"""Retries: a few after an error (:func:`retry`), and for minutes after a rate limit (:func:`wait_for_capacity`)."""

import contextlib
import email.utils
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from pathlib import Path
from typing import TypeVar

import tenacity

CallT = TypeVar("CallT", bound=Callable[..., object])
FIRST_CAPACITY_WAIT_S = 2.0
# Limits are per minute
LONGEST_CAPACITY_WAIT_S = 60.0
# A cap for servers that ask for waits of milliseconds
MAX_CAPACITY_ATTEMPTS = 50
# Bugs, which another attempt repeats
PROGRAM_ERRORS = (TypeError, AttributeError, NameError, ImportError, AssertionError)

_SPENT = re.compile(
    "|".join(
        line
        for line in Path(__file__).with_name("spent_quota.txt").read_text("utf-8").splitlines()
        if not line.startswith("#")
    ),
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")

# A quota that minutes do not refill
_DAILY = re.compile(
    r"(per|a|_|-)[ _-]?(day|month)\b|perday|(for|of) the (day|month)|\b(daily|monthly)\b|\b[TR]PD\b",
    re.IGNORECASE,
)

# A limit of nothing: Gemini's of a model that is not free, whose error promises a wait all the same
_NO_LIMIT = re.compile(r"\blimit: 0\b(?![.,]\d)", re.IGNORECASE)

# A request that is larger than all that a minute allows (OpenAI, Groq, Azure)
_LIMIT = re.compile(r"limit:? ([\d,]+)\b.{0,60}?requested:? ([\d,]+)", re.IGNORECASE | re.DOTALL)

# Gemini names a wait beside the words of a spent quota
_PROMISE = re.compile(r"(try|retry)( again)? (in|after) (about )?\d|retrydelay", re.IGNORECASE)


def retry(
    attempts: int,
    backoff_s: float,
    errors: type[Exception],
    on_failure: Callable[[BaseException, int], None],
    *,
    max_wait_s: float = 60.0,
) -> Callable[[CallT], CallT]:
    """Return a decorator that retries a function or coroutine function.

    Args:
        attempts: calls in total; the last error is raised unchanged.
        backoff_s: wait before the second attempt; it doubles before each further one. An error's
            attribute ``wait_s``, which a server asked for, takes its place.
        errors: what is retried, unless it is one of :data:`PROGRAM_ERRORS`.
        on_failure: called with the error and the number of the attempt, from 1, before each wait.
        max_wait_s: the longest wait; an error with a longer ``wait_s`` is raised.
    """

    def wait_s(state: tenacity.RetryCallState) -> float:
        server_wait_s = getattr(_error_of(state), "wait_s", None)
        if server_wait_s is not None:
            return min(server_wait_s, max_wait_s)
        return min(backoff_s * 2 ** (state.attempt_number - 1), max_wait_s)

    def is_last(state: tenacity.RetryCallState) -> bool:
        server_wait_s = getattr(_error_of(state), "wait_s", None) or 0.0
        return state.attempt_number >= attempts or server_wait_s > max_wait_s

    return tenacity.retry(  # pyright: ignore[reportReturnType]
        reraise=True,
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, errors) and not isinstance(error, PROGRAM_ERRORS)
        ),
        stop=is_last,
        wait=wait_s,
        before_sleep=lambda state: on_failure(_error_of(state), state.attempt_number),
    )


class NoCapacityError(Exception):
    """A rate limit refused a request; ``wait_s`` is the wait that the server asks for, None if it does not say."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def no_capacity(reason: str, headers: Mapping[str, str], text: str) -> NoCapacityError | None:
    """Return the error for a response of status 429, None if a wait of minutes will not help.

    ``headers`` and ``text`` are the response's, ``reason`` becomes the error's message.
    """
    wait_s = retry_after_s(headers)
    return None if is_quota_spent(text, wait_s) else NoCapacityError(reason, wait_s)


def wait_for_capacity(
    total_wait_s: float,
    on_failure: Callable[[BaseException, int], None],
    *,
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> Callable[[CallT], CallT]:
    """Return a decorator that retries a function or coroutine function while it raises NoCapacityError.

    Waits double from :data:`FIRST_CAPACITY_WAIT_S` to :data:`LONGEST_CAPACITY_WAIT_S`, with jitter in
    their upper halves; an error's ``wait_s`` takes the place of a wait. When the waits would exceed
    ``total_wait_s``, the cause of NoCapacityError is raised, or itself if it has none. ``sleep`` is
    for coroutines.
    """
    half_of_wait = tenacity.wait_exponential(FIRST_CAPACITY_WAIT_S / 2, LONGEST_CAPACITY_WAIT_S / 2)

    def wait_s(state: tenacity.RetryCallState) -> float:
        server_wait_s = getattr(_error_of(state), "wait_s", None)
        if server_wait_s is not None:
            return server_wait_s
        # Callers that were refused together should not return together
        half_s = half_of_wait(state)
        return half_s + random.uniform(0.0, half_s)

    def is_last(state: tenacity.RetryCallState) -> bool:
        waits_s = state.idle_for + state.upcoming_sleep
        return waits_s > total_wait_s or state.attempt_number >= MAX_CAPACITY_ATTEMPTS

    def raise_cause(state: tenacity.RetryCallState) -> None:
        error = _error_of(state)
        raise error.__cause__ or error from None

    own_sleep = {} if sleep is None else {"sleep": sleep}
    return tenacity.retry(  # pyright: ignore[reportReturnType, reportCallIssue]
        retry=tenacity.retry_if_exception_type(NoCapacityError),
        retry_error_callback=raise_cause,
        stop=is_last,
        wait=wait_s,
        before_sleep=lambda state: on_failure(_error_of(state), state.attempt_number),
        **own_sleep,  # pyright: ignore[reportArgumentType]
    )


def _error_of(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome and state.outcome.exception()
    assert error is not None
    return error


def is_out_of_money(text: str) -> bool:
    """Return whether an error, as text or JSON, says that the account's money or paid quota is out."""
    # JSON may escape Chinese
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return _SPENT.search(text) is not None and not _PROMISE.search(text)


def is_larger_than_limit(text: str) -> bool:
    """Return whether an error of status 429 says that the request alone has more tokens than its limit of time."""
    numbers = _LIMIT.search(text)
    if numbers is None:
        return _NO_LIMIT.search(text) is not None
    limit, requested = (int(number.replace(",", "") or 0) for number in numbers.groups())
    return requested > limit


def is_quota_spent(text: str, wait_s: float | None) -> bool:
    """Return whether an error of status 429 says that minutes do not help.

    Money or a daily quota is out, or the request alone is larger than the limit. ``wait_s`` is the
    wait that the server asks for, after which even a daily quota is free again.
    """
    is_day_over = wait_s is None and _DAILY.search(text) is not None
    return is_day_over or is_larger_than_limit(text) or is_out_of_money(text)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that a server asks for (RFC 9110, section 10.2.3; OpenAI's milliseconds), None without one."""
    with contextlib.suppress(ValueError):
        return (
            float(headers["retry-after-ms"]) / 1000
            if "retry-after-ms" in headers
            else _seconds_of(headers)
        )

    return None


def _seconds_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; raise ValueError for neither."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)

    # Some servers leave out the zone, which is GMT
    until = email.utils.parsedate_to_datetime(value)
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, until.timestamp() - time.time())
