"""Approximate search by a FAISS index that is memory-mapped from its file.

``IO_FLAG_MMAP_IFC`` leaves inverted lists, codes, vectors and graph links in the file: opening takes no memory but the
cells' centroids and code books. Codes of 4 bits are the exception: FAISS reads them into memory.

A mask thins out what a visit of a cell (or a step through the graph) can find, so that the effort grows as the share of
allowed rows falls: as many allowed rows are looked at as without a mask, and a filter does not cost hits.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.retrieval.ranking import rank
from deepsearch_rl.retrieval.vectors.config import HnswConfig, IvfFlatConfig, IvfPqConfig, IvfPqRefineConfig
from deepsearch_rl.retrieval.vectors.vector_index import NO_ROW, stack

TIE_SLACK = 16
"""Hits asked for beyond top_k: FAISS cuts equal scores in any order, ours is by row."""

ApproximateConfig = IvfFlatConfig | IvfPqConfig | IvfPqRefineConfig | HnswConfig


def read_faiss(path: Path) -> faiss.Index:
    """Memory-map a FAISS index.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ArtifactError(f"the vectors in {path} cannot be read; build the index again.") from error


@dataclass(frozen=True, slots=True)
class ApproximateIndex:
    """A FAISS index with the effort of a search."""

    index: faiss.Index
    config: ApproximateConfig

    @property
    def rows(self) -> int:
        """Vectors in the index."""
        return self.index.ntotal

    @property
    def dimension(self) -> int:
        """Components of a vector."""
        return self.index.d

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`VectorIndex.search`; a row that is not looked at is not found."""
        top_k = min(top_k, self.rows)
        asked = min(top_k + TIE_SLACK, self.rows)
        found_QC = self.index.search(queries_QD, asked, params=self._parameters(asked, allowed_N))
        rankings = [
            rank(rows_C[found_C], scores_C[found_C], top_k)
            for scores_C, rows_C, found_C in zip(
                *found_QC, (found_QC[1] != NO_ROW) & queries_QD.any(axis=1, keepdims=True), strict=True
            )
        ]
        return stack(rankings, top_k)

    def _parameters(self, asked: int, allowed_N: NDArray[np.bool_] | None) -> faiss.SearchParameters:
        share, chosen = 1.0, {}
        if allowed_N is not None:
            share = max(int(allowed_N.sum()), 1) / self.rows
            bits = np.packbits(allowed_N, bitorder="little")
            chosen["sel"] = faiss.IDSelectorBitmap(bits)  # pyright: ignore[reportCallIssue, reportArgumentType]
        if isinstance(self.config, HnswConfig):
            effort = min(math.ceil(max(self.config.ef_search, asked) / share), self.rows)
            return faiss.SearchParametersHNSW(**chosen, efSearch=effort)  # pyright: ignore[reportAttributeAccessIssue]
        nprobe = min(math.ceil(self.config.nprobe / share), self.config.nlist)
        return faiss.SearchParametersIVF(**chosen, **{"nprobe": nprobe})
