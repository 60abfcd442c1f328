"""Limits of tokens per minute count what a reply used in place of its estimate."""

import asyncio
import dataclasses
from typing import Any

import pytest

from deepsearch_rl.chat.request_options import RequestOptions
from deepsearch_rl.core.rate_limits import rate_limits
from tests.agent.conftest import ANSWER, Answer
from tests.limit_clock import LimitClock


@pytest.mark.parametrize(
    ("requests_", "last"),
    [
        ([(5000, None)], False),  # an estimate alone
        ([(5000, 100)], True),
        ([(5000, 5000)], False),
        ([(5000, 100), (5000, 100)], True),
        ([(100, 5900)], False),
        ([(100, 900), (100, 900), (100, 900)], False),
        ([(100, 900), (100, 100)], True),
        ([(9000, 9000)], False),  # more than a minute's tokens
        ([(9000, 1000)], True),
        ([(0, 0)], True),
    ],
    ids=str,
)
def test_the_tokens_of_a_reply_correct_what_its_request_took(
    request: pytest.FixtureRequest,
    limit_clock: LimitClock,
    requests_: list[tuple[int, int | None]],
    last: bool,
) -> None:
    limits = rate_limits(request.node.name, None, 6000)

    async def goes_at_once(tokens: int) -> bool:
        before_s = limit_clock.waited_s
        await limits.wait(tokens)
        return limit_clock.waited_s == before_s

    async def scenario() -> bool:
        for estimated, used in requests_:
            assert await goes_at_once(estimated)
            if used is not None:
                limits.correct(estimated, used)
        return await goes_at_once(5000)

    assert asyncio.run(scenario()) is last


@pytest.mark.parametrize(("used", "is_late"), [((20, 5), False), ((0, 0), True)])
def test_the_usage_of_a_chat_completion_is_counted_in_place_of_the_estimate(
    chat_server: Any,
    answer: Answer,
    used: tuple[int, int],
    limit_clock: LimitClock,
    is_late: bool,
) -> None:
    options = RequestOptions(tokens_per_minute=1500)
    endpoint = dataclasses.replace(chat_server.endpoint, options=options)
    for query in ("one", "two"):
        chat_server.says("", query, tokens=used)
    chat_server.says(ANSWER, tokens=used)

    assert answer(endpoint=endpoint, max_tokens=1000, context_tokens=4000).answer == "Mary Moss"
    assert (limit_clock.waited_s > 5) is is_late
