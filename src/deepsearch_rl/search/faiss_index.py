"""A FAISS index of any kind, built here from a factory string or taken over from elsewhere.

    {kind: faiss, factory: "IVF1024,PQ128x4fs", search: nprobe=48, refine: 8}

What a factory string may say is in FAISS's wiki ("The index factory"), and so are the search
parameters (``ParameterSpace``). ``IO_FLAG_MMAP_IFC`` leaves inverted lists, codes, vectors and graph
links in the file: opening takes no memory but the cells' centroids and code books. Codes of 4 bits
(``fs``, scanned in SIMD registers; Andre, Kermarrec and Le Scouarnec 2015) are the exception: FAISS
reads them into memory.

A mask lowers the number of rows that a visit of a cell (or a step through the graph) can find. The
effort therefore grows as the share of allowed rows falls, so that a filter does not cost hits.

``refine`` orders the candidates of codes by their exact inner products with the vectors on disk,
because the error of a code is larger than the gaps between neighbours. The candidates of a whole
batch are requested from the disk at once, so that a cold page cache costs one round of parallel
reads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.search.encoders.encoder import Vectors
from deepsearch_rl.search.flat_index import (
    VECTORS_FILE,
    VectorFile,
    link_or_copy,
    open_vector_file,
)
from deepsearch_rl.search.ranking import Mask, Ranking, VectorIndex, rank

INDEX_FILE = "index.faiss"
# Hits beyond top_k that FAISS is asked for: it cuts equal scores in any order, ours is by row
TIE_SLACK = 16


class FaissConfig(Record):
    """A FAISS index over inner products; ``search`` and ``refine`` are read when it is opened."""

    kind: Literal["faiss"]
    factory: NonEmpty | None = Field(
        description="what is built, such as IVF1024,PQ128x4fs; null: an imported index, built elsewhere"
    )
    search: str = Field(
        default="", description="FAISS's search parameters, such as nprobe=48; empty: the file's"
    )
    refine: float | None = Field(
        default=None,
        ge=1,
        description="candidates per wanted hit that exact inner products order; null: FAISS's scores",
    )
    train_rows: int = Field(
        default=262_144, ge=1, description="vectors that FAISS learns from, drawn by seed"
    )

    def build(self, vectors: Path, folder: Path, seed: int) -> None:
        """Index a vectors file into ``folder``, which keeps the vectors as well where they are refined from.

        FAISS seeds its clustering itself. Raises ArtifactError where the vectors file is missing or
        damaged or the disk is full, ConfigError where FAISS cannot build this of these vectors.
        """
        if self.factory is None:
            raise ConfigError(
                "index.vectors names no factory, which is for an imported index (`deepsearch retrieve import`, "
                "index.imported): say what is to be built, such as IVF1024,PQ64."
            )
        file = open_vector_file(vectors)
        folder.mkdir(parents=True, exist_ok=True)
        write_faiss(_built(file, self.factory, self.train_rows, seed), folder / INDEX_FILE)

        copy = folder / VECTORS_FILE
        if self.refine is None:
            copy.unlink(missing_ok=True)
        elif not (copy.exists() and copy.samefile(vectors)):
            link_or_copy(vectors, copy)

    def open(self, folder: Path) -> VectorIndex:
        """Open what :meth:`build` wrote, or an imported file, behind a memory map.

        Raises ArtifactError where a file is missing or damaged or the two do not belong together,
        ConfigError where the index has no such search parameters.
        """
        index = read_faiss(folder / INDEX_FILE)
        try:
            faiss.ParameterSpace().set_index_parameters(index, self.search)
        except RuntimeError as error:
            raise ConfigError(
                f"index.vectors.search: FAISS cannot search {folder / INDEX_FILE} (of type "
                f"{type(index).__name__}) with {self.search!r}."
            ) from error

        if self.refine is None:
            return FaissIndex(index)

        file = open_vector_file(folder / VECTORS_FILE, random_access=True)
        if (index.ntotal, index.d) != (file.rows, file.dimension):
            raise ArtifactError(
                f"{folder}: {INDEX_FILE} holds {index.ntotal} x {index.d} and {VECTORS_FILE} {file.rows} x "
                f"{file.dimension}; they are of different builds, so build the index again."
            )

        return RefinedIndex(FaissIndex(index), file, self.refine)


def _built(file: VectorFile, factory: str, train_rows: int, seed: int) -> faiss.Index:
    """Return a trained and filled index; what it holds is in memory until it is written."""
    try:
        index: Any = faiss.index_factory(file.dimension, factory, faiss.METRIC_INNER_PRODUCT)
        sample = min(file.rows, train_rows)
        # Ascending, so that the file is read in one direction.
        rows_M = np.sort(np.random.default_rng(seed).choice(file.rows, sample, replace=False))
        if not index.is_trained:
            index.train(file.vectors_ND[rows_M].astype(np.float32, copy=False))

        with ProgressBar("index", file.rows, "vectors") as bar:
            for _, block_BD in file.blocks():
                index.add(block_BD)
                bar.advance(len(block_BD))
    except RuntimeError as error:
        # After the name and place of a C++ function
        reason = str(error).strip().splitlines()[0].rpartition(": ")[2]
        raise ConfigError(
            f"index.vectors.factory: FAISS cannot build {factory} of {file.rows} vectors of {file.dimension} "
            f"dimensions ({reason})."
        ) from error

    return index


def write_faiss(index: faiss.Index, path: Path) -> None:
    """Write an index file; raise ArtifactError where that fails, e.g. because the disk is full."""
    # FAISS hides the system's error, so that the most likely one is named.
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise ArtifactError(
            f"the vectors cannot be written to {path}; is the disk full?"
        ) from error


def read_faiss(path: Path) -> faiss.Index:
    """Memory-map a FAISS index whose row numbers and scores mean what ours do.

    Raises ArtifactError for a missing or damaged file, for another metric than the inner product,
    and for an index with ids of its own, whose rows need not be the lines of a corpus.
    """
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ArtifactError(
            f"the vectors in {path} cannot be read; build the index again."
        ) from error

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


@dataclass(frozen=True, slots=True)
class FaissIndex:
    """A FAISS index of any kind, searched with the effort that it is set to."""

    index: faiss.Index

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.index.d

    def nearest(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """See :meth:`VectorIndex.nearest`; a row that is not looked at is not found."""
        rows = self.index.ntotal
        depth = min(top_k + TIE_SLACK, rows)
        share = 1.0
        selection: dict[str, Any] = {}

        if allowed_N is not None:
            share = max(int(allowed_N.sum()), 1) / rows
            bits = np.packbits(allowed_N, bitorder="little")
            selection["sel"] = faiss.IDSelectorBitmap(bits)  # pyright: ignore[reportCallIssue, reportArgumentType]

        parameters = _effort(self.index, depth, share, selection)
        scores_QC, rows_QC = self.index.search(queries_QD, depth, params=parameters)  # pyright: ignore[reportCallIssue]

        # FAISS pads with row -1, and a zero query has equal scores everywhere.
        hits_QC = (rows_QC >= 0) & queries_QD.any(axis=1, keepdims=True)
        rankings: list[Ranking] = []
        for scores_C, rows_C, hits_C in zip(scores_QC, rows_QC, hits_QC, strict=True):
            rankings.append(rank(rows_C[hits_C], scores_C[hits_C], top_k))

        return rankings


def _effort(
    index: Any, depth: int, share: float, selection: dict[str, Any]
) -> faiss.SearchParameters:
    """Return the effort of one search, which grows as the ``share`` of allowed rows falls."""
    if isinstance(index, faiss.IndexRefine):
        base = faiss.downcast_index(index.base_index)
        base_depth = math.ceil(depth * index.k_factor)
        refining: dict[str, Any] = {
            "k_factor": index.k_factor,
            "base_index_params": _effort(base, base_depth, share, selection),
        }
        return faiss.IndexRefineSearchParameters(**refining)

    if isinstance(index, faiss.IndexPreTransform):
        inner = _effort(faiss.downcast_index(index.index), depth, share, selection)
        return faiss.SearchParametersPreTransform(index_params=inner)  # pyright: ignore[reportCallIssue]

    if isinstance(index, faiss.IndexIVF):
        nprobe = min(math.ceil(index.nprobe / share), index.nlist)
        return faiss.SearchParametersIVF(**selection, **{"nprobe": nprobe})

    if isinstance(index, faiss.IndexHNSW):
        in_view = math.ceil(max(index.hnsw.efSearch, depth) / share)
        return faiss.SearchParametersHNSW(**selection, efSearch=min(in_view, index.ntotal))  # pyright: ignore[reportAttributeAccessIssue]

    return faiss.SearchParameters(**selection)


@dataclass(frozen=True, slots=True)
class RefinedIndex:
    """A first stage whose candidates are ordered by their inner products with the vectors of a file."""

    first: FaissIndex
    file: VectorFile
    candidates_per_hit: float

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
    ) -> Sequence[NDArray[np.int64]]:
        """Return the rows_C of every query that its exact ranking is made of, ascending."""
        depth = math.ceil(min(top_k, self.file.rows) * self.candidates_per_hit)

        # A filter may leave few enough to compare with all of them.
        if allowed_N is not None and np.count_nonzero(allowed_N) <= depth:
            allowed_C = np.flatnonzero(allowed_N)
            # A vector of zeros is that of a blank query, which finds nothing
            return [allowed_C if query_D.any() else allowed_C[:0] for query_D in queries_QD]

        # In the order of the file, so that the disk reads in one direction.
        rankings = self.first.nearest(queries_QD, depth, allowed_N)
        return [np.sort(ranking.rows_K) for ranking in rankings]
