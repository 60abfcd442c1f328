"""A FAISS index that another project built: whatever its kind, it is searched as its file is.

Search-R1's ``e5_Flat.index`` and graphs, and product codes as FlashRAG publishes them, hold the
vectors of a corpus in the order of its lines. ``IO_FLAG_MMAP_IFC`` leaves vectors, codes and links
in the file.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.retrieval.encoding.encoder import Vectors
from deepsearch_rl.retrieval.ranking.ranking import Mask, Ranking, rank
from deepsearch_rl.retrieval.vectors.config import FaissConfig

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
            f"{path} compares by another metric than the inner product (FAISS's metric {index.metric_type}), so that "
            "its scores are no cosines: build it with faiss.METRIC_INNER_PRODUCT over vectors of length one."
        )
    if isinstance(index, faiss.IndexIDMap):
        raise ArtifactError(
            f"{path} is an IndexIDMap, whose ids need not be line numbers: write the index inside of it "
            "(faiss.write_index(index.index, FILE)) if its vectors are in the order of the corpus."
        )
    return index


def faiss_rankings(
    index: faiss.Index, queries_QD: Vectors, top_k: int, depth: int, parameters: Any
) -> list[Ranking]:
    """Search a FAISS index for ``depth`` rows a query and return the best ``top_k``, equal scores by row.

    A zero query finds nothing.
    """
    scores_QC, rows_QC = index.search(queries_QD, depth, params=parameters)

    # FAISS pads with row -1, and a zero query has equal scores everywhere.
    hits_QC = (rows_QC >= 0) & queries_QD.any(axis=1, keepdims=True)
    rankings: list[Ranking] = []
    for scores_C, rows_C, hits_C in zip(scores_QC, rows_QC, hits_QC, strict=True):
        rankings.append(rank(rows_C[hits_C], scores_C[hits_C], top_k))

    return rankings


def row_selection(allowed_N: Mask | None) -> dict[str, Any]:
    """Return FAISS's search parameters for a mask of rows; empty without one."""
    if allowed_N is None:
        return {}
    bits = np.packbits(allowed_N, bitorder="little")
    return {"sel": faiss.IDSelectorBitmap(bits)}  # pyright: ignore[reportCallIssue, reportArgumentType]


@dataclass(frozen=True, slots=True)
class ImportedIndex:
    """A FAISS index of any kind; an effort that ``config`` does not name is that of the file."""

    index: faiss.Index
    config: FaissConfig

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.index.d

    def search(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """See ``VectorIndex.search`` (dense.py); a row that is not looked at is not found."""
        depth = min(top_k + TIE_SLACK, self.index.ntotal)
        share = 1.0
        if allowed_N is not None:
            share = max(int(allowed_N.sum()), 1) / self.index.ntotal

        parameters = self._parameters(self.index, depth, share, row_selection(allowed_N))
        return faiss_rankings(self.index, queries_QD, top_k, depth, parameters)

    def _parameters(
        self, index: Any, depth: int, share: float, selection: dict[str, Any]
    ) -> faiss.SearchParameters:
        """Return the effort of one search, which grows as the ``share`` of allowed rows falls."""
        if isinstance(index, faiss.IndexPreTransform):  # e.g. a rotation before product codes
            inner = faiss.downcast_index(index.index)
            inner_parameters = self._parameters(inner, depth, share, selection)
            return faiss.SearchParametersPreTransform(index_params=inner_parameters)  # pyright: ignore[reportCallIssue]
        if isinstance(index, faiss.IndexIVF):
            nprobe = min(math.ceil((self.config.nprobe or index.nprobe) / share), index.nlist)
            return faiss.SearchParametersIVF(**selection, **{"nprobe": nprobe})
        if isinstance(index, faiss.IndexHNSW):
            wanted = max(self.config.ef_search or index.hnsw.efSearch, depth)
            effort = min(math.ceil(wanted / share), index.ntotal)
            return faiss.SearchParametersHNSW(**selection, efSearch=effort)  # pyright: ignore[reportAttributeAccessIssue]
        return faiss.SearchParameters(**selection)
