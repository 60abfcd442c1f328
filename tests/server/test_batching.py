import asyncio
import contextlib
import dataclasses
import io
import logging
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from deepsearch_rl.core.errors import ConfigError, EndpointDownError, EndpointError
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit
from deepsearch_rl.server import batching
from deepsearch_rl.server.answers import SearchAnswer
from deepsearch_rl.server.batching import (
    MAX_HANGING,
    Metrics,
    QueueFullError,
    SearchFailedError,
    SearchQueue,
    SearchTimeoutError,
)
from tests.server.searchers import GatedSearcher, hit, open_searcher, service_config

pytestmark = pytest.mark.anyio
VERGE = Filter(source="The Verge")


class Driver:
    """A queue before a gated searcher, with what tests ask of it."""

    def __init__(self, searcher: GatedSearcher, **settings: object) -> None:
        self.searcher, self.metrics = searcher, Metrics()
        self.queue = SearchQueue(searcher, service_config(**settings), self.metrics)

    async def ask(self, *queries: str, top_k: int = 1, where: Filter | None = None) -> list[str]:
        return found(await self.queue.answer(queries, top_k, where))

    async def begun(
        self, *queries: str, top_k: int = 1, where: Filter | None = None
    ) -> asyncio.Task[list[str]]:
        """A request that waits in the queue."""
        task = asyncio.create_task(self.ask(*queries, top_k=top_k, where=where))
        await asyncio.sleep(0)
        return task

    async def searching(self) -> None:
        """Until the searcher was called once more."""
        assert await asyncio.to_thread(self.searcher.started.acquire, timeout=10)


def found(answers: list[SearchAnswer]) -> list[str]:
    return [passage.id for answer in answers for passage in answer.passages]


@contextlib.asynccontextmanager
async def driving(searcher: GatedSearcher, **settings: object) -> AsyncIterator[Driver]:
    driver = Driver(searcher, **settings)
    async with driver.queue:
        yield driver


async def test_queries_that_arrive_during_a_search_share_the_next_one_and_each_gets_what_it_asked_for() -> (
    None
):
    async with driving(GatedSearcher()) as driver:
        first = await driver.begun("a")
        await driver.searching()
        later = [
            await driver.begun("b", "c"),
            await driver.begun("d"),
            await driver.begun("e", top_k=2),
            await driver.begun("d", where=VERGE),
        ]
        driver.searcher.gate.set()
        assert await asyncio.gather(first, *later) == [
            ["a/1/"],
            ["b/1/", "c/1/"],
            ["d/1/"],
            ["e/2/"],
            ["d/1/The Verge"],
        ]
        assert driver.searcher.batches == [["a"], ["b", "d", "c"], ["e"], ["d"]]


async def test_a_search_takes_at_most_the_allowed_number_of_queries() -> None:
    async with driving(GatedSearcher(), max_batch=2) as driver:
        first = await driver.begun("first")
        await driver.searching()
        later = await driver.begun("a", "b", "c", "d", "e")
        driver.searcher.gate.set()
        assert await first == ["first/1/"]
        assert await later == ["a/1/", "b/1/", "c/1/", "d/1/", "e/1/"]
        assert driver.searcher.batches == [["first"], ["a", "b"], ["c", "d"], ["e"]]


async def test_a_window_collects_what_arrives_in_it_and_ends_early_when_the_batch_is_full() -> None:
    async with driving(open_searcher(), window_ms=15_000, max_batch=3) as driver:
        answers = await asyncio.gather(driver.ask("a"), driver.ask("b"), driver.ask("c"))
        assert answers == [["a/1/"], ["b/1/"], ["c/1/"]]
        assert driver.searcher.batches == [["a", "b", "c"]]


async def test_a_query_that_is_under_way_is_not_searched_for_again() -> None:
    async with driving(GatedSearcher()) as driver:
        requests = [
            await driver.begun("a"),
            await driver.begun("a", "b"),
            await driver.begun("a", top_k=2),
        ]
        driver.searcher.gate.set()
        assert await asyncio.gather(*requests) == [["a/1/"], ["a/1/", "b/1/"], ["a/2/"]]
        assert sorted(query for batch in driver.searcher.batches for query in batch) == [
            "a",
            "a",
            "b",
        ]


async def test_a_client_that_leaves_takes_no_answer_from_the_others() -> None:
    async with driving(GatedSearcher()) as driver:
        leaving, staying = await driver.begun("a"), await driver.begun("a")
        leaving.cancel()
        driver.searcher.gate.set()
        assert await staying == ["a/1/"]


async def test_repeated_queries_are_answered_from_the_cache_by_query_number_and_filter() -> None:
    async with driving(open_searcher()) as driver:
        for _ in range(2):
            assert await driver.ask("a", "a") == ["a/1/", "a/1/"]
            assert await driver.ask("a", top_k=2) == ["a/2/"]
            assert await driver.ask("a", where=VERGE) == ["a/1/The Verge"]
        assert driver.searcher.batches == [["a"], ["a"], ["a"]]


async def test_the_cache_keeps_what_was_used_last() -> None:
    async with driving(open_searcher(), cache_entries=2) as driver:
        for query in ("a", "b", "a", "c", "a", "b"):
            assert await driver.ask(query) == [f"{query}/1/"]
        assert driver.searcher.batches == [["a"], ["b"], ["c"], ["b"]]


async def test_without_a_cache_every_query_is_searched_for() -> None:
    async with driving(open_searcher(), cache_entries=0) as driver:
        assert await driver.ask("a") == await driver.ask("a")
        assert driver.searcher.batches == [["a"], ["a"]]


async def test_a_long_request_does_not_make_a_short_one_wait_for_its_end() -> None:
    async with driving(GatedSearcher(), max_batch=8, cache_entries=0) as driver:
        first = await driver.begun("first")
        await driver.searching()
        long = await driver.begun(*(f"long {number}" for number in range(1000)))
        short = await driver.begun("short 0", "short 1")
        driver.searcher.gate.set()
        await asyncio.gather(first, short)
        assert {"short 0", "short 1"} <= set(driver.searcher.batches[1])
        assert not long.done()
        assert len(await long) == 1000


async def test_a_request_beyond_the_length_of_the_queue_is_refused_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "MAX_WAITING", 3)
    async with driving(GatedSearcher()) as driver:
        first = await driver.begun("first")
        await driver.searching()
        fitting = await driver.begun("a", "b", "c")
        with pytest.raises(QueueFullError, match="3 queries wait already"):
            await driver.ask("d")
        driver.searcher.gate.set()
        assert await fitting == ["a/1/", "b/1/", "c/1/"]
        assert await first == ["first/1/"]
        assert await driver.ask("d") == ["d/1/"]


async def test_what_waits_is_answered_when_the_endpoint_is_down() -> None:
    class Down(GatedSearcher):
        def find_hits(
            self, queries: Sequence[str], top_k: int, where: Filter | None = None
        ) -> list[list[Hit]]:
            super().find_hits(queries, top_k, where)
            raise EndpointDownError("it is down.")

    async with driving(Down()) as driver:
        requests = [await driver.begun("a")]
        await driver.searching()
        for top_k in (1, 2, 3):
            requests.append(await driver.begun("b", top_k=top_k))
        driver.searcher.gate.set()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert [str(answer) for answer in answers] == ["it is down."] * 4
        assert driver.searcher.batches == [["a"]]


@pytest.mark.slow
async def test_a_search_that_hangs_is_given_up_and_stops_nobody_else() -> None:
    class Hanging(GatedSearcher):
        def find_hits(
            self, queries: Sequence[str], top_k: int, where: Filter | None = None
        ) -> list[list[Hit]]:
            if "hang" in queries:
                return super().find_hits(queries, top_k, where)
            return [[hit(query)] for query in queries]

    async with driving(Hanging(), search_timeout_s=0.2, cache_entries=0) as driver:
        with pytest.raises(SearchTimeoutError, match=r"within 0\.2 s"):
            await driver.ask("hang", "beside it")
        assert "search_timeout_s" in (driver.queue.problem() or "")
        assert await driver.ask("beside it") == ["beside it"]

        driver.searcher.gate.set()
        while driver.queue.problem():
            await asyncio.sleep(0.01)
        assert await driver.ask("hang") == ["hang/1/"]


async def test_a_search_waits_for_the_clients_that_the_last_one_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "PATIENCE", 1e6)
    monkeypatch.setattr(batching, "MAX_PATIENCE_S", 15.0)
    async with driving(GatedSearcher(), cache_entries=0) as driver:
        first = await driver.begun("first")
        await driver.searching()
        three = [await driver.begun(query) for query in "abc"]
        driver.searcher.gate.set()
        await asyncio.gather(first, *three)

        # They come back one after the other, and the first of them is not searched for alone.
        again: list[asyncio.Task[list[str]]] = []
        for query in "abc":
            again.append(await driver.begun(query))
            await asyncio.sleep(0)
        await asyncio.gather(*again)
        assert driver.searcher.batches == [["first"], ["a", "b", "c"], ["a", "b", "c"]]


async def test_a_client_that_does_not_come_back_is_not_waited_for_long() -> None:
    async with driving(open_searcher(), cache_entries=0) as driver:
        assert await driver.ask("a", "b") == ["a/1/", "b/1/"]
        assert await driver.ask("c") == ["c/1/"]
        assert await driver.ask("d") == ["d/1/"]
        assert driver.searcher.batches == [["a", "b"], ["c"], ["d"]]


async def test_a_query_that_breaks_the_search_fails_alone_and_is_not_remembered() -> None:
    async with driving(GatedSearcher()) as driver:
        first = await driver.begun("first")
        await driver.searching()
        good, bad = await driver.begun("good"), await driver.begun("broken")
        driver.searcher.gate.set()
        assert await first == ["first/1/"]
        assert await good == ["good/1/"]
        with pytest.raises(SearchFailedError) as raised:
            await bad
        assert "secret" not in str(raised.value)
        driver.searcher.batches.clear()
        with pytest.raises(SearchFailedError):
            await driver.ask("broken")
        assert driver.searcher.batches == [["broken"]]


async def test_an_error_that_is_meant_for_users_reaches_them() -> None:
    class Unfiltered(GatedSearcher):
        def find_hits(self, *_) -> None:
            raise ConfigError("this index takes no filters.")

    async with driving(Unfiltered()) as driver:
        with pytest.raises(SearchFailedError, match="takes no filters"):
            await driver.ask("a")


class Unreachable(GatedSearcher):
    """Asks an endpoint that refuses the query "refused" and answers no other."""

    def find_hits(self, queries: Sequence[str], *_) -> None:
        self.batches.append(list(queries))
        raise EndpointError("no.") if "refused" in queries else EndpointDownError("it is down.")


@pytest.mark.parametrize(
    ("queries", "searches"),
    [
        (("a", "b", "c"), [["a", "b", "c"]]),
        (("refused", "b", "c"), [["refused", "b", "c"], ["refused"], ["b", "c"]]),
        (
            ("refused", "b", "c", "d"),
            [["refused", "b", "c", "d"], ["refused", "b"], ["refused"], ["b"]],
        ),
    ],
)
async def test_an_endpoint_that_is_down_is_not_waited_for_query_by_query(
    queries: Sequence[str], searches: object
) -> None:
    async with driving(Unreachable(), window_ms=15_000, max_batch=len(queries)) as driver:
        answers = await asyncio.gather(
            *(driver.ask(query) for query in queries), return_exceptions=True
        )
        assert [str(answer) for answer in answers] == [
            "no." if query == "refused" else "it is down." for query in queries
        ]
        assert all(isinstance(answer.__cause__, EndpointError) for answer in answers)
        assert driver.searcher.batches == searches
        assert b"deepsearch_search_failures_total %.1f" % len(queries) in driver.metrics.render()


@contextlib.contextmanager
def logged() -> Iterator[io.StringIO]:
    """What the queue's own logger writes, whatever else in this process has set loggers up."""
    written = io.StringIO()
    handler, logger = logging.StreamHandler(written), logging.getLogger(SearchQueue.__module__)
    logger.addHandler(handler)
    try:
        yield written
    finally:
        logger.removeHandler(handler)


async def test_the_log_quotes_our_own_errors_without_their_causes_which_may_hold_a_key() -> None:
    class Telling(GatedSearcher):
        def find_hits(self, *_) -> None:
            raise EndpointError("the endpoint failed.") from ValueError("api_key=hunter2")

    async def fail(searcher: GatedSearcher, query: str) -> str:
        with logged() as written:
            async with driving(searcher) as driver:
                with pytest.raises(SearchFailedError):
                    await driver.ask(query)
        return written.getvalue()

    told = await fail(Telling(), "a")
    assert "a search failed: the endpoint failed." in told
    assert "hunter2" not in told
    assert "OSError: secret path" in await fail(open_searcher(), "broken")


async def test_a_score_that_json_has_no_number_for_fails_its_query_alone() -> None:
    class Overflowing(GatedSearcher):
        def find_hits(self, queries: Sequence[str], *_):
            return [[dataclasses.replace(hit(query), score=float(query))] for query in queries]

    async with driving(Overflowing(), window_ms=15_000, max_batch=3) as driver:
        answers = await asyncio.gather(
            *map(driver.ask, ("nan", "1", "inf")), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [SearchFailedError, list, SearchFailedError]


class Panic(BaseException):
    """What a library in Rust raises when it gives up."""


@pytest.mark.parametrize("error", [MemoryError, Panic, SystemExit])
async def test_no_error_ends_the_search_thread(error: object) -> None:
    class Failing(GatedSearcher):
        def find_hits(self, queries: Sequence[str], *_):
            if "bad" in queries:
                raise error
            return [[hit(query)] for query in queries]

    async with driving(Failing()) as driver:
        with pytest.raises(SearchFailedError):
            await driver.ask("bad")
        assert await driver.ask("good") == ["good"]


async def test_a_searcher_that_answers_too_few_queries_fails_them_and_not_the_server() -> None:
    class Forgetful(GatedSearcher):
        def find_hits(self, queries: Sequence[str], *_):
            return [[hit(query)] for query in queries if query != "forgotten"]

    async with driving(Forgetful()) as driver:
        with pytest.raises(SearchFailedError):
            await driver.ask("forgotten")
        assert await driver.ask("a") == ["a"]


async def test_beside_as_many_hanging_searches_as_allowed_none_is_begun() -> None:
    searcher = GatedSearcher()
    async with driving(searcher, search_timeout_s=0.05, cache_entries=0) as driver:
        for number in range(MAX_HANGING + 1):
            with pytest.raises(SearchFailedError):
                await driver.ask(f"hangs {number}")
        assert searcher.batches == [[f"hangs {number}"] for number in range(MAX_HANGING)]
        searcher.gate.set()


async def test_whoever_still_waits_when_the_server_stops_is_told() -> None:
    searcher = GatedSearcher()
    async with driving(searcher) as driver:
        waiting = await driver.begun("a")
        await driver.searching()
    with pytest.raises(SearchFailedError, match="stopping"):
        await waiting
    searcher.gate.set()
