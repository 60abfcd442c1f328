"""The two policies of repeated attempts.

A call that fails is repeated a number of times, with waits that double (:func:`retry`). A call that
a server has no capacity for is repeated for minutes (:func:`wait_for_capacity`), because a limit
per minute needs a minute to pass.
"""

import contextlib
import email.utils
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from typing import TypeVar

import tenacity

CallT = TypeVar("CallT", bound=Callable[..., object])
FIRST_CAPACITY_WAIT_S = 2.0

# Limits are per minute, so that a longer wait gains nothing
LONGEST_CAPACITY_WAIT_S = 60.0

# A server that asks for waits of milliseconds is not asked for ever
MAX_CAPACITY_ATTEMPTS = 50

# What a mistake in a program raises; another attempt makes it again
PROGRAM_ERRORS = (TypeError, AttributeError, NameError, ImportError, AssertionError)

# How providers say that money or a paid quota is out
_SPENT = re.compile(
    # OpenAI, DeepSeek, Moonshot
    r"insufficient[_ ](user[_ ])?(quota|balance|credits?|funds)"
    r"|billing_hard_limit|exceeded_current_quota|check your plan and billing"  # OpenAI, Moonshot
    r"|(not|n't have) enough credits"  # Serper
    r"|(all|out of) (available |your |of |the )*(credits?|searches)\b"  # xAI, SerpApi
    r"|spending limit|exceeds? your plan"  # xAI, Tavily
    # Zhipu, DashScope, Volcengine
    r"|\u4f59\u989d\u4e0d\u8db3|\u6b20\u8d39|arrearage|overdue",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")

# A quota that minutes do not fill again
_DAILY = re.compile(
    r"(per|a|_|-)[ _-]?(day|month)\b|perday|(for|of) the (day|month)|\b(daily|monthly)\b|\b[TR]PD\b",
    re.IGNORECASE,
)

# A wait that the text itself names; Gemini writes it beside the words of a spent quota
_PROMISE = re.compile(r"(try|retry)( again)? (in|after) (about )?\d|retrydelay", re.IGNORECASE)


def retry(
    attempts: int,
    backoff_s: float,
    errors: type[Exception],
    on_failure: Callable[[BaseException, int], None],
    *,
    max_wait_s: float = 60.0,
) -> Callable[[CallT], CallT]:
    """Return a decorator that repeats a function, or a coroutine function, after errors of one kind.

    After :data:`PROGRAM_ERRORS` it is not repeated, whatever the kind. The wait before the second
    attempt is ``backoff_s``; it doubles for each further one. An error may carry ``wait_s``, the
    seconds that a server asks to wait, in its place; it ends the attempts where it is longer than
    ``max_wait_s``. The last attempt's error is raised as it is. ``on_failure`` is called with the
    error and the attempt's number, from 1, before each wait.
    """

    def wait_s(state: tenacity.RetryCallState) -> float:
        server_wait_s = getattr(_error_of(state), "wait_s", None)
        if server_wait_s is not None:
            return min(server_wait_s, max_wait_s)
        return min(backoff_s * 2 ** (state.attempt_number - 1), max_wait_s)

    def is_last(state: tenacity.RetryCallState) -> bool:
        server_wait_s = getattr(_error_of(state), "wait_s", None) or 0.0
        # To ask sooner than the server wants would be in vain
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
    """A server takes no more requests now; ``wait_s`` is how long it asks to wait, None if it does not say."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def no_capacity(reason: str, headers: Mapping[str, str], text: str) -> NoCapacityError | None:
    """Return the error of an answer of status 429 that a wait of minutes helps, None where it does not.

    ``headers`` and ``text`` are the answer's, ``reason`` becomes the error's text.
    """
    wait_s = retry_after_s(headers)
    return None if is_quota_spent(text, wait_s) else NoCapacityError(reason, wait_s)


def wait_for_capacity(
    total_wait_s: float,
    on_failure: Callable[[BaseException, int], None],
    *,
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> Callable[[CallT], CallT]:
    """Return a decorator that repeats a function, or a coroutine function, while it raises NoCapacityError.

    The waits double from :data:`FIRST_CAPACITY_WAIT_S` to :data:`LONGEST_CAPACITY_WAIT_S`, each
    drawn from its upper half, so that callers come back one after the other. An error's ``wait_s``
    takes the place of a wait. Where the next wait would make all of them longer than
    ``total_wait_s``, the error that NoCapacityError was raised from is raised, or else itself.
    ``sleep`` is for coroutines.
    """
    half_of_wait = tenacity.wait_exponential(FIRST_CAPACITY_WAIT_S / 2, LONGEST_CAPACITY_WAIT_S / 2)

    def wait_s(state: tenacity.RetryCallState) -> float:
        server_wait_s = getattr(_error_of(state), "wait_s", None)
        if server_wait_s is not None:
            return server_wait_s
        # Callers that were refused together would otherwise come back together
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
    """Return whether an error, as text or as JSON, says that the account's money or its paid quota is out."""
    # Chinese providers' words may come as JSON's escapes
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return _SPENT.search(text) is not None and not _PROMISE.search(text)


def is_quota_spent(text: str, wait_s: float | None) -> bool:
    """Return whether an error of status 429 says that no wait of minutes helps: money or a day's quota is out.

    ``wait_s`` is how long the server asks to wait, if it does: then a day's quota fills up again in
    that time.
    """
    is_day_over = wait_s is None and _DAILY.search(text) is not None
    return is_day_over or is_out_of_money(text)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how long a server asks to wait (RFC 9110, section 10.2.3; OpenAI's milliseconds); None if it does not."""
    with contextlib.suppress(ValueError):
        return (
            float(headers["retry-after-ms"]) / 1000
            if "retry-after-ms" in headers
            else _seconds_of(headers)
        )

    return None


def _seconds_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, which holds a number or a date; raise ValueError for neither."""
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)

    # HTTP's dates are in GMT, and some servers leave the zone out.
    until = email.utils.parsedate_to_datetime(value)
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, until.timestamp() - time.time())
