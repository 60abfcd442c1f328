"""Limits of memory that all requests of a server share.

A limit of one request bounds nothing where clients send many at once. What takes memory is the
passages of answers, from the search until the client has read them, and the bodies of requests. An
answer waits for its turn (:class:`Budget`), because it is known beforehand how many passages it may
have. A body is refused once all have too many bytes (:class:`BodyLimit`), because waiting with half
of it read could last for ever.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator

from starlette.exceptions import HTTPException

RETRY = {"retry-after": "1"}

# Passages of one request, and of one search, where they are as long as usual; and how many there
# may be however long they are
MAX_DOCUMENTS = 50_000
USUAL_PASSAGE_BYTES = 2048
MIN_DOCUMENTS = 64


def max_documents(passage_bytes: float) -> int:
    """Return how many passages one request may have where they have so many bytes on average."""
    fitting = MAX_DOCUMENTS * USUAL_PASSAGE_BYTES / max(passage_bytes, USUAL_PASSAGE_BYTES)
    return max(MIN_DOCUMENTS, int(fitting))


class Budget:
    """An amount that requests share: each takes its part and gives it back; the first that waits is the next to go on.

    A part of more than a sixteenth is large. Large parts have half of the amount to themselves, the
    others the other half, so that one large part after the other does not keep the small ones
    waiting.
    """

    def __init__(self, amount: int) -> None:
        self._half = amount // 2
        self._large_from = amount // 16
        # By whether the parts are large
        self._taken = {True: 0, False: 0}
        self._waiting: dict[bool, deque[tuple[int, asyncio.Future[None]]]] = {
            True: deque(),
            False: deque(),
        }

    @contextlib.asynccontextmanager
    async def part(self, amount: int, timeout_s: float) -> AsyncIterator[None]:
        """Hold a part, of half the budget at most, while the block runs; HTTPException 503 if none is free in time."""
        is_large = amount > self._large_from
        # A larger one would never have its turn
        part = min(amount, self._half)

        if self._waiting[is_large] or self._taken[is_large] + part > self._half:
            await self._wait(part, is_large, timeout_s)
        else:
            self._taken[is_large] += part

        try:
            yield
        finally:
            self._taken[is_large] -= part
            self._admit(is_large)

    async def _wait(self, part: int, is_large: bool, timeout_s: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[is_large].append((part, turn))

        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException as error:
            # It was this request's turn when its time was up: what was taken for it is free again
            if turn.done() and not turn.cancelled():
                self._taken[is_large] -= part
            else:
                # A part that was given back at the same moment has passed this request over already
                with contextlib.suppress(ValueError):
                    self._waiting[is_large].remove((part, turn))

            self._admit(is_large)

            if isinstance(error, TimeoutError):
                problem = (
                    f"answers to other requests take all memory for {timeout_s:g} s; try again."
                )
                raise HTTPException(503, problem, RETRY) from error

            raise

    def _admit(self, is_large: bool) -> None:
        waiting = self._waiting[is_large]
        while waiting and self._taken[is_large] + waiting[0][0] <= self._half:
            part, turn = waiting.popleft()
            if not turn.done():
                self._taken[is_large] += part
                turn.set_result(None)


class BodyLimit:
    """Counts the bytes of all bodies that are being read or answered."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    @contextlib.contextmanager
    def body(self) -> Iterator["HeldBody"]:
        """Yield the account of one body, which is closed when the block ends."""
        held = HeldBody(self)
        try:
            yield held
        finally:
            self._bytes -= held.size_bytes

    def add(self, size_bytes: int) -> None:
        """Count further bytes; raise a HTTPException (503) where all bodies together have too many."""
        if self._bytes + size_bytes > self._max_bytes:
            raise HTTPException(
                503,
                f"all requests together have more than {self._max_bytes} bytes; try again.",
                RETRY,
            )

        self._bytes += size_bytes


class HeldBody:
    """The bytes of one body."""

    def __init__(self, limit: BodyLimit) -> None:
        self._limit = limit
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count bytes that were read; raise as :meth:`BodyLimit.add`."""
        # First: what is refused here is in no account
        self._limit.add(size_bytes)
        self.size_bytes += size_bytes
