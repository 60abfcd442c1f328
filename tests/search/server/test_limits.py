"""The amount that requests share, where its parts are given back at awkward moments."""

import asyncio
import time

import pytest
from starlette.exceptions import HTTPException

from deepsearch_rl.server.limits import Budget

HALF = 16


async def hold(budget: Budget, timeout_s: float, end: asyncio.Event | None = None) -> None:
    """Hold all that large parts may have, until the end."""
    async with budget.part(HALF, timeout_s):
        if end is not None:
            await end.wait()


@pytest.mark.anyio
@pytest.mark.parametrize("released_after_s", [0.01, 0.03])
async def test_a_part_that_is_given_back_when_a_requests_time_is_up_answers_it_503(
    released_after_s: float,
) -> None:
    budget = Budget(2 * HALF)
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    holder = asyncio.create_task(hold(budget, 10, end))
    await asyncio.sleep(0)
    late = asyncio.create_task(hold(budget, 0.02))
    await asyncio.sleep(0)

    # The loop is busy until both are due, so that they fall into one of its rounds
    loop.call_soon(time.sleep, 0.05)
    loop.call_later(released_after_s, end.set)
    await holder
    with pytest.raises(HTTPException) as raised:
        await late

    assert raised.value.status_code == 503
    # All of it is free again
    await hold(budget, 1)
