"""One search at a time, many requests per search.

While a search runs in its thread, arriving requests wait; the next search takes all of them at once. An idle server
answers immediately, a busy one works in batches, and no timer is needed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.retrieval.searcher import Hit, Searcher


class OverloadedError(EndpointError):
    """More queries wait than the server may hold."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    queries: Sequence[str]
    top_k: int
    answer: asyncio.Future[list[list[Hit]]]


class SearchQueue:
    """A bounded queue before a searcher; use as an async context manager inside the serving event loop."""

    def __init__(self, searcher: Searcher, max_pending: int) -> None:
        self._searcher, self._max_pending = searcher, max_pending
        self._waiting: list[_Waiting] = []
        self._pending = 0
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)
        for request in self._waiting:
            request.answer.cancel()

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """One list of hits per query, as :meth:`Searcher.search` gives them.

        Raises:
            OverloadedError: with these, more than ``max_pending`` queries would wait. A request that finds nobody
                waiting is always taken, however long it is.
        """
        if not queries:
            return []
        if self._pending and self._pending + len(queries) > self._max_pending:
            raise OverloadedError(
                f"{self._pending} queries are waiting and at most {self._max_pending} may; try again."
            )
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(queries, top_k, answer))
        self._pending += len(queries)
        self._arrived.set()
        try:
            return await answer
        finally:
            self._pending -= len(queries)

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._waiting = self._waiting, []
            for top_k in sorted({request.top_k for request in batch}):
                await self._answer([request for request in batch if request.top_k == top_k], top_k)

    async def _answer(self, batch: list[_Waiting], top_k: int) -> None:
        queries = [query for request in batch for query in request.queries]
        try:
            found = iter(await asyncio.to_thread(self._searcher.search, queries, top_k))
        except Exception as error:  # noqa: BLE001 - whatever it was belongs to the requests that asked, not to the worker
            for request in batch:
                _settle(request.answer, error)
        else:
            for request in batch:
                _settle(request.answer, [next(found) for _ in request.queries])


def _settle(answer: asyncio.Future[list[list[Hit]]], outcome: list[list[Hit]] | Exception) -> None:
    if answer.done():  # the client has gone away
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
