"""Dense retrieval: FAISS over the encoder's vectors, row N of the index being line N of the chunk file.

``flat`` compares with every vector and is exact. ``ivf_pq`` visits ``nprobe`` of ``nlist`` cells and compares codes of
``m`` sub-quantizers with ``nbits`` bits each: wiki-18's 21M passages take 2.1 GB instead of 60 GB that way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.encoders.encoder import Encoder
from deepsearch_rl.retrieval.ranking import Ranking, rank


class FlatConfig(Record):
    """Exact inner products with every vector."""

    kind: Literal["flat"]


class IvfPqConfig(Record):
    """Inverted cells with product-quantized vectors."""

    kind: Literal["ivf_pq"]
    nlist: int = Field(ge=1, description="number of cells")
    m: int = Field(ge=1, description="sub-quantizers; divides the encoder's dimension")
    nbits: int = Field(ge=1, le=16, description="bits per sub-quantizer")
    nprobe: int = Field(ge=1, description="cells visited per query")
    train_rows: int = Field(ge=1, description="vectors that the cells and codes are learnt from, drawn by seed")


VectorsConfig = Annotated[FlatConfig | IvfPqConfig, Field(discriminator="kind")]


def build_vectors(embeddings_ND: NDArray[np.float32], config: FlatConfig | IvfPqConfig, seed: int) -> faiss.Index:
    """A FAISS index over N vectors by inner product.

    Raises:
        ConfigError: the parameters of ``ivf_pq`` do not fit N or D.
    """
    dimension = embeddings_ND.shape[1]
    if isinstance(config, FlatConfig):
        index = faiss.IndexFlatIP(dimension)
    else:
        index = _trained_ivf_pq(embeddings_ND, config, seed)
    index.add(embeddings_ND)
    return index


def _trained_ivf_pq(embeddings_ND: NDArray[np.float32], config: IvfPqConfig, seed: int) -> faiss.Index:
    rows, dimension = embeddings_ND.shape
    sample = min(rows, config.train_rows)
    if dimension % config.m:
        raise ConfigError(f"ivf_pq: m = {config.m} does not divide the encoder's dimension {dimension}.")
    if sample < max(config.nlist, 2**config.nbits):
        raise ConfigError(
            f"ivf_pq: {sample} training vectors are too few for nlist = {config.nlist} cells and "
            f"{2**config.nbits} codes per sub-quantizer; lower nlist or nbits, or raise train_rows."
        )
    index = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(dimension), dimension, config.nlist, config.m, config.nbits, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = index.pq.cp.seed = seed
    index.nprobe = config.nprobe
    chosen_S = np.sort(np.random.default_rng(seed).choice(rows, sample, replace=False))
    index.train(embeddings_ND[chosen_S])
    return index


def save_vectors(index: faiss.Index, path: Path) -> None:
    """Write an index file.

    Raises:
        ArtifactError: it cannot be written, e.g. because the disk is full.
    """
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # FAISS hides the system's error
        raise ArtifactError(f"the vectors cannot be written to {path}; is the disk full?") from error


def load_vectors(path: Path) -> faiss.Index:
    """Read an index file.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise ArtifactError(f"the vectors in {path} cannot be read; build the index again.") from error


@dataclass(frozen=True, slots=True)
class DenseRetriever:
    """Encodes queries and asks FAISS."""

    encoder: Encoder
    vectors: faiss.Index

    def search(self, queries: Sequence[str], top_k: int) -> list[Ranking]:
        """Rank rows by inner product; a query in which the encoder sees nothing finds nothing."""
        if not queries:
            return []
        queries_QD = self.encoder.encode(queries, "query")
        scores_QK, rows_QK = self.vectors.search(queries_QD, min(top_k, self.vectors.ntotal))
        # FAISS pads with row -1 where the visited cells hold fewer vectors.
        found_QK = (rows_QK >= 0) & queries_QD.any(axis=1, keepdims=True)
        return [
            rank(rows_K[found_K], scores_K[found_K], top_k)
            for rows_K, scores_K, found_K in zip(rows_QK, scores_QK, found_QK, strict=True)
        ]
