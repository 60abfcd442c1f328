import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from deepsearch_rl.retrieval.server.batching import OverloadedError, SearchQueue


@dataclass
class GatedSearcher:
    """Answers every query with its own text and top_k, once the gate is open; remembers the batches it was given."""

    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)

    def search(self, queries, top_k):
        self.batches.append(list(queries))
        assert self.gate.wait(10)
        if "broken" in queries:
            raise OSError("the disk is gone")
        return [[f"{query}/{top_k}"] for query in queries]


async def started(searcher: GatedSearcher, count: int) -> None:
    while len(searcher.batches) < count:
        await asyncio.sleep(0)


def test_requests_that_arrive_during_a_search_share_the_next_one():
    async def scenario():
        searcher = GatedSearcher()
        async with SearchQueue(searcher, max_pending=10) as queue:
            first = asyncio.create_task(queue.search(["a"], 1))
            await started(searcher, 1)
            later = [
                asyncio.create_task(queue.search(queries, k))
                for queries, k in ((["b", "c"], 1), (["d"], 1), (["e"], 2))
            ]
            await asyncio.sleep(0)
            searcher.gate.set()
            assert await asyncio.gather(first, *later) == [[["a/1"]], [["b/1"], ["c/1"]], [["d/1"]], [["e/2"]]]
        assert searcher.batches == [["a"], ["b", "c", "d"], ["e"]]

    asyncio.run(scenario())


def test_more_waiting_queries_than_allowed_are_refused_and_a_lone_long_request_is_not():
    async def scenario():
        searcher = GatedSearcher()
        async with SearchQueue(searcher, max_pending=2) as queue:
            long = asyncio.create_task(queue.search(["a", "b", "c"], 1))
            await started(searcher, 1)
            with pytest.raises(OverloadedError):
                await queue.search(["d"], 1)
            searcher.gate.set()
            assert len(await long) == 3
            assert await queue.search(["d"], 1) == [["d/1"]]

    asyncio.run(scenario())


def test_a_failed_search_reaches_its_requests_and_the_next_one_works():
    async def scenario():
        searcher = GatedSearcher()
        searcher.gate.set()
        async with SearchQueue(searcher, max_pending=2) as queue:
            with pytest.raises(OSError, match="disk"):
                await queue.search(["broken"], 1)
            assert await queue.search(["a"], 1) == [["a/1"]]

    asyncio.run(scenario())
