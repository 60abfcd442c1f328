"""Measures vector indexes, each opened in a process of its own that does nothing else, on one thread.

Memory that a library took stays with its process, and one index's cached pages would flatter the next.
"""

import ctypes
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

import faiss
import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from deepsearch_rl.retrieval.vectors.approximate import ApproximateIndex, RefinedIndex
from deepsearch_rl.retrieval.vectors.building import FAST_SCAN_BITS, INDEX_FILE, VECTORS_FILE
from deepsearch_rl.retrieval.vectors.config import FlatConfig, IvfPqConfig, IvfPqRefineConfig, VectorsConfig
from deepsearch_rl.retrieval.vectors.dense import VectorIndex, open_vector_index

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
        """All that the index reads; the file that a search scans comes first."""
        names = {"flat": (VECTORS_FILE,), "ivf_pq_refine": (INDEX_FILE, VECTORS_FILE)}
        return tuple(self.folder / name for name in names.get(self.config.kind, (INDEX_FILE,)))

    @property
    def scanned_mb(self) -> float:
        """Size of the file that a search scans, which should fit the page cache; 0 where memory holds it."""
        is_held = isinstance(self.config, IvfPqConfig | IvfPqRefineConfig) and self.config.nbits == FAST_SCAN_BITS
        return 0.0 if is_held else self.files[0].stat().st_size / MEGABYTE


@dataclass(frozen=True, slots=True)
class Timing:
    """What a run over all queries found (for each query its rows, best first), and how long it took."""

    rows: Sequence[NDArray[np.int64]]
    wall_s: float
    cpu_s: float


def recall(rows: Sequence[NDArray[np.int64]], true_QK: NDArray[np.int64]) -> float:
    """Return the mean share of the K true rows of a query that are among its rows."""
    return float(np.mean([np.isin(true_K, rows_K).mean() for true_K, rows_K in zip(true_QK, rows, strict=True)]))


class IndexProcess:
    """An open index in its own single-threaded process; use as a context manager."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_one_thread)
        self._before_mb = self.call(_anonymous_mb)
        self.call(_warm_up, opening)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.shutdown()

    def call(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Return what a function of a module's top level returns in the process."""
        return self._process.submit(function, *arguments).result()

    def search(self, queries: Path, top_k: int, batch: int, config: VectorsConfig | None = None) -> Timing:
        """Search for all rows of a query file; ``config`` may change the effort of a search, or leave out refining."""
        return self.call(_search, self._opening, config, queries, top_k, batch)

    def anonymous_mb(self) -> float:
        """RssAnon now, less what the process had before it opened the index, in 10^6 bytes."""
        return self.call(_anonymous_mb) - self._before_mb


def _one_thread() -> None:
    threadpool_limits(1)
    faiss.omp_set_num_threads(1)


@cache
def _open(opening: Opening) -> VectorIndex:
    return opening.open(opening.folder, opening.config)


def _warm_up(opening: Opening) -> None:
    _open(opening)  # stays in this process: a map cannot travel


def _with_effort(index: VectorIndex, config: VectorsConfig | None) -> VectorIndex:
    """Return the same index with another effort of search; a flat one has none."""
    if config is None or isinstance(config, FlatConfig):
        return index
    first = index.first if isinstance(index, RefinedIndex) else index
    assert isinstance(first, ApproximateIndex)
    first = replace(first, config=config)
    if isinstance(index, RefinedIndex) and isinstance(config, IvfPqRefineConfig):
        return replace(index, first=first, refine_factor=config.refine_factor)
    return first


def _search(opening: Opening, config: VectorsConfig | None, queries: Path, top_k: int, batch: int) -> Timing:
    index, queries_QD = _with_effort(_open(opening), config), np.load(queries)
    rows: list[NDArray[np.int64]] = []
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, len(queries_QD), batch):
        rows += [ranking.rows_K for ranking in index.search(queries_QD[start : start + batch], top_k)]
    return Timing(rows, time.perf_counter() - wall_s, time.process_time() - cpu_s)


def _anonymous_mb() -> float:
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that was not given back belongs to no index
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / MEGABYTE
