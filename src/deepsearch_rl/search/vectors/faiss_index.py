"""A FAISS index, built here or elsewhere: how its file is opened, and how it is searched.

``IO_FLAG_MMAP_IFC`` leaves inverted lists, codes, vectors and graph links in the file: opening
takes no memory but the cells' centroids and code books. Codes of 4 bits are the exception: FAISS
reads them into memory.

A mask lowers the number of rows that a visit of a cell (or a step through the graph) can find. The
effort therefore grows as the share of allowed rows falls, so that a filter does not cost hits.

Search-R1's ``e5_Flat.index`` and graphs, and product codes as FlashRAG publishes them, hold the
vectors of a corpus in the order of its lines.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.search.encoders.encoder import Vectors
from deepsearch_rl.search.ranking import Mask, Ranking, rank
from deepsearch_rl.search.vectors.config import (
    GPU_CANDIDATES,
    FaissConfig,
    HnswConfig,
    IvfConfig,
)

# Hits beyond top_k that FAISS is asked for: it cuts equal scores in any order, ours is by row
TIE_SLACK = 16


def read_faiss(path: Path) -> faiss.Index:
    """Memory-map a FAISS index; raise ArtifactError where the file is missing or damaged."""
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ArtifactError(
            f"the vectors in {path} cannot be read; build the index again."
        ) from error


def read_imported(path: Path) -> faiss.Index:
    """Return a FAISS index whose row numbers and scores mean what ours do.

    Raises ArtifactError for a damaged file, for another metric than the inner product, and for
    an index with ids of its own, whose rows need not be the lines of a corpus.
    """
    index = read_faiss(path)
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ArtifactError(
            f"{path} compares by another metric than the inner product (FAISS's metric "
            f"{index.metric_type}), so that its scores are no cosines: build it with "
            "faiss.METRIC_INNER_PRODUCT over vectors of length one."
        )
    if isinstance(index, faiss.IndexIDMap):
        raise ArtifactError(
            f"{path} is an IndexIDMap, whose ids need not be line numbers: write the index inside of it "
            "(faiss.write_index(index.index, FILE)) if its vectors are in the order of the corpus."
        )
    return index


def innermost(index: faiss.Index) -> faiss.Index:
    """Return the index inside of rotations and refinements, whose kind says what the effort of a search is."""
    while True:
        # E.g. a rotation before product codes
        if isinstance(index, faiss.IndexPreTransform):
            index = faiss.downcast_index(index.index)
        # Whole vectors that give the hits of codes their scores
        elif isinstance(index, faiss.IndexRefine):
            index = faiss.downcast_index(index.base_index)
        else:
            return index


@dataclass(frozen=True, slots=True)
class FaissIndex:
    """A FAISS index of any kind, with the effort of a search; None is the effort that its file names."""

    index: faiss.Index
    nprobe: int | None
    ef_search: int | None
    # A copy for searches without a filter, of at most GPU_CANDIDATES hits
    gpu_index: faiss.Index | None = None

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.index.d

    def nearest(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """See ``VectorIndex.nearest`` (dense.py); a row that is not looked at is not found."""
        rows = self.index.ntotal
        depth = min(top_k + TIE_SLACK, rows)
        share = 1.0
        selection: dict[str, Any] = {}

        if allowed_N is not None:
            share = max(int(allowed_N.sum()), 1) / rows
            bits = np.packbits(allowed_N, bitorder="little")
            selection["sel"] = faiss.IDSelectorBitmap(bits)  # pyright: ignore[reportCallIssue, reportArgumentType]

        index = self.index
        if self.gpu_index is not None and allowed_N is None and depth <= GPU_CANDIDATES:
            index = self.gpu_index

        parameters = self._parameters(self.index, depth, share, selection)
        scores_QC, rows_QC = index.search(queries_QD, depth, params=parameters)

        # FAISS pads with row -1, and a zero query has equal scores everywhere.
        hits_QC = (rows_QC >= 0) & queries_QD.any(axis=1, keepdims=True)
        rankings: list[Ranking] = []
        for scores_C, rows_C, hits_C in zip(scores_QC, rows_QC, hits_QC, strict=True):
            rankings.append(rank(rows_C[hits_C], scores_C[hits_C], top_k))

        return rankings

    def _parameters(
        self, index: Any, depth: int, share: float, selection: dict[str, Any]
    ) -> faiss.SearchParameters:
        """Return the effort of one search, which grows as the ``share`` of allowed rows falls."""
        if isinstance(index, faiss.IndexRefine):
            base = faiss.downcast_index(index.base_index)
            base_depth = math.ceil(depth * index.k_factor)
            effort: dict[str, Any] = {
                "k_factor": index.k_factor,
                "base_index_params": self._parameters(base, base_depth, share, selection),
            }
            return faiss.IndexRefineSearchParameters(**effort)

        if isinstance(index, faiss.IndexPreTransform):
            inner = faiss.downcast_index(index.index)
            inner_parameters = self._parameters(inner, depth, share, selection)
            return faiss.SearchParametersPreTransform(index_params=inner_parameters)  # pyright: ignore[reportCallIssue]

        if isinstance(index, faiss.IndexIVF):
            nprobe = min(math.ceil((self.nprobe or index.nprobe) / share), index.nlist)
            return faiss.SearchParametersIVF(**selection, **{"nprobe": nprobe})

        if isinstance(index, faiss.IndexHNSW):
            ef_search = max(self.ef_search or index.hnsw.efSearch, depth)
            ef_search = min(math.ceil(ef_search / share), index.ntotal)
            return faiss.SearchParametersHNSW(**selection, efSearch=ef_search)  # pyright: ignore[reportAttributeAccessIssue]

        return faiss.SearchParameters(**selection)


def with_effort(
    index: faiss.Index,
    config: IvfConfig | HnswConfig | FaissConfig,
    gpu_index: faiss.Index | None = None,
) -> FaissIndex:
    """Return an index that is searched with the effort of a configuration."""
    nprobe = None if isinstance(config, HnswConfig) else config.nprobe
    ef_search = None if isinstance(config, IvfConfig) else config.ef_search
    return FaissIndex(index, nprobe, ef_search, gpu_index)
