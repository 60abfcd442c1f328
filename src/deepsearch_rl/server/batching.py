"""A queue before the searcher: one search at a time, many queries per search.

Searches run in a thread of their own, one after the other. Queries that arrive while one runs wait,
and the next search takes as many of them as it may, one of each waiting request in turn, so that a
request of thousands of queries delays the others by its fair share alone. Clients that wait for an
answer come back when they have it: the next search waits for as many queries as the last one
answered, at most a tenth of the time that it took, because the first of them alone would cost
nearly as much as all. One client never waits. A window lets a search wait for more queries even
when nothing runs. Queries share a search where they ask for as many
passages by the same filter: an approximate index, a fusion or a reranker looks further for ten
passages than for three, and an answer must not depend on what else happened to wait.

A search has a deadline. Whoever waits for a search beyond it is told so, and another thread takes
the next search. Its queries are then searched for alone, so that the one that hangs does not take
others with it again.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from deepsearch_rl.core.errors import DeepsearchError, EndpointDownError, EndpointError
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, QueriesFailedError, SearchesChunks
from deepsearch_rl.server.answers import AnswerCache, SearchAnswer, SearchKey
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.server.limits import MAX_DOCUMENTS
from deepsearch_rl.server.metrics import Metrics
from deepsearch_rl.server.search_thread import SearchThread

_LOG = logging.getLogger(__name__)
# Searches past their deadline, each with a thread of its own, from which on no other search is
# begun: each of them may use a core.
MAX_HANGING = 4

# The part of a search's time that the next one may wait for the clients that it has answered
PATIENCE = 0.1
MAX_PATIENCE_S = 0.05


class SearchFailedError(EndpointError):
    """The index, or something behind it, raised an error, its cause; the server's log says which."""


class SearchTimeoutError(SearchFailedError):
    """The search did not return in time."""


Outcomes = dict[SearchKey, SearchAnswer | SearchFailedError]


@dataclass(slots=True)
class _QueuedRequest:
    """The queries of one request that nobody had asked for before it."""

    # With their numbers in the order of arrival
    waiting: deque[tuple[int, SearchKey]] = field(default_factory=deque)


class SearchQueue:
    """A queue and a cache before a searcher; equal queries share one search. Used with ``async with``.

    It holds whatever it is given: a server bounds what all requests together may ask for
    (:class:`~deepsearch_rl.server.limits.Budget`).
    """

    def __init__(
        self,
        searcher: SearchesChunks,
        config: RetrievalConfig,
        metrics: Metrics,
        max_documents: int = MAX_DOCUMENTS,
    ) -> None:
        """``max_documents``: passages that a search of several queries may ask for in all."""
        self._searcher = searcher
        self._config = config
        self._metrics = metrics
        self._max_documents = max_documents
        self._cache = AnswerCache(config.cache_entries)
        self._in_flight: dict[SearchKey, asyncio.Future[SearchAnswer]] = {}
        # Those of which queries wait, the next one first
        self._requests: deque[_QueuedRequest] = deque()
        # Queries of all of them
        self._waiting = 0
        # Queries that the next search waits for
        self._expected = 1
        self._patience_s = 0.0
        self._arrivals = 0
        self._hanging: dict[SearchThread[Sequence[SearchKey], Outcomes], frozenset[SearchKey]] = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread = SearchThread(self._answer, self._loop)
        self._arrived = asyncio.Event()
        # Set while as many wait as are expected
        self._full = asyncio.Event()
        self._dispatcher = asyncio.create_task(self._dispatch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._dispatcher.cancel()
        self._thread.stop()
        self._fail(list(self._in_flight), SearchFailedError("the server is stopping."))
        await asyncio.wait([self._dispatcher])

    def problem(self) -> str | None:
        """Return why searches cannot be relied on at present; None where nothing is known against it."""
        if self._dispatcher.done():
            return "the queue of searches has stopped; restart the server."
        if self._hanging:
            return (
                f"{len(self._hanging)} searches have not returned within {self._config.search_timeout_s:g} s "
                f"(search_timeout_s); if that goes on, restart the server."
            )

        return None

    async def answer(
        self, queries: Sequence[str], top_k: int | None = None, where: Filter | None = None
    ) -> list[SearchAnswer]:
        """Return one answer per query, as :meth:`SearchesChunks.find_hits`; no ``top_k`` is the config's.

        Raises:
            SearchFailedError: the search for one of the queries raised an error.
            SearchTimeoutError: it did not return within ``search_timeout_s``.
        """
        depth = self._config.top_k if top_k is None else top_k
        searches = [SearchKey(query, depth, where) for query in queries]
        answers: dict[SearchKey, SearchAnswer] = {}

        # A dict keeps the order and counts equal queries once.
        missing: dict[SearchKey, None] = {}
        for search in searches:
            answer = self._cache.get(search)
            if answer is None:
                missing[search] = None
            else:
                answers[search] = answer

        self._metrics.cache_hits.inc(len(searches) - len(missing))
        if missing:
            answers.update(await self._search(missing))
        return [answers[search] for search in searches]

    async def _search(self, searches: Collection[SearchKey]) -> dict[SearchKey, SearchAnswer]:
        """Return the answers to different queries, none of which is in the cache."""
        new = [search for search in searches if search not in self._in_flight]
        self._metrics.cache_misses.inc(len(new))
        self._metrics.coalesced.inc(len(searches) - len(new))
        self._enqueue(new)
        futures = {search: self._in_flight[search] for search in searches}

        # Not awaited one by one: a client that leaves would cancel the others'
        await asyncio.wait(futures.values())
        return {search: future.result() for search, future in futures.items()}

    def _enqueue(self, searches: Sequence[SearchKey]) -> None:
        if not searches:
            return
        request = _QueuedRequest()

        for search in searches:
            self._in_flight[search] = self._loop.create_future()
            request.waiting.append((self._arrivals, search))
            self._arrivals += 1

        self._requests.append(request)
        self._waiting += len(searches)
        self._metrics.queue_queries.set(len(self._in_flight))
        self._arrived.set()
        if self._waiting >= self._expected:
            self._full.set()

    async def _dispatch(self) -> None:
        """Search for what waits, batch after batch, until cancelled."""
        while True:
            await self._arrived.wait()
            await self._collect()
            batch = self._next_batch()
            started_s = time.perf_counter()

            try:
                for group in self._groups(batch):
                    outcomes = await self._run(group)
                    self._settle(outcomes)
                    self._fail_all_if_down(outcomes.values())
            except Exception as error:  # noqa: BLE001
                # A fault of this module must not leave anybody waiting
                self._fail(batch, _client_error(error))

            self._expected = len(batch)
            took_s = time.perf_counter() - started_s
            self._patience_s = min(PATIENCE * took_s, MAX_PATIENCE_S)

    async def _collect(self) -> None:
        """Wait until as many queries wait as are expected, or until waiting costs more than it saves."""
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
        """Take the next searches, one of each request in turn, and return them in the order of their arrival."""
        batch: list[tuple[int, SearchKey]] = []
        documents = 0

        while self._requests and len(batch) < self._config.max_batch:
            request = self._requests[0]
            documents += request.waiting[0][1].top_k
            if batch and documents > self._max_documents:
                break
            batch.append(request.waiting.popleft())
            self._requests.popleft()
            if request.waiting:
                self._requests.append(request)

        self._waiting -= len(batch)
        if not self._waiting:
            self._arrived.clear()
        return [search for _, search in sorted(batch)]

    def _groups(self, batch: Sequence[SearchKey]) -> Iterator[list[SearchKey]]:
        """Yield the searches of a batch that can run together; one that has hung before is alone."""
        groups: dict[tuple[int, Filter | None], list[SearchKey]] = {}
        alone: list[list[SearchKey]] = []
        hanging = frozenset[SearchKey]().union(*self._hanging.values())

        for search in batch:
            if search in hanging:
                alone.append([search])
            else:
                groups.setdefault((search.top_k, search.where), []).append(search)

        for group in (*groups.values(), *alone):
            # All were answered, if an endpoint is down
            unanswered = [search for search in group if search in self._in_flight]
            if unanswered:
                yield unanswered

    async def _run(self, group: Sequence[SearchKey]) -> Outcomes:
        """Return the outcomes of a group, or a timeout for each of its searches."""
        if len(self._hanging) >= MAX_HANGING or frozenset(group) in self._hanging.values():
            return dict.fromkeys(group, SearchTimeoutError(self.problem() or "the search hangs."))
        thread = self._thread
        future = thread.run(group)
        await asyncio.wait([future], timeout=self._config.search_timeout_s)
        if future.done():
            return future.result()

        # The thread that hangs is left behind: nothing can end a search from outside.
        self._hanging[thread] = frozenset(group)
        self._metrics.hanging_searches.set(len(self._hanging))
        self._thread = SearchThread(self._answer, self._loop)
        thread.stop()
        future.add_done_callback(lambda _: self._forget_hanging(thread))
        self._metrics.search_failures.inc(len(group))
        problem = f"the search did not return within {self._config.search_timeout_s:g} s (search_timeout_s)."
        _LOG.error(
            "%s Its %d queries were given up; the first is %.200r.",
            problem,
            len(group),
            group[0].query,
        )
        return dict.fromkeys(group, SearchTimeoutError(problem))

    def _forget_hanging(self, thread: SearchThread[Sequence[SearchKey], Outcomes]) -> None:
        del self._hanging[thread]
        self._metrics.hanging_searches.set(len(self._hanging))

    def _settle(self, outcomes: Mapping[SearchKey, SearchAnswer | SearchFailedError]) -> None:
        for search, outcome in outcomes.items():
            # The server may have stopped before.
            future = self._in_flight.pop(search, None)
            if future is None:
                continue

            if isinstance(outcome, SearchAnswer):
                self._cache.put(search, outcome)
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
                # Marks it as retrieved: the client may have gone away
                future.exception()

        self._metrics.queue_queries.set(len(self._in_flight))

    def _fail(self, searches: Iterable[SearchKey], failure: SearchFailedError) -> None:
        self._settle(dict.fromkeys(searches, failure))

    def _fail_all_if_down(self, outcomes: Iterable[SearchAnswer | SearchFailedError]) -> None:
        """Answer everything that waits with the error of an endpoint that is down: it would be asked in vain."""
        outage = _outage(outcomes)
        if outage is None:
            return

        self._metrics.search_failures.inc(len(self._in_flight))
        self._requests.clear()
        self._waiting = 0
        self._arrived.clear()
        self._fail(list(self._in_flight), outage)

    def _answer(self, searches: Sequence[SearchKey]) -> Outcomes:
        """Return the outcomes of searches with the same top_k and filter.

        A query that failed alone is not searched for again, nor are the others. If all fail
        together, either half is tried alone, unless an endpoint is down: all would wait for it in
        turn.
        """
        started = time.perf_counter()

        try:
            results = self._search_each(searches)
        # Libraries in Rust panic with what is no Exception, and without this thread every later
        # request would wait.
        except BaseException as error:  # noqa: BLE001
            if len(searches) == 1 or isinstance(error, EndpointDownError):
                self._metrics.search_failures.inc(len(searches))
                return dict.fromkeys(searches, _client_error(error))

            return self._answer_halves(searches)

        self._metrics.search_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_queries.observe(len(searches))
        outcomes: Outcomes = {}
        for search, result in zip(searches, results, strict=True):
            outcomes[search] = self._outcome(result)

        return outcomes

    def _answer_halves(self, searches: Sequence[SearchKey]) -> Outcomes:
        """Return the outcomes of searches that failed together, each half searched for alone."""
        half = len(searches) // 2
        rest = searches[half:]
        outcomes = self._answer(searches[:half])
        outage = _outage(outcomes.values())
        if outage is None:
            return outcomes | self._answer(rest)

        self._metrics.search_failures.inc(len(rest))
        return outcomes | dict.fromkeys(rest, outage)

    def _search_each(self, searches: Sequence[SearchKey]) -> Sequence[list[Hit] | EndpointError]:
        """Return the hits of every query, or its error where some failed alone; raise what a search of all raises."""
        _, top_k, where = searches[0]
        queries = [search.query for search in searches]
        try:
            results = self._searcher.find_hits(queries, top_k, where)
        except QueriesFailedError as error:
            results = error.outcomes

        if len(results) != len(queries):
            raise ValueError(f"the search answered {len(results)} of {len(queries)} queries")
        return results

    def _outcome(self, result: list[Hit] | EndpointError) -> SearchAnswer | SearchFailedError:
        try:
            if isinstance(result, EndpointError):
                raise result
            return SearchAnswer.of(result)
        except Exception as error:  # noqa: BLE001
            # Of this query alone, such as a score that is no number
            self._metrics.search_failures.inc()
            return _client_error(error)


def _outage(outcomes: Iterable[SearchAnswer | SearchFailedError]) -> SearchFailedError | None:
    """Return the first error that says that an endpoint is down."""
    for outcome in outcomes:
        is_failure = isinstance(outcome, SearchFailedError)
        if is_failure and isinstance(outcome.__cause__, EndpointDownError):
            return outcome

    return None


def _client_error(error: BaseException) -> SearchFailedError:
    """Return the error as a client may read it: our own messages are fit for that, others may hold anything."""
    is_ours = isinstance(error, DeepsearchError)
    # Ours without causes: an HTTP library's error may quote a URL or a header, and those may hold
    # an API key.
    _LOG.error("a search failed: %s", error, exc_info=None if is_ours else error)
    failure = SearchFailedError(str(error) if is_ours else "the search failed; see the log.")
    failure.__cause__ = error
    return failure
