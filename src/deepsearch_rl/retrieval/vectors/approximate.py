"""Approximate search by a FAISS index that is memory-mapped, and its refinement by vectors on disk.

``IO_FLAG_MMAP_IFC`` leaves inverted lists, codes, vectors and graph links in the file: opening takes no memory but the
cells' centroids and code books. Codes of 4 bits are the exception: FAISS reads them into memory.

A mask lowers the number of rows that a visit of a cell (or a step through the graph) can find. The effort therefore
grows as the share of allowed rows falls, so that a filter does not cost hits.

Refinement scores a few dozen candidates, because the error of a code is larger than the gaps between neighbours. They
are requested from the disk at once for a whole batch, so that a cold page cache costs one round of parallel reads.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.retrieval.ranking import Ranking, rank
from deepsearch_rl.retrieval.vectors.config import (
    GPU_CANDIDATES,
    HnswConfig,
    IvfFlatConfig,
    IvfPqConfig,
    IvfPqRefineConfig,
)
from deepsearch_rl.retrieval.vectors.flat import VectorFile

TIE_SLACK = 16  # hits beyond top_k that FAISS is asked for: it cuts equal scores in any order, ours is by row

ApproximateConfig = IvfFlatConfig | IvfPqConfig | IvfPqRefineConfig | HnswConfig


def read_faiss(path: Path) -> faiss.Index:
    """Memory-map a FAISS index; raise ArtifactError where the file is missing or damaged."""
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ArtifactError(f"the vectors in {path} cannot be read; build the index again.") from error


@dataclass(frozen=True, slots=True)
class ApproximateIndex:
    """A FAISS index with the effort of a search."""

    index: faiss.Index
    config: ApproximateConfig
    gpu_index: faiss.Index | None = None  # a copy for searches without a filter, of at most GPU_CANDIDATES hits

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.index.d

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """See :meth:`VectorIndex.search`; a row that is not looked at is not found."""
        depth = min(top_k + TIE_SLACK, self.index.ntotal)
        fits_gpu = allowed_N is None and depth <= GPU_CANDIDATES
        index = self.gpu_index if self.gpu_index is not None and fits_gpu else self.index
        scores_QC, rows_QC = index.search(queries_QD, depth, params=self._parameters(depth, allowed_N))
        hits_QC = (rows_QC >= 0) & queries_QD.any(axis=1, keepdims=True)  # FAISS pads with row -1
        return [
            rank(rows_C[hits_C], scores_C[hits_C], top_k)
            for scores_C, rows_C, hits_C in zip(scores_QC, rows_QC, hits_QC, strict=True)
        ]

    def _parameters(self, depth: int, allowed_N: NDArray[np.bool_] | None) -> faiss.SearchParameters:
        share, selection, rows = 1.0, {}, self.index.ntotal
        if allowed_N is not None:
            share = max(int(allowed_N.sum()), 1) / rows
            bits = np.packbits(allowed_N, bitorder="little")
            selection["sel"] = faiss.IDSelectorBitmap(bits)  # pyright: ignore[reportCallIssue, reportArgumentType]
        if isinstance(self.config, HnswConfig):
            effort = min(math.ceil(max(self.config.ef_search, depth) / share), rows)
            return faiss.SearchParametersHNSW(**selection, efSearch=effort)  # pyright: ignore[reportAttributeAccessIssue]
        nprobe = min(math.ceil(self.config.nprobe / share), self.config.nlist)
        return faiss.SearchParametersIVF(**selection, **{"nprobe": nprobe})


@dataclass(frozen=True, slots=True)
class RefinedIndex:
    """A first stage whose candidates are ordered by their inner products with the vectors of a file."""

    first: ApproximateIndex
    file: VectorFile
    refine_factor: float

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.file.dimension

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """See :meth:`VectorIndex.search`; scores are exact, and so is the order of the candidates."""
        depth = math.ceil(min(top_k, self.file.rows) * self.refine_factor)
        if allowed_N is not None and np.count_nonzero(allowed_N) <= depth:  # few enough to compare with all of them
            allowed_C = np.flatnonzero(allowed_N)
            candidates = [allowed_C if query_D.any() else allowed_C[:0] for query_D in queries_QD]
        else:
            candidates = [np.sort(ranking.rows_K) for ranking in self.first.search(queries_QD, depth, allowed_N)]
        self.file.prefetch(np.concatenate([np.empty(0, np.int64), *candidates]))
        return [
            rank(rows_C, self.file.inner_products(rows_C, query_D), top_k)
            for rows_C, query_D in zip(candidates, queries_QD, strict=True)
        ]
