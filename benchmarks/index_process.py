"""Measures vector indexes in processes of their own that do nothing else, on one thread.

Memory that a library took stays with its process, and one index's cached pages would flatter the
next.
"""

import ctypes
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self, TypeVar

import faiss
import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from deepsearch_rl.search.frontier import files_of
from deepsearch_rl.search.vectors.config import VectorsConfig
from deepsearch_rl.search.vectors.dense import VectorIndex, open_vector_index

ResultT = TypeVar("ResultT")
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Opening:
    """Which index a process opens, and by which function of a module's top level."""

    folder: Path
    config: VectorsConfig
    open: Callable[[Path, VectorsConfig], VectorIndex] = open_vector_index

    @property
    def files(self) -> tuple[Path, ...]:
        """All that the index reads."""
        return tuple(files_of(self.folder, self.config))


@dataclass(frozen=True, slots=True)
class Timing:
    """What a run over all queries found (for each query its rows, best first), and how long it took."""

    rows: Sequence[NDArray[np.int64]]
    wall_s: float
    cpu_s: float


class IndexProcess:
    """A process with one thread that measures indexes and holds one of them open; use as a context manager."""

    def __init__(self) -> None:
        self._process = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_one_thread
        )
        self._before_mb = self.call(_anonymous_mb)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.shutdown()

    def call(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Return what a function of a module's top level returns in the process."""
        return self._process.submit(function, *arguments).result()

    def search(self, opening: Opening, queries: Path, top_k: int, batch: int) -> Timing:
        """Search an index for all rows of a query file; opening it is not timed."""
        return self.call(_search, opening, queries, top_k, batch)

    def anonymous_mb(self) -> float:
        """RssAnon now, less what the process had before it opened an index, in 10^6 bytes."""
        return self.call(_anonymous_mb) - self._before_mb


def _one_thread() -> None:
    threadpool_limits(1)
    faiss.omp_set_num_threads(1)


@lru_cache(1)
def _open(opening: Opening) -> VectorIndex:
    return opening.open(opening.folder, opening.config)


def _search(opening: Opening, queries: Path, top_k: int, batch: int) -> Timing:
    index = _open(opening)
    queries_QD = np.load(queries)
    rows: list[NDArray[np.int64]] = []
    wall_s = time.perf_counter()
    cpu_s = time.process_time()

    for start in range(0, len(queries_QD), batch):
        for ranking in index.nearest(queries_QD[start : start + batch], top_k):
            rows.append(ranking.rows_K)

    return Timing(rows, time.perf_counter() - wall_s, time.process_time() - cpu_s)


def _anonymous_mb() -> float:
    # Freed memory that was not given back belongs to no index
    ctypes.CDLL(None).malloc_trim(0)
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / MEGABYTE
