"""Prebuilt indexes of other projects as indexes of ours: checked against their corpus, searched unchanged.

====================================  =============================================================
a ``.npy`` file                       vectors by row, float16 or float32: exact search
a folder with ``segments_*``          Lucene's or Anserini's; documents are matched by the field id
any other file                        FAISS's: flat, HNSW, IVF, product codes, with a rotation or not
====================================  =============================================================

Row N of vectors is line N of the corpus. Nothing in a file of vectors says of which corpus it is,
so that their number and dimension are compared, and where whole vectors are in the file, those of
the first, middle and last line with what the encoder makes of these lines. All of these vectors must
be finite, and those that have not length 1 are counted; vectors in cells must all be in one. A file
is linked where the disk allows it, copied otherwise.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search import manifest
from deepsearch_rl.search.bm25.lucene import LuceneConfig, import_lucene
from deepsearch_rl.search.encoders.encoder import Encoder, Vectors, require_finite
from deepsearch_rl.search.encoders.tfidf_svd import TfidfSvdConfig
from deepsearch_rl.search.faiss_index import INDEX_FILE, FaissConfig, read_faiss
from deepsearch_rl.search.flat_index import (
    BLOCK_ROWS,
    VECTORS_FILE,
    FlatConfig,
    link_or_copy,
    open_vector_file,
)
from deepsearch_rl.search.manifest import IndexConfig

_LOG = logging.getLogger(__name__)
# Rows that a warning names
NAMED = 3
# What rounding leaves between the vectors of one encoder; another encoder, prefix or line is far
# below
SAME_COSINE = 0.95
# What rounding to float16 does to the length of a vector, and more
LENGTH_ERROR = 0.01


def is_lucene(source: Path) -> bool:
    """Return whether a path is a folder that Lucene wrote."""
    return source.is_dir() and any(source.glob("segments_*"))


def imported_config(source: Path, config: IndexConfig) -> IndexConfig:
    """Return the configuration of an index that holds ``source`` alone.

    ``config`` gives the encoder and, if its vectors are FAISS's without a factory, how these are
    searched; or Lucene's BM25. Raises ArtifactError where there is nothing to import, ConfigError
    where the half that the source needs is not described.
    """
    if not source.exists() or (source.is_dir() and not is_lucene(source)):
        problem = "is a folder without Lucene's segments" if source.is_dir() else "does not exist"
        raise ArtifactError(
            f"{source} {problem}; name a .npy file, a FAISS index, or the folder of a Lucene index."
        )

    if is_lucene(source):
        if not isinstance(config.bm25, LuceneConfig):
            raise ConfigError(f"{source} is Lucene's, so that index.bm25 must be of engine lucene.")
        # An imported index is one half: the other was not made with it
        return config.model_copy(update={"encoder": None})

    if config.encoder is None:
        raise ConfigError(
            f"{source} holds vectors, and queries need the encoder that they are of: name it (--encoder, "
            "index.encoder)."
        )
    if isinstance(config.encoder, TfidfSvdConfig):
        raise ConfigError(
            f"{source} holds vectors of another encoder than tfidf_svd, which `retrieve build` learns from a corpus "
            "and keeps in its index: name the encoder that they are of (--encoder, index.encoder)."
        )
    vectors = config.vectors
    if source.suffix == ".npy":
        vectors = FlatConfig(kind="flat")
    elif vectors.kind == "flat" or vectors.factory is not None:
        vectors = FaissConfig(kind="faiss", factory=None)
    return config.model_copy(update={"bm25": None, "vectors": vectors})


def write_imported(
    source: Path, folder: Path, chunks: Sequence[Chunk], config: IndexConfig
) -> int | None:
    """Put a prebuilt index into ``folder`` and return the dimension of its vectors, None for Lucene's.

    ``config`` is that of :func:`imported_config`. Raises ArtifactError where the source is damaged
    or not that of these chunks and this encoder.
    """
    if is_lucene(source):
        assert isinstance(config.bm25, LuceneConfig)
        import_lucene(source, folder / manifest.BM25_FOLDER, chunks, config.bm25)
        return None

    target = folder / manifest.DENSE_FOLDER
    target.mkdir()
    whole: Any
    blocks: Iterator[tuple[int, Vectors]] = iter(())

    if config.vectors.kind == "flat":
        file = open_vector_file(source)
        whole = file.vectors_ND
        rows, dimension = whole.shape
        blocks = file.blocks()
        link_or_copy(source, target / VECTORS_FILE)
    else:
        index = read_faiss(source)
        _require_cells(source, index)
        rows = index.ntotal
        dimension = index.d
        # Product codes cannot be compared with what the encoder gives now
        whole = _WholeVectors(index) if _holds_vectors(index) else None
        blocks = iter(()) if whole is None else whole.blocks()
        link_or_copy(source, target / INDEX_FILE)

    if rows != len(chunks):
        raise ArtifactError(
            f"{source} holds {rows} vectors and the corpus {len(chunks)} passages, so that row N "
            "would not be line N: name the corpus that the vectors are of, whole and in its order."
        )

    assert config.encoder is not None
    encoder = config.encoder.open(folder / manifest.ENCODER_FOLDER)
    _require_encoder(source, dimension, whole, chunks, encoder)
    _check_rows(source, rows, blocks)
    return dimension


def _check_rows(source: Path, rows: int, blocks: Iterator[tuple[int, Vectors]]) -> None:
    """Raise ArtifactError for a vector that is not finite; log how many have not length 1."""
    other_lengths: dict[int, float] = {}
    count = 0

    with ProgressBar("check vectors", rows, "vectors") as bar:
        for start, block_BD in blocks:
            require_finite(block_BD, partial(_row_name, source, start))
            lengths_B = np.linalg.norm(block_BD.astype(np.float64), axis=1)
            # The vector of a blank passage is zero
            other_B = np.flatnonzero((abs(lengths_B - 1) > LENGTH_ERROR) & (lengths_B > 0))
            count += len(other_B)
            for row in other_B[: NAMED - len(other_lengths)].tolist():
                other_lengths[start + row] = lengths_B[row]
            bar.advance(len(block_BD))

    if count:
        named = ", ".join(f"{length:.3g} in row {row}" for row, length in other_lengths.items())
        _LOG.warning(
            "%s: %d of %d vectors have not length 1 (%s), so that inner products are no cosines and long "
            "vectors come first; normalise them if the encoder is meant for cosines",
            source,
            count,
            rows,
            named,
        )


def _row_name(source: Path, start: int, row: int) -> str:
    return f"row {start + row} of {source}"


class _WholeVectors:
    """The vectors of a FAISS index by row, as those of an array."""

    def __init__(self, index: faiss.Index) -> None:
        self._index = index

    def __getitem__(self, rows: Sequence[int]) -> NDArray[np.float32]:
        vectors = [self._index.reconstruct(row) for row in rows]  # pyright: ignore[reportCallIssue]
        return np.stack(vectors)

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first row and the vectors of every block, in order."""
        for start in range(0, self._index.ntotal, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, self._index.ntotal - start)
            yield start, self._index.reconstruct_n(start, rows)  # pyright: ignore[reportCallIssue]


def _require_cells(source: Path, index: faiss.Index) -> None:
    """Raise ArtifactError where FAISS put vectors into no cell, as it does with NaN."""
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is None:
        return

    lost = ivf.ntotal - ivf.invlists.compute_ntotal()  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    if lost:
        raise ArtifactError(
            f"{lost} of the {ivf.ntotal} vectors of {source} are in no cell, so that no search finds "
            "them: they held NaN or infinite numbers. Look for what is odd in their texts, and build "
            "the index again."
        )


def _holds_vectors(index: faiss.Index) -> bool:
    """Return whether an index has whole vectors, float16 or float32, in the order of their rows."""
    if isinstance(index, faiss.IndexScalarQuantizer):
        return index.sq.qtype == faiss.ScalarQuantizer.QT_fp16
    return isinstance(index, faiss.IndexFlat | faiss.IndexHNSWFlat)


def _require_encoder(
    source: Path,
    dimension: int,
    whole: Any,
    chunks: Sequence[Chunk],
    encoder: Encoder,
) -> None:
    """Raise ArtifactError where the vectors are not those that the encoder makes of the passages.

    ``whole`` gives vectors by row numbers; None where the index holds codes alone.
    """
    rows = sorted({0, len(chunks) // 2, len(chunks) - 1})
    encoded_RD = encoder.encode([chunks[row].contents for row in rows], "passage")

    if encoded_RD.shape[1] != dimension:
        raise ArtifactError(
            f"{source} holds vectors of {dimension} dimensions, and the encoder gives "
            f"{encoded_RD.shape[1]}: name the encoder that the vectors are of."
        )
    if whole is None:
        _LOG.warning(
            "%s holds codes, no vectors: that they are of this encoder and in this corpus's order "
            "is not checked",
            source,
        )
        return

    stored_RD = np.asarray(whole[rows], dtype=np.float32)
    lengths_R = np.linalg.norm(stored_RD, axis=1) * np.linalg.norm(encoded_RD, axis=1)
    cosines_R = (stored_RD * encoded_RD).sum(axis=1) / np.maximum(lengths_R, 1e-12)
    # Both are zero where the encoder sees nothing in a passage
    is_same_R = (cosines_R >= SAME_COSINE) | ~(stored_RD.any(axis=1) | encoded_RD.any(axis=1))

    if not is_same_R.all():
        row = rows[int(np.flatnonzero(~is_same_R)[0])]
        cosine = cosines_R[int(np.flatnonzero(~is_same_R)[0])]
        raise ArtifactError(
            f"row {row} of {source} has a cosine of {cosine:.2f} with the encoder's vector of line "
            f"{row + 1} of the corpus ({chunks[row].id}), where one of the same encoder has "
            f"{SAME_COSINE:g} or more: the corpus is in another order, or the vectors are of "
            "another encoder, prefix or pooling."
        )
