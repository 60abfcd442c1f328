"""Dense retrieval: an encoder's query vectors, searched in a vector index whose row N is row N of the chunk store.

An approximate index is FAISS's (:mod:`.faiss_index`).

Refinement scores a few dozen candidates, because the error of a code is larger than the gaps
between neighbours. They are requested from the disk at once for a whole batch, so that a cold page
cache costs one round of parallel reads.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.search.encoders.encoder import Encoder, Vectors
from deepsearch_rl.search.ranking import Mask, Ranking
from deepsearch_rl.search.vectors.building import INDEX_FILE, VECTORS_FILE
from deepsearch_rl.search.vectors.config import IvfConfig, PqConfig, VectorsConfig
from deepsearch_rl.search.vectors.faiss_index import (
    FaissIndex,
    read_faiss,
    read_imported,
    with_effort,
)
from deepsearch_rl.search.vectors.flat import FlatIndex, VectorFile, open_vector_file
from deepsearch_rl.search.vectors.gpu import copy_to_gpu, require_device


class VectorIndex(Protocol):
    """Finds the rows of greatest inner product, whichever kind of index it is."""

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        ...

    def nearest(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Return one ranking per query of at most ``top_k`` rows, best first, equal scores by row.

        Rows that ``allowed_N`` denies are not found. A zero query, which points nowhere, finds
        nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class RefinedIndex:
    """A first stage whose candidates are ordered by their inner products with the vectors of a file."""

    first: FaissIndex
    file: VectorFile
    refine_factor: float

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.file.dimension

    def nearest(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """See :meth:`VectorIndex.nearest`; scores are exact, and so is the order of the candidates."""
        candidates = self._candidates(queries_QD, top_k, allowed_N)
        self.file.prefetch(np.concatenate([np.empty(0, np.int64), *candidates]))

        return self.file.rank_exactly(candidates, queries_QD, top_k)

    def _candidates(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None
    ) -> list[NDArray[np.int64]]:
        """Return the rows_C of every query that its exact ranking is made of, ascending."""
        depth = math.ceil(min(top_k, self.file.rows) * self.refine_factor)

        # A filter may leave few enough to compare with all of them.
        if allowed_N is not None and np.count_nonzero(allowed_N) <= depth:
            allowed_C = np.flatnonzero(allowed_N)
            candidates: list[NDArray[np.int64]] = []
            for query_D in queries_QD:
                # A vector of zeros is that of a blank query, which finds nothing
                candidates.append(allowed_C if query_D.any() else allowed_C[:0])

            return candidates

        # In the order of the file, so that the disk reads in one direction.
        rankings = self.first.nearest(queries_QD, depth, allowed_N)
        return [np.sort(ranking.rows_K) for ranking in rankings]


def open_vector_index(folder: Path, config: VectorsConfig) -> VectorIndex:
    """Open the index that was built into ``folder`` with ``config``; fields of the search alone may differ.

    All but codes of 4 bits stays in its file, behind a memory map.

    Raises:
        ArtifactError: a file is missing or damaged, or the two do not belong together.
        UnavailableError: ``search_device: cuda`` without faiss-gpu or without a GPU, or its memory
            is full.
    """
    require_device(config)
    if config.kind == "flat":
        return FlatIndex(open_vector_file(folder / VECTORS_FILE))

    # Codes are small, and most searches run through a part of them.
    if isinstance(config, PqConfig) and (folder / INDEX_FILE).is_file():
        with (folder / INDEX_FILE).open("rb") as codes:
            os.posix_fadvise(codes.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    if config.kind == "faiss":
        return with_effort(read_imported(folder / INDEX_FILE), config)

    index = read_faiss(folder / INDEX_FILE)
    on_gpu = isinstance(config, IvfConfig) and config.search_device == "cuda"
    first = with_effort(index, config, copy_to_gpu(index) if on_gpu else None)
    if config.kind != "ivf_pq_refine":
        return first
    file = open_vector_file(folder / VECTORS_FILE, random_access=True)
    rows = first.index.ntotal

    if (rows, first.dimension) != (file.rows, file.dimension):
        raise ArtifactError(
            f"{folder}: {INDEX_FILE} holds {rows} x {first.dimension} and {VECTORS_FILE} {file.rows} x "
            f"{file.dimension}; they are of different builds, so build the index again."
        )

    return RefinedIndex(first, file, config.refine_factor)


@dataclass(frozen=True, slots=True)
class DenseRetriever:
    """Encodes queries and searches a vector index."""

    encoder: Encoder
    vectors: VectorIndex

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Rank rows by inner product; a query in which the encoder sees nothing finds nothing.

        Raises:
            ArtifactError: the encoder's vectors have another dimension than the index's.
        """
        if not queries:
            return []
        queries_QD = self.encoder.encode(queries, "query")

        if queries_QD.shape[1] != self.vectors.dimension:
            raise ArtifactError(
                f"the encoder gives vectors of {queries_QD.shape[1]} dimensions and the index "
                f"holds {self.vectors.dimension}, so it was built with another encoder; build it "
                "again with this one."
            )

        return self.vectors.nearest(queries_QD, top_k, allowed_N)
