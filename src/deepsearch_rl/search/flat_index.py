"""Vectors on disk, and exact search straight from their file.

A memory-mapped .npy file holds N x D numbers of float16 or float32, row by row. The pages belong to
the file, so that the kernel may drop them and they count as RssFile, never as RssAnon.
:meth:`VectorFile.inner_products` computes every score, whichever index asks, so that it depends on
nothing but the query and the row: not on the batch, not on the row's place in a matrix product.

Exact search begins with a matrix product per block of rows, which finds every row that can be among
the best. Only these few get their scores, so that equal vectors have equal scores and the lower row
comes first. BLAS and FAISS do not promise that: there a row's last bit depends on its place in a
block and on the queries beside it.
"""

import contextlib
import mmap
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Record
from deepsearch_rl.search.encoders.encoder import Vectors
from deepsearch_rl.search.ranking import Mask, Ranking, rank

VECTORS_FILE = "vectors.npy"
# Rows of one pass of a sequential read
BLOCK_ROWS = 16_384
# Rows that are copied out of the map at once
GATHERED_ROWS = 4096
# More than the scores of a matrix product of unit vectors in float32 can be off by
ROUNDING = 1e-5

# Queries compared with a block of rows at once: their scores take 16 MiB, however many queries a
# call has.
QUERIES = 256

# Rows of float16 per query that are converted at once: few enough to be in the cache still when
# they are compared.
CONVERTED_ROWS = 256


class FlatConfig(Record):
    """Exact inner products with every vector."""

    kind: Literal["flat"]

    def build(self, vectors: Path, folder: Path, seed: int) -> None:  # noqa: ARG002 - nothing is drawn
        """Put a vectors file into ``folder``: a hard link where the disk allows it; nothing where it lies there."""
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / VECTORS_FILE
        if not (copy.exists() and copy.samefile(vectors)):
            link_or_copy(vectors, copy)

    def open(self, folder: Path) -> "FlatIndex":
        """Map the vectors; raise ArtifactError where the file is missing or damaged."""
        return FlatIndex(open_vector_file(folder / VECTORS_FILE))


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A memory-mapped vector file. ``vectors_ND`` is a view of the map, float16 or float32."""

    vectors_ND: NDArray[np.float32] | NDArray[np.float16]
    pages: mmap.mmap
    # Where the first row begins
    offset_bytes: int

    @property
    def rows(self) -> int:
        """N."""
        return self.vectors_ND.shape[0]

    @property
    def dimension(self) -> int:
        """D."""
        return self.vectors_ND.shape[1]

    def blocks(self, size: int = BLOCK_ROWS) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first row and the float32 vectors of every block of at most ``size`` rows, in order."""
        for start in range(0, self.rows, size):
            yield start, as_float32(self.vectors_ND[start : start + size])

    def inner_products(self, rows_C: NDArray[np.int64], query_D: Vectors) -> NDArray[np.float32]:
        """Return the float32 inner products of C rows with a query."""
        scores_C = np.empty(len(rows_C), dtype=np.float32)
        for start in range(0, len(rows_C), GATHERED_ROWS):
            part = slice(start, start + GATHERED_ROWS)
            vectors_CD = self.vectors_ND[rows_C[part]].astype(np.float32, copy=False)
            # Row by row, unlike a matrix product
            scores_C[part] = np.einsum("cd,d->c", vectors_CD, query_D)

        return scores_C

    def rank_exactly(
        self, candidates: Sequence[NDArray[np.int64]], queries_QD: Vectors, top_k: int
    ) -> list[Ranking]:
        """Order the candidates of every query, rows_C each, by their inner products with it."""
        rankings: list[Ranking] = []
        for rows_C, query_D in zip(candidates, queries_QD, strict=True):
            scores_C = self.inner_products(rows_C, query_D)
            rankings.append(rank(rows_C, scores_C, top_k))

        return rankings

    def prefetch(self, rows_C: NDArray[np.int64]) -> None:
        """Ask the disk for rows, all at once, without waiting for them."""
        row_bytes = self.dimension * self.vectors_ND.itemsize
        for row in np.unique(rows_C).tolist():
            start = self.offset_bytes + row * row_bytes
            aligned = start - start % mmap.PAGESIZE
            self.pages.madvise(mmap.MADV_WILLNEED, aligned, start + row_bytes - aligned)


def as_float32(vectors_ND: NDArray[np.float32] | NDArray[np.float16]) -> NDArray[np.float32]:
    """Return float32 vectors as they are, and float16 vectors converted, without rounding.

    NumPy converts one number after the other. Here the bits of many move to their places in a
    float32 at once, and the product with a power of two corrects the exponents.
    """
    if vectors_ND.dtype == np.float32:
        return vectors_ND.view(np.float32)

    # Neither infinities nor NaNs survive the product: those of positive sign begin at 7c00, those
    # of negative at fc00.
    if vectors_ND.view(np.int16).max() >= 0x7C00 or vectors_ND.view(np.uint16).max() >= 0xFC00:
        return vectors_ND.astype(np.float32)

    # The mantissa of 10 bits moves to the upper end of the one of 23.
    bits_ND = np.left_shift(vectors_ND.view(np.int16), 13, dtype=np.int32)

    # The sign in bit 31 and the 15 bits of the number, without the sign's copies between them
    bits_ND &= -0x70002000

    # 127 - 15, the difference of the exponents' biases
    floats_ND = bits_ND.view(np.float32)
    floats_ND *= 2.0**112
    return floats_ND


def open_vector_file(path: Path, random_access: bool = False) -> VectorFile:
    """Map a vector file. ``random_access`` switches the kernel's read-ahead off, for readers of single rows.

    Raises:
        ArtifactError: the file is missing, is cut off, or holds no matrix of float16 or float32.
    """
    try:
        mapped = open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path} does not exist; check the path, or build the index again."
        ) from error
    except (ValueError, OSError) as error:
        raise ArtifactError(
            f"{path} is not a vector file ({error}); build the index again."
        ) from error

    is_matrix = mapped.ndim == 2 and mapped.flags.c_contiguous and 0 not in mapped.shape
    if not is_matrix or mapped.dtype not in (np.dtype(np.float16), np.dtype(np.float32)):
        raise ArtifactError(
            f"{path} holds {mapped.dtype} of shape {mapped.shape}; vectors are rows of float16 or float32."
        )

    assert isinstance(mapped.base, mmap.mmap)
    if random_access:
        mapped.base.madvise(mmap.MADV_RANDOM)
    # A plain array: slices of a memmap are slower
    return VectorFile(np.asarray(mapped), mapped.base, mapped.offset)


def link_or_copy(source: Path, target: Path) -> None:
    """Replace ``target`` by a hard link to ``source``; by a copy on another disk, or where links do not exist."""
    target.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        # Of the file itself: a hub's cache has symbolic links, and a hard link to one of these may
        # lead nowhere from another folder
        target.hardlink_to(source.resolve())
        return

    shutil.copyfile(source, target)


@dataclass(slots=True)
class _Pool:
    """The rows of one query that can still be among its best."""

    rows_C: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    scores_C: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    # Lower scores, and the minus infinity of a denied row, are out
    floor: float = float(np.finfo(np.float32).min)

    def add(self, start: int, scores_B: NDArray[np.float32], top_k: int) -> None:
        """Take in the scores of a block that begins with row ``start``."""
        rows_B = np.flatnonzero(scores_B >= self.floor)
        if not len(rows_B):
            return
        self.rows_C = np.concatenate([self.rows_C, rows_B + start])
        self.scores_C = np.concatenate([self.scores_C, scores_B[rows_B]])

        if len(self.rows_C) > top_k:
            self.floor = float(np.partition(self.scores_C, -top_k)[-top_k]) - ROUNDING
            able_C = self.scores_C >= self.floor
            self.rows_C = self.rows_C[able_C]
            self.scores_C = self.scores_C[able_C]


@dataclass(frozen=True, slots=True)
class FlatIndex:
    """Compares a query with every vector of a file."""

    file: VectorFile

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.file.dimension

    def nearest(
        self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """See :meth:`VectorIndex.nearest`; exact."""
        rankings: list[Ranking] = []
        for start in range(0, len(queries_QD), QUERIES):
            rankings += self._rank(queries_QD[start : start + QUERIES], top_k, allowed_N)

        return rankings

    def _rank(self, queries_QD: Vectors, top_k: int, allowed_N: Mask | None) -> list[Ranking]:
        """Rank for a few queries, for which the file is read once."""
        pools = [_Pool() for _ in queries_QD]

        # A zero query points nowhere and finds nothing: its pool stays empty.
        searching = np.flatnonzero(queries_QD.any(axis=1)).tolist()

        size = BLOCK_ROWS
        if self.file.vectors_ND.dtype == np.float16:
            size = min(CONVERTED_ROWS * len(queries_QD), BLOCK_ROWS)

        for start, block_BD in self.file.blocks(size):
            scores_QB = queries_QD @ block_BD.T
            if allowed_N is not None:
                scores_QB[:, ~allowed_N[start : start + len(block_BD)]] = -np.inf
            for query in searching:
                pools[query].add(start, scores_QB[query], top_k)

        # The matrix product chose the candidates; their scores are computed anew, row by row.
        return self.file.rank_exactly([pool.rows_C for pool in pools], queries_QD, top_k)
