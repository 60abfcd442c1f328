"""The one policy of repeated attempts: a number of them, and waits that double."""

from collections.abc import Callable
from typing import TypeVar

import tenacity

CallT = TypeVar("CallT", bound=Callable[..., object])


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

    def error_of(state: tenacity.RetryCallState) -> BaseException:
        error = state.outcome and state.outcome.exception()
        assert error is not None
        return error

    def wait_s(state: tenacity.RetryCallState) -> float:
        asked_s = getattr(error_of(state), "wait_s", None)
        return min(backoff_s * 2 ** (state.attempt_number - 1) if asked_s is None else asked_s, max_wait_s)

    def is_last(state: tenacity.RetryCallState) -> bool:
        return state.attempt_number >= attempts or (getattr(error_of(state), "wait_s", None) or 0.0) > max_wait_s

    return tenacity.retry(  # pyright: ignore[reportReturnType]
        reraise=True,
        retry=tenacity.retry_if_exception_type(errors),
        stop=is_last,
        wait=wait_s,
        before_sleep=lambda state: on_failure(error_of(state), state.attempt_number),
    )
