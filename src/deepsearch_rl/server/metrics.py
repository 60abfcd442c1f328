"""What ``GET /metrics`` shows: counters, histograms and gauges of one server, in Prometheus's text format.

Of a server with several workers, whichever answers shows the sums of all: prometheus_client then
keeps every figure in a file of a folder that they share, because the variable below names it.
"""

import functools
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.values import MutexValue, ValueClass

# Read by prometheus_client when it is imported
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

# The label of paths that are no routes
OTHER_ROUTE = "other"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


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
        self.batch_queries = histogram(
            "deepsearch_batch_queries", "Queries per search.", buckets=_QUERIES
        )
        self.search_seconds = histogram(
            "deepsearch_search_seconds", "Time of one search.", buckets=_SECONDS
        )
        self.search_failures = counter(
            "deepsearch_search_failures", "Searches that raised an error."
        )
        self.cache_hits = counter("deepsearch_cache_hits", "Queries answered from the cache.")
        self.cache_misses = counter("deepsearch_cache_misses", "Queries that were searched for.")
        text = "Queries answered by a running search for the same query."
        self.coalesced = counter("deepsearch_coalesced_queries", text)
        # Of living workers: nothing waits for a dead one any more
        gauge = functools.partial(Gauge, registry=self._registry, multiprocess_mode="livesum")
        text = "Queries that wait or are being searched."
        self.queue_queries = gauge("deepsearch_queue_queries", text)
        text = "Searches that are past their deadline and have not returned."
        self.hanging_searches = gauge("deepsearch_hanging_searches", text)

        # Memory and time of a process are not shared.
        self._is_shared = ValueClass is not MutexValue
        if not self._is_shared:
            ProcessCollector(registry=self._registry)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        requests, latency = self._labelled(route, status)
        requests.inc()
        latency.observe(seconds)

    def render(self) -> bytes:
        """Return all figures in Prometheus's text format."""
        registry = self._registry
        if self._is_shared:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)


def forget_worker(pid: int, folder: Path) -> None:
    """Take the queries that a dead worker had out of the sums; what it has counted stays."""
    mark_process_dead(pid, str(folder))
