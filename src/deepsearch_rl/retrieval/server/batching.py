"""A queue before the searcher: one search at a time, many queries per search.

Searches run in a thread of their own, one after the other. Queries that arrive while one runs wait, and the next search
takes all of them at once; a window lets it wait for more even when nothing runs. Queries share a search where they ask
for as many passages by the same filter: an approximate index, a fusion or a reranker looks further for ten passages
than for three, and an answer must not depend on what else happened to wait.
"""

import asyncio
import functools
import logging
import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from deepsearch_rl.errors import DeepsearchError, EndpointDownError, EndpointError
from deepsearch_rl.retrieval.rows import Filter
from deepsearch_rl.retrieval.searcher import SearchesChunks
from deepsearch_rl.retrieval.server.answers import Answer, AnswerCache, SearchKey
from deepsearch_rl.retrieval.server.config import RetrievalConfig

_LOG = logging.getLogger(__name__)
OTHER_ROUTE = "other"  # the label of paths that are no routes
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class OverloadedError(EndpointError):
    """More queries wait than the server may hold."""


class SearchFailedError(EndpointError):
    """The index, or something behind it, raised an error, its cause; the server's log says which."""


class Metrics:
    """Counters for ``GET /metrics``. Labels are known routes and statuses, never a query or a client."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = functools.partial(Counter, registry=self._registry)
        histogram = functools.partial(Histogram, registry=self._registry)
        requests = counter("deepsearch_requests", "Requests answered.", ("route", "status"))
        text = "Time from a request's arrival to its answer's first byte."
        latency = histogram("deepsearch_request_seconds", text, ("route",), buckets=_SECONDS)
        # Looking a label up costs more than counting.
        self._labelled = functools.cache(
            lambda route, status: (requests.labels(route, str(status)), latency.labels(route))
        )
        self.batch_queries = histogram("deepsearch_batch_queries", "Queries per search.", buckets=_QUERIES)
        self.search_seconds = histogram("deepsearch_search_seconds", "Time of one search.", buckets=_SECONDS)
        self.search_failures = counter("deepsearch_search_failures", "Searches that raised an error.")
        self.cache_hits = counter("deepsearch_cache_hits", "Queries answered from the cache.")
        self.cache_misses = counter("deepsearch_cache_misses", "Queries that were searched for.")
        text = "Queries answered by a running search for the same query."
        self.coalesced = counter("deepsearch_coalesced_queries", text)
        text = "Queries that wait or are being searched."
        self.queue_queries = Gauge("deepsearch_queue_queries", text, registry=self._registry)
        ProcessCollector(registry=self._registry)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        requests, latency = self._labelled(route, status)
        requests.inc()
        latency.observe(seconds)

    def render(self) -> bytes:
        """Return all figures in Prometheus's text format."""
        return generate_latest(self._registry)


class SearchQueue:
    """A bounded queue and a cache before a searcher; equal queries share one search. Used with ``async with``."""

    def __init__(self, searcher: SearchesChunks, config: RetrievalConfig, metrics: Metrics) -> None:
        self._searcher, self._config, self._metrics = searcher, config, metrics
        self._cache = AnswerCache(config.cache_entries)
        self._in_flight: dict[SearchKey, asyncio.Future[Answer]] = {}
        self._waiting: queue.SimpleQueue[SearchKey | None] = queue.SimpleQueue()
        metrics.queue_queries.set_function(lambda: len(self._in_flight))

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        # A daemon: a search that hangs must not keep a server alive that was told to stop.
        threading.Thread(target=self._work, name="search", daemon=True).start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._waiting.put(None)
        self._settle({search: SearchFailedError("the server is stopping.") for search in self._in_flight})

    async def search(self, queries: Sequence[str], top_k: int, where: Filter | None = None) -> list[Answer]:
        """Return one answer per query, with the hits that :meth:`SearchesChunks.search` gives.

        Raises:
            OverloadedError: other queries wait, and with these more than ``max_pending`` would.
            SearchFailedError: the search for one of the queries raised an error.
        """
        searches = [SearchKey(query, top_k, where) for query in queries]
        answers = {search: answer for search in searches if (answer := self._cache.get(search)) is not None}
        missing = dict.fromkeys(search for search in searches if search not in answers)
        self._metrics.cache_hits.inc(len(searches) - len(missing))
        if missing:
            answers.update(await self._search(missing))
        return [answers[search] for search in searches]

    async def _search(self, searches: Collection[SearchKey]) -> dict[SearchKey, Answer]:
        new = [search for search in searches if search not in self._in_flight]
        pending = len(self._in_flight)
        if new and pending and pending + len(new) > self._config.max_pending:
            raise OverloadedError(f"{pending} queries wait and at most {self._config.max_pending} may; try again.")
        self._metrics.cache_misses.inc(len(new))
        self._metrics.coalesced.inc(len(searches) - len(new))
        for search in new:
            self._in_flight[search] = self._loop.create_future()
            self._waiting.put(search)
        futures = {search: self._in_flight[search] for search in searches}
        await asyncio.wait(futures.values())  # not awaited one by one: a client that leaves would cancel the others'
        return {search: future.result() for search, future in futures.items()}

    def _settle(self, outcomes: Mapping[SearchKey, Answer | SearchFailedError]) -> None:
        for search, outcome in outcomes.items():
            future = self._in_flight.pop(search, None)
            if future is None:  # the server stopped before
                continue
            if isinstance(outcome, Answer):
                self._cache.put(search, outcome)
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
                future.exception()  # marks it as retrieved: the client may have gone away

    def _work(self) -> None:
        while batch := self._next_batch():
            groups: dict[tuple[int, Filter | None], list[SearchKey]] = {}
            for search in batch:
                groups.setdefault((search.top_k, search.where), []).append(search)
            for group in groups.values():
                outcomes = self._answer(group)
                try:
                    self._loop.call_soon_threadsafe(self._settle, outcomes)
                except RuntimeError:  # the loop was closed while the search ran, so nobody waits for it
                    return

    def _next_batch(self) -> list[SearchKey]:
        """Return the next searches, up to a whole batch; none when the server stops."""
        batch: list[SearchKey] = []
        search = self._waiting.get()
        latest = time.monotonic() + self._config.window_ms / 1000
        while search is not None:
            batch.append(search)
            if len(batch) == self._config.max_batch:
                break
            try:
                search = self._waiting.get(timeout=max(0.0, latest - time.monotonic()))
            except queue.Empty:
                break
        else:
            self._waiting.put(None)  # for the next call, which then returns no search
        return batch

    def _answer(self, searches: Sequence[SearchKey]) -> dict[SearchKey, Answer | SearchFailedError]:
        """Return the outcomes of searches with the same top_k and filter.

        If they fail together, either half is tried alone, unless an endpoint is down: all would wait for it in turn.
        """
        _, top_k, where = searches[0]
        started = time.perf_counter()
        try:
            hits = self._searcher.search([search.query for search in searches], top_k, where)
            outcomes: dict[SearchKey, Answer | SearchFailedError] = {
                search: Answer.of(own) for search, own in zip(searches, hits, strict=True)
            }
        # Libraries in Rust panic with what is no Exception, and without this thread every later request would wait.
        except BaseException as error:  # noqa: BLE001
            if len(searches) == 1 or isinstance(error, EndpointDownError):
                self._metrics.search_failures.inc(len(searches))
                return dict.fromkeys(searches, _client_error(error))
            half = len(searches) // 2
            outcomes, rest = self._answer(searches[:half]), searches[half:]
            failures = [outcome for outcome in outcomes.values() if isinstance(outcome, SearchFailedError)]
            down = [failure for failure in failures if isinstance(failure.__cause__, EndpointDownError)]
            if down:
                self._metrics.search_failures.inc(len(rest))
            return outcomes | (dict.fromkeys(rest, down[0]) if down else self._answer(rest))
        self._metrics.search_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_queries.observe(len(searches))
        return outcomes


def _client_error(error: BaseException) -> SearchFailedError:
    """Return the error as a client may read it: our own messages are fit for that, others may hold anything."""
    is_ours = isinstance(error, DeepsearchError)
    # Ours without causes: an HTTP library's error may quote a URL or a header, and those may hold an API key.
    _LOG.error("a search failed: %s", error, exc_info=None if is_ours else error)
    failure = SearchFailedError(str(error) if is_ours else "the search failed; see the log.")
    failure.__cause__ = error
    return failure
