"""Dense retrieval: an encoder's query vectors, searched in a vector index.

Row N of the index is row N of the chunk store.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.retrieval.encoders.encoder import Encoder
from deepsearch_rl.retrieval.ranking import Ranking
from deepsearch_rl.retrieval.vectors.approximate import ApproximateIndex, RefinedIndex, read_faiss
from deepsearch_rl.retrieval.vectors.building import INDEX_FILE, VECTORS_FILE
from deepsearch_rl.retrieval.vectors.config import (
    FlatConfig,
    HnswConfig,
    IvfPqConfig,
    IvfPqRefineConfig,
    VectorsConfig,
)
from deepsearch_rl.retrieval.vectors.flat import FlatIndex, open_vector_file
from deepsearch_rl.retrieval.vectors.gpu import copy_to_gpu, require_device


class VectorIndex(Protocol):
    """Finds the rows of greatest inner product, whichever kind of index it is."""

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        ...

    def search(
        self, queries_QD: NDArray[np.float32], top_k: int, allowed_N: NDArray[np.bool_] | None = None
    ) -> list[Ranking]:
        """Return one ranking per query of at most ``top_k`` rows, best first, equal scores by row.

        Rows that ``allowed_N`` denies are not found. A zero query, which points nowhere, finds nothing.
        """
        ...


def open_vector_index(folder: Path, config: VectorsConfig) -> VectorIndex:
    """Open the index that was built into ``folder`` with ``config``; fields of the search alone may differ.

    All but codes of 4 bits stays in its file, behind a memory map.

    Raises:
        ArtifactError: a file is missing or damaged, or the two do not belong together.
        UnavailableError: ``search_device: cuda`` without faiss-gpu or without a GPU, or its memory is full.
    """
    require_device(config)
    if isinstance(config, FlatConfig):
        return FlatIndex(open_vector_file(folder / VECTORS_FILE))
    if isinstance(config, IvfPqConfig | IvfPqRefineConfig) and (folder / INDEX_FILE).is_file():
        with (folder / INDEX_FILE).open("rb") as codes:  # small, and most searches run through a part of them
            os.posix_fadvise(codes.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    index = read_faiss(folder / INDEX_FILE)
    on_gpu = not isinstance(config, HnswConfig) and config.search_device == "cuda"
    first = ApproximateIndex(index, config, copy_to_gpu(index) if on_gpu else None)
    if not isinstance(config, IvfPqRefineConfig):
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

    def search(self, queries: Sequence[str], top_k: int, allowed_N: NDArray[np.bool_] | None = None) -> list[Ranking]:
        """Rank rows by inner product; a query in which the encoder sees nothing finds nothing.

        Raises:
            ArtifactError: the encoder's vectors have another dimension than the index's.
        """
        if not queries:
            return []
        queries_QD = self.encoder.encode(queries, "query")
        if queries_QD.shape[1] != self.vectors.dimension:
            raise ArtifactError(
                f"the encoder gives vectors of {queries_QD.shape[1]} dimensions and the index holds "
                f"{self.vectors.dimension}, so it was built with another encoder; build it again with this one."
            )
        return self.vectors.search(queries_QD, top_k, allowed_N)
