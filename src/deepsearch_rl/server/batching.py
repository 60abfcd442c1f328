"""Micro-batching in front of a searcher: one search at a time, many queries per search.

Searches run one after the other in a thread. Queries that arrive during a search wait, and the next
search takes up to ``max_batch`` of them, one per waiting request in turn, so that a request of
thousands of queries does not make the others wait for its end. Clients that were answered together
usually come back together: the next search waits for as many queries as the last one had, at most a
tenth of that search's time. Queries share a search only if they agree on ``top_k`` and filter,
because the depth of a search can change its ranking.

A search past its deadline is given up: its queries fail, and a new thread takes the next search.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, Self

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from deepsearch_rl.core.errors import DeepsearchError, EndpointDownError, EndpointError
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import QueriesFailedError, SearchesChunks
from deepsearch_rl.server.answers import AnswerCache, SearchAnswer, SearchKey
from deepsearch_rl.server.config import RetrievalConfig

_LOG = logging.getLogger(__name__)

# Several steps' queries of a large trainer
MAX_WAITING = 32_768

# Searches past their deadline, each of which may occupy a core, before new ones are refused
MAX_HANGING = 4

# Share of the last search's time that the next one waits for returning clients
PATIENCE = 0.1
MAX_PATIENCE_S = 0.05

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class SearchFailedError(EndpointError):
    """A search failed; the message is fit for clients, the cause is in the server's log."""


class SearchTimeoutError(SearchFailedError):
    """The search did not return in time."""


class QueueFullError(SearchFailedError):
    """Too many queries wait already."""


Outcomes = Mapping[SearchKey, SearchAnswer | SearchFailedError]


class Metrics:
    """Figures for ``GET /metrics``; labels are known routes and statuses, never a query or a client."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry)

        requests = counter("deepsearch_requests", "Requests answered.", ("route", "status"))
        latency = histogram(
            "deepsearch_request_seconds",
            "Time from a request's arrival to its answer's first byte.",
            ("route",),
            buckets=_SECONDS,
        )
        # Looking up a label costs more than counting
        self._labelled = cache(
            lambda route, status: (requests.labels(route, str(status)), latency.labels(route))
        )
        self.batch_queries = histogram(
            "deepsearch_batch_queries", "Queries per search.", buckets=_QUERIES
        )
        self.search_seconds = histogram(
            "deepsearch_search_seconds", "Time of one search.", buckets=_SECONDS
        )
        self.search_failures = counter("deepsearch_search_failures", "Queries that failed.")
        self.cache_hits = counter("deepsearch_cache_hits", "Queries answered from the cache.")
        self.cache_misses = counter("deepsearch_cache_misses", "Queries searched for.")
        self.coalesced = counter(
            "deepsearch_coalesced_queries", "Queries answered by a running search for the same."
        )
        self.queue_queries = gauge("deepsearch_queue_queries", "Queries waiting or searched for.")
        self.hanging_searches = gauge(
            "deepsearch_hanging_searches", "Searches past their deadline that have not returned."
        )

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        requests, latency = self._labelled(route, status)
        requests.inc()
        latency.observe(seconds)

    def render(self) -> bytes:
        """Return all figures in Prometheus's text format."""
        return generate_latest(self._registry)


class _SearchThread:
    """A daemon thread that runs one call after the other; a search that hangs does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="search", daemon=True).start()

    def submit(self, call: Any) -> asyncio.Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return asyncio.wrap_future(future)

    def stop(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while item := self._calls.get():
            future, call = item
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                future.set_exception(error)


class SearchQueue:
    """Queue and cache in front of a searcher; equal queries share one search. Used with ``async with``."""

    def __init__(self, searcher: SearchesChunks, config: RetrievalConfig, metrics: Metrics) -> None:
        self._searcher = searcher
        self._config = config
        self._metrics = metrics
        self._cache = AnswerCache(config.cache_entries)
        self._in_flight: dict[SearchKey, asyncio.Future[SearchAnswer]] = {}
        # The queries of each request that still wait; the next request's first
        self._requests: deque[deque[SearchKey]] = deque()
        self._waiting = 0
        self._expected = 1
        self._patience_s = 0.0
        self._hanging = 0

    async def __aenter__(self) -> Self:
        self._thread = _SearchThread()
        self._arrived = asyncio.Event()
        # Set while as many queries wait as are expected
        self._full = asyncio.Event()
        self._dispatcher = asyncio.create_task(self._dispatch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._dispatcher.cancel()
        self._thread.stop()
        self._fail_all(SearchFailedError("the server is stopping."))
        await asyncio.wait([self._dispatcher])

    def problem(self) -> str | None:
        """Return why searches cannot be relied on at present, or None."""
        if not self._hanging:
            return None
        return (
            f"{self._hanging} searches have not returned within {self._config.search_timeout_s:g} s "
            "(search_timeout_s); if this goes on, restart the server."
        )

    async def answer(
        self, queries: Sequence[str], top_k: int | None = None, where: Filter | None = None
    ) -> list[SearchAnswer]:
        """Return one answer per query; ``top_k`` defaults to the config's.

        Raises:
            QueueFullError: too many queries wait already.
            SearchTimeoutError: a search did not return within ``search_timeout_s``.
            SearchFailedError: the search for one of the queries failed.
        """
        depth = self._config.top_k if top_k is None else top_k
        searches = [SearchKey(query, depth, where) for query in queries]
        answers: dict[SearchKey, SearchAnswer] = {}
        # A dict keeps the order and drops repetitions
        missing: dict[SearchKey, None] = {}
        for search in searches:
            cached = self._cache.get(search)
            if cached is None:
                missing[search] = None
            else:
                answers[search] = cached

        self._metrics.cache_hits.inc(len(searches) - len(missing))
        if missing:
            answers |= await self._search(missing)
        return [answers[search] for search in searches]

    async def _search(self, searches: Collection[SearchKey]) -> dict[SearchKey, SearchAnswer]:
        new = [search for search in searches if search not in self._in_flight]
        if self._waiting + len(new) > MAX_WAITING:
            raise QueueFullError(f"{self._waiting} queries wait already; try again.")

        self._metrics.cache_misses.inc(len(new))
        self._metrics.coalesced.inc(len(searches) - len(new))
        if new:
            self._enqueue(new)
        futures = {search: self._in_flight[search] for search in searches}
        # Not awaited one by one: a client that leaves would cancel the others' searches
        await asyncio.wait(futures.values())
        return {search: future.result() for search, future in futures.items()}

    def _enqueue(self, searches: Sequence[SearchKey]) -> None:
        loop = asyncio.get_running_loop()
        for search in searches:
            self._in_flight[search] = loop.create_future()

        self._requests.append(deque(searches))
        self._waiting += len(searches)
        self._metrics.queue_queries.set(len(self._in_flight))
        self._arrived.set()
        if self._waiting >= self._expected:
            self._full.set()

    async def _dispatch(self) -> None:
        while True:
            await self._arrived.wait()
            await self._collect()
            batch = self._next_batch()
            started_s = time.perf_counter()

            groups: dict[tuple[int, Filter | None], list[SearchKey]] = {}
            for search in batch:
                groups.setdefault((search.top_k, search.where), []).append(search)
            for group in groups.values():
                outcomes = await self._run(group)
                self._settle(outcomes)
                if outage := _outage(outcomes.values()):
                    # Whatever waits would ask the same endpoint in vain
                    self._fail_all(outage)
                    break

            self._expected = len(batch)
            elapsed_s = time.perf_counter() - started_s
            self._patience_s = min(PATIENCE * elapsed_s, MAX_PATIENCE_S)

    async def _collect(self) -> None:
        """Wait for the expected queries, as long as that pays, or for the window that the config sets."""
        patience_s = self._patience_s
        if self._config.window_ms:
            self._expected = self._config.max_batch
            patience_s = self._config.window_ms / 1000

        if self._waiting < self._expected:
            self._full.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._full.wait()

    def _next_batch(self) -> list[SearchKey]:
        batch: list[SearchKey] = []
        while self._requests and len(batch) < self._config.max_batch:
            request = self._requests.popleft()
            batch.append(request.popleft())
            if request:
                self._requests.append(request)

        self._waiting -= len(batch)
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _run(self, group: Sequence[SearchKey]) -> Outcomes:
        if self._hanging >= MAX_HANGING:
            return dict.fromkeys(group, SearchTimeoutError(self.problem() or ""))
        future = self._thread.submit(partial(self._answer, group))
        await asyncio.wait([future], timeout=self._config.search_timeout_s)
        if future.done():
            return future.result()

        # Nothing can end a search from outside, so its thread is left behind
        self._thread.stop()
        self._thread = _SearchThread()
        self._count_hanging(1)
        future.add_done_callback(lambda _: self._count_hanging(-1))
        problem = f"the search did not return within {self._config.search_timeout_s:g} s (search_timeout_s)."
        _LOG.error(
            "%s Gave up %d queries, the first is %.200r.", problem, len(group), group[0].query
        )
        return dict.fromkeys(group, SearchTimeoutError(problem))

    def _count_hanging(self, change: int) -> None:
        self._hanging += change
        self._metrics.hanging_searches.set(self._hanging)

    def _settle(self, outcomes: Outcomes) -> None:
        for search, outcome in outcomes.items():
            # Answered before if the server has stopped
            future = self._in_flight.pop(search, None)
            if future is None:
                continue
            if isinstance(outcome, SearchAnswer):
                self._cache.put(search, outcome)
                future.set_result(outcome)
            else:
                self._metrics.search_failures.inc()
                future.set_exception(outcome)
                # Marks it as retrieved: the client may have gone away
                future.exception()

        self._metrics.queue_queries.set(len(self._in_flight))

    def _fail_all(self, failure: SearchFailedError) -> None:
        self._requests.clear()
        self._waiting = 0
        self._arrived.clear()
        self._settle(dict.fromkeys(list(self._in_flight), failure))

    def _answer(self, searches: Sequence[SearchKey]) -> Outcomes:
        """Search for queries of one depth and filter, in the search thread; a failed search is tried in halves."""
        started_s = time.perf_counter()
        queries = [search.query for search in searches]
        _, top_k, where = searches[0]

        try:
            try:
                results = self._searcher.find_hits(queries, top_k, where)
            except QueriesFailedError as error:
                results = error.outcomes
            outcomes: dict[SearchKey, SearchAnswer | SearchFailedError] = {}
            for search, result in zip(searches, results, strict=True):
                is_failure = isinstance(result, EndpointError)
                outcomes[search] = _failure(result) if is_failure else SearchAnswer.of(result)
        # Libraries in Rust panic with a BaseException
        except BaseException as error:  # noqa: BLE001
            if len(searches) == 1 or isinstance(error, EndpointDownError):
                return dict.fromkeys(searches, _failure(error))
            half = len(searches) // 2
            first = self._answer(searches[:half])
            if outage := _outage(first.values()):
                return {**first, **dict.fromkeys(searches[half:], outage)}
            return {**first, **self._answer(searches[half:])}

        self._metrics.search_seconds.observe(time.perf_counter() - started_s)
        self._metrics.batch_queries.observe(len(searches))
        return outcomes


def _outage(outcomes: Iterable[SearchAnswer | SearchFailedError]) -> SearchFailedError | None:
    """Return the first error that says that an endpoint is down."""
    for outcome in outcomes:
        is_failure = isinstance(outcome, SearchFailedError)
        if is_failure and isinstance(outcome.__cause__, EndpointDownError):
            return outcome
    return None


def _failure(error: BaseException) -> SearchFailedError:
    """Log an error and return it as clients may read it: with our own message, or none."""
    is_ours = isinstance(error, DeepsearchError)
    # The cause of ours may be an HTTP error that quotes a URL with a key
    _LOG.error("a search failed: %s", error, exc_info=None if is_ours else error)
    failure = SearchFailedError(str(error) if is_ours else "the search failed; see the log.")
    failure.__cause__ = error
    return failure
