"""Searchers whose answers are known and whose pace a test decides."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.server.service import SearchEngine
from tests.chunks import make_chunk
from tests.settings import RETRIEVAL


def service_config(**changes: object) -> RetrievalConfig:
    """A server's settings with changes."""
    return RetrievalConfig.model_validate(RETRIEVAL.model_dump() | {"top_k": 3} | changes)


def hit(text: str) -> Hit:
    """A hit whose chunk's title and id are ``text``."""
    return Hit(0, 1.0, make_chunk(f"{text}\n.", text, text))


@dataclass
class GatedSearcher:
    """Finds one chunk whose id tells query, top_k and filter, once the gate is open; remembers what it was asked."""

    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        """One hit per query; OSError where one of the queries is "broken"."""
        self.batches.append(list(queries))
        self.started.release()
        assert self.gate.wait(10)
        if "broken" in queries:
            raise OSError("secret path")
        return [[hit(f"{query}/{top_k}/{where.source if where else ''}")] for query in queries]


def open_searcher() -> GatedSearcher:
    """One that does not wait."""
    searcher = GatedSearcher()
    searcher.gate.set()
    return searcher


def engine(searcher: GatedSearcher) -> SearchEngine:
    """The searcher as a server takes it."""
    return SearchEngine(searcher, passages=100, takes_filters=True)
