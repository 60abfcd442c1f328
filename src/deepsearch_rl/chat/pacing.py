"""Waiting for a model server that takes no more requests now: the limits that params name, and status 429.

Such a wait is nobody's failure. It takes nothing from a question's time: the deadline of the
rollout stands still.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import openai

from deepsearch_rl.chat.address import Endpoint
from deepsearch_rl.chat.request_options import RequestOptions
from deepsearch_rl.core.rate_limits import rate_limits
from deepsearch_rl.core.retries import no_capacity, wait_for_capacity

ResultT = TypeVar("ResultT")
_LOG = logging.getLogger(__name__)
_CHARACTERS_PER_TOKEN = 4
# Called with the seconds of a wait that has ended
OnPause = Callable[[float], None]
_deadline: ContextVar[tuple[asyncio.Timeout, OnPause] | None] = ContextVar("deadline", default=None)


@contextlib.contextmanager
def pausable(deadline: asyncio.Timeout, on_pause: OnPause) -> Iterator[None]:
    """Have the waits in the block stop a deadline, which has begun; ``on_pause`` gets the seconds of each."""
    token = _deadline.set((deadline, on_pause))
    try:
        yield
    finally:
        _deadline.reset(token)


@contextlib.contextmanager
def _paused_deadline() -> Iterator[None]:
    pair = _deadline.get()
    if pair is None:
        yield
        return

    deadline, on_pause = pair
    end = None if deadline.expired() else deadline.when()
    if end is None:
        yield
        return

    loop = asyncio.get_running_loop()
    # The provider's limit is no fault of the rollout, whose time it would take
    began = loop.time()
    deadline.reschedule(None)

    try:
        yield
    finally:
        waited_s = loop.time() - began
        deadline.reschedule(end + waited_s)
        on_pause(waited_s)


async def call_in_turn(
    client: openai.AsyncOpenAI,
    options: RequestOptions,
    request: dict[str, Any],
    call: Callable[[], Awaitable[ResultT]],
) -> ResultT:
    """Make a call when the limits allow it, and again while the server answers 429.

    Raises openai.RateLimitError after ``rate_limit_wait_s``, or at once where money or a day's
    quota is out.
    """
    limits = rate_limits(
        f"{client.base_url} {request.get('model')}",
        options.requests_per_minute,
        options.tokens_per_minute,
    )

    def log(error: BaseException, attempt: int) -> None:
        _LOG.warning(
            "the model server takes no more requests now (%s), attempt %d",
            loggable(client, error),
            attempt,
        )

    async def sleep(seconds: float) -> None:
        with _paused_deadline():
            await asyncio.sleep(seconds)

    @wait_for_capacity(options.rate_limit_wait_s, log, sleep=sleep)
    async def take_turn() -> ResultT:
        """Call once the limits allow it, and correct them by the tokens that the answer took."""
        estimated = _estimated_tokens(request)
        with _paused_deadline():
            await limits.wait(estimated)
        try:
            result = await call()
        except openai.RateLimitError as error:
            full = no_capacity(str(error), error.response.headers, error.response.text)
            if full is None:
                raise
            raise full from error

        used = _used_tokens(result)
        if used is not None:
            limits.correct(estimated, used)
        return result

    return await take_turn()


def loggable(client: openai.AsyncOpenAI, error: BaseException) -> str:
    """Return an error's text without the key, user and password of its client, which a server may repeat in it."""
    return Endpoint(str(client.base_url), "", client.api_key).redact(str(error))


def _estimated_tokens(request: dict[str, Any]) -> int:
    """Return about how many tokens a provider reserves for a request: its text, and the longest answer."""
    characters = len(json.dumps([request.get("messages"), request.get("tools")], default=str))
    return characters // _CHARACTERS_PER_TOKEN + int(request.get("max_tokens") or 0)


def _used_tokens(response: object) -> int | None:
    """Return the tokens that a response counts, prompt and answer together; None where it counts none."""
    total = getattr(getattr(response, "usage", None), "total_tokens", None)
    return total if isinstance(total, int) and total > 0 else None
