"""What the server counts, as Prometheus reads it from ``GET /metrics``.

Labels take few values: known routes and status codes, never a query, an address or a client.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

OTHER_ROUTE = "other"
"""The label of paths that are no routes."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counters of one server, in a registry of its own. Not to be shared between servers of a process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "deepsearch_requests", "Requests answered.", ("route", "status"), registry=self._registry
        )
        self._latency = Histogram(
            "deepsearch_request_seconds",
            "Time from a request's arrival to its answer's first byte.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._counters: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.batch_queries = Histogram(
            "deepsearch_batch_queries", "Queries per search.", buckets=_QUERIES, registry=self._registry
        )
        self.search_seconds = Histogram(
            "deepsearch_search_seconds", "Time of one search.", buckets=_SECONDS, registry=self._registry
        )
        self.search_failures = Counter(
            "deepsearch_search_failures", "Searches that raised an error.", registry=self._registry
        )
        self.cache_hits = Counter("deepsearch_cache_hits", "Queries answered from the cache.", registry=self._registry)
        self.cache_misses = Counter(
            "deepsearch_cache_misses", "Queries that were searched for.", registry=self._registry
        )
        self.coalesced = Counter(
            "deepsearch_coalesced_queries",
            "Queries answered by a search that was under way for the same query.",
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)

    def watch_queue(self, depth: Callable[[], int]) -> None:
        """Report ``depth()`` as the number of queries that wait or are being searched."""
        gauge = Gauge("deepsearch_queue_queries", "Queries that wait or are being searched.", registry=self._registry)
        gauge.set_function(depth)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        counters = self._counters.get((route, status))
        if counters is None:  # looking a label up costs more than counting
            counters = self._requests.labels(route, str(status)), self._latency.labels(route)
            self._counters[route, status] = counters
        counters[0].inc()
        counters[1].observe(seconds)

    def render(self) -> bytes:
        """All figures in Prometheus's text format."""
        return generate_latest(self._registry)
