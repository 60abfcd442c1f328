import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deepsearch_rl.core.retries import NoCapacityError, no_capacity, retry, wait_for_capacity


class Busy(Exception):
    """An error that may pass; a server may ask to wait."""

    def __init__(self, wait_s: float | None = None) -> None:
        super().__init__("busy")
        self.wait_s = wait_s


def failing(errors: list[Exception]) -> Callable[[], str]:
    """A function that raises the errors, one at each call, and then answers."""

    def call() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    return call


def waits_of(
    errors: list[Exception], attempts: int = 4, max_wait_s: float = 10.0
) -> tuple[str | None, list[float]]:
    """The answer, or None after the last attempt, and the waits between the attempts."""
    waits: list[float] = []
    call: Any = retry(attempts, 1.0, Busy, lambda *_: None, max_wait_s=max_wait_s)(failing(errors))
    call.retry.sleep = waits.append
    try:
        return call(), waits
    except Busy:
        return None, waits


def test_waits_double_until_the_call_succeeds() -> None:
    assert waits_of([Busy(), Busy(), Busy()]) == ("answer", [1.0, 2.0, 4.0])


def test_no_wait_is_longer_than_the_longest() -> None:
    assert waits_of([Busy(), Busy(), Busy()], max_wait_s=1.5) == ("answer", [1.0, 1.5, 1.5])


def test_the_last_attempts_error_is_raised() -> None:
    assert waits_of([Busy(), Busy()], attempts=2) == (None, [1.0])


def test_a_server_says_how_long_to_wait_and_a_longer_wait_than_allowed_ends_the_attempts() -> None:
    assert waits_of([Busy(7.0), Busy()]) == ("answer", [7.0, 2.0])
    assert waits_of([Busy(11.0)]) == (None, [])


def test_an_error_of_another_kind_is_raised_at_once() -> None:
    with pytest.raises(ValueError, match="other"):
        waits_of([ValueError("other")])


@pytest.mark.parametrize("mistake", [TypeError, AttributeError, NameError, ImportError])
def test_a_mistake_of_the_program_is_raised_at_once_where_every_error_is_repeated(
    mistake: type[Exception],
) -> None:
    failures: list[int] = []
    policy = retry(3, 0.0, Exception, lambda _, attempt: failures.append(attempt))
    with pytest.raises(mistake):
        policy(failing([mistake("x"), mistake("x")]))()
    assert failures == []


def test_every_failure_that_is_followed_by_a_wait_is_told_with_its_number() -> None:
    failures: list[int] = []
    policy = retry(3, 0.0, Busy, lambda _, attempt: failures.append(attempt))
    policy(failing([Busy(), Busy()]))()
    assert failures == [1, 2]


def test_a_coroutine_function_is_repeated_too() -> None:
    calls = failing([Busy()])

    async def call() -> str:
        return calls()

    assert asyncio.run(retry(2, 0.0, Busy, lambda *_: None)(call)()) == "answer"


@pytest.mark.parametrize("cause", [None, ValueError("429")])
def test_the_cause_of_a_lack_of_capacity_is_raised_where_the_next_wait_would_be_too_long(
    cause: ValueError | None,
) -> None:
    waits: list[int] = []

    @wait_for_capacity(0.0, lambda _error, attempt: waits.append(attempt))
    def full() -> None:
        raise NoCapacityError("full", wait_s=7.0) from cause

    with pytest.raises(ValueError if cause else NoCapacityError) as error:
        full()
    assert error.value is cause or str(error.value) == "full"
    assert not waits


def test_a_lack_of_capacity_is_one_that_minutes_help() -> None:
    full = no_capacity("slow down", {"retry-after": "7"}, "")
    assert full is not None
    assert (str(full), full.wait_s) == ("slow down", 7.0)
    assert no_capacity("", {}, "tokens per day") is None
    assert no_capacity("", {"retry-after": "7"}, "insufficient_quota") is None
