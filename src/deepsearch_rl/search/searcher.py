"""Open an index and search it: queries in, chunks out. The one place that joins rows with the chunk file."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.core.own_code import is_own
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search import manifest
from deepsearch_rl.search.encoders.encoder import Encoder, require_finite
from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersConfig
from deepsearch_rl.search.hybrid import FEATURES, CandidateFinder, HybridRetriever
from deepsearch_rl.search.manifest import IndexConfig, IndexManifest, read_manifest
from deepsearch_rl.search.own_retriever import OwnRetriever, require_retriever
from deepsearch_rl.search.question_parts import SourceNames
from deepsearch_rl.search.ranking import (
    FusionWeights,
    Mask,
    Ranking,
    ReciprocalRankFusion,
    Retriever,
    VectorIndex,
)
from deepsearch_rl.search.rows import ChunkStore, Filter, RowTable
from deepsearch_rl.search.sentence_terms import SentenceTerms

# Of a larger chunk file the size is compared alone
DIGESTED_BELOW_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk of a result. ``row`` is its line in the chunk file from 0; a higher ``score`` is a better match."""

    row: int
    score: float
    chunk: Chunk


class QueriesFailedError(EndpointError):
    """Some queries of a search failed alone; ``outcomes`` has the hits of each query, or its error, in their order."""

    def __init__(self, outcomes: Sequence[list[Hit] | EndpointError]) -> None:
        self.outcomes = tuple(outcomes)
        failures = [outcome for outcome in outcomes if isinstance(outcome, EndpointError)]
        super().__init__(
            f"{len(failures)} of {len(outcomes)} queries failed, the first one because {failures[0]}"
        )


class SearchesChunks(Protocol):
    """Whatever turns queries into chunks: an index's searcher, one with a reranker behind it, an online search."""

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        """Return at most ``top_k`` hits per query, best first; fewer where fewer match, none for a blank query.

        With ``where``, only chunks that it matches are found. Raise QueriesFailedError where some
        queries failed alone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Searcher:
    """A retriever with the chunks and the row table of its index."""

    retriever: Retriever
    chunks: Sequence[Chunk]
    rows: RowTable

    def find_hits(
        self, queries: Sequence[str], top_k: int, where: Filter | None = None
    ) -> list[list[Hit]]:
        """Return what :class:`SearchesChunks` promises; raise ValueError for a ``top_k`` below 1."""
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")

        # No mask where nothing is filtered: every retriever is faster without one.
        allowed_N = None if where is None or where == Filter() else self.rows.mask(where)
        results: list[list[Hit]] = []
        for ranking in self.retriever.search(queries, top_k, allowed_N):
            pairs = zip(ranking.rows_K.tolist(), ranking.scores_K.tolist(), strict=True)
            results.append([Hit(row, score, self.chunks[row]) for row, score in pairs])

        return results


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
            ArtifactError: the encoder's vectors have another dimension than the index's, or one is
                not finite.
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

        require_finite(queries_QD, lambda query: f"the query {queries[query]!r}")
        return self.vectors.nearest(queries_QD, top_k, allowed_N)


def open_index(
    index_dir: Path,
    chunks_path: Path | None = None,
    retriever: str | None = None,
    threads: int | None = None,
) -> Searcher:
    """Open one retriever of an index, by default its first half, together with the chunks that it was built from.

    ``chunks_path`` is the chunk file if it is no longer where the manifest says. The user's own
    retrievers are named by ``path/to/file.py:name``. ``threads`` are those of an encoder with
    weights, in place of its configuration's.

    Raises:
        ArtifactError: the index is missing or incomplete, of another format, or was built from
            another chunk file, or by an encoder whose files changed since.
        ConfigError: it was built without a half that the retriever needs, or the user's own
            retriever cannot be loaded.
        UnknownNameError: there is no such retriever.
    """
    if retriever is not None:
        require_retriever(retriever)
    built = read_manifest(index_dir)
    path = chunks_path or Path(os.path.normpath(index_dir.resolve() / built.chunks))

    if not path.is_file():
        raise ArtifactError(
            f"{path} does not exist; it is the chunk file of the index in {index_dir}. If it was moved, say where to."
        )

    # The digest of a large file takes minutes; one of another corpus has another size
    size_bytes = path.stat().st_size
    is_other = size_bytes != built.chunks_bytes
    if is_other or (size_bytes < DIGESTED_BELOW_BYTES and sha256_file(path) != built.chunks_sha256):
        raise ArtifactError(
            f"the index in {index_dir} was built from other chunks than {path}, so its rows would name the "
            f"wrong passages; build it again from this file (`dvc repro` does)."
        )

    rows_folder = index_dir / manifest.ROWS_FOLDER
    chunks = ChunkStore(path, rows_folder)
    name = retriever or built.config.halves[0]
    if is_own(name):
        ranked_by = OwnRetriever(name, chunks, index_dir)
    else:
        config = built.config
        if "dense" in _halves_of(ranking_of(config, built.fusion_weights, name)):
            _require_same_encoder(built, index_dir)
        if threads is not None and isinstance(config.encoder, SentenceTransformersConfig):
            encoder = config.encoder.model_copy(update={"threads": threads})
            config = config.model_copy(update={"encoder": encoder})
        ranked_by = open_retriever(index_dir, config, built.fusion_weights, name)
    return Searcher(ranked_by, chunks, RowTable.open(rows_folder))


def _require_same_encoder(built: IndexManifest, index_dir: Path) -> None:
    """Raise ArtifactError where files that decide the encoder's vectors changed since the index was built."""
    if built.config.encoder is None or built.encoder_files is None:
        return

    # Without any, the encoder itself says that its folder is missing
    now = built.config.encoder.files()
    changed = sorted({name for name, _ in built.encoder_files.items() ^ now.items()})
    if now and changed:
        raise ArtifactError(
            f"the encoder of the index in {index_dir} changed since the index was built "
            f"({', '.join(changed)}), so that queries would be encoded otherwise than the "
            "passages were; restore its files, or build the index again."
        )


def open_retriever(
    folder: Path, config: IndexConfig, weights: FusionWeights | None, name: str
) -> Retriever:
    """Open ``bm25``, ``dense``, ``reciprocal_ranks`` or ``hybrid``.

    The hybrid is the learnt one, the better half where learning did not help, or what
    ``fusion.unlearned`` says where nothing was learnt.

    Raises:
        ArtifactError: a file is missing or damaged.
        ConfigError: the index was built without a half that this retriever needs.
    """
    name = ranking_of(config, weights, name)
    for half in _halves_of(name):
        if half not in config.halves:
            present = config.halves[0]
            raise ConfigError(
                f"the index in {folder} has no {half} half, which this retriever needs: it was "
                f"built for {present} alone. Choose the retriever {present} (--retriever, "
                "retrieval.retriever), or build the index again with both halves (index.bm25 and "
                "index.encoder)."
            )

    if name == "bm25":
        assert config.bm25 is not None
        return config.bm25.open(folder / manifest.BM25_FOLDER)

    if name == "dense":
        assert config.encoder is not None
        encoder = config.encoder.open(folder / manifest.ENCODER_FOLDER)
        return DenseRetriever(encoder, config.vectors.open(folder / manifest.DENSE_FOLDER))

    # Without learnt weights the two halves are fused by their ranks
    if weights is None or name == "reciprocal_ranks":
        bm25 = open_retriever(folder, config, None, "bm25")
        dense = open_retriever(folder, config, None, "dense")
        return ReciprocalRankFusion(bm25, dense, config.fusion)

    weights_F = np.array([weights.weights[feature] for feature in FEATURES])
    return HybridRetriever(open_finder(folder, config, folder / manifest.TERMS_FOLDER), weights_F)


def retrievers_of(built: IndexManifest, names: Iterable[str]) -> list[str]:
    """Return those of ``names``, as :func:`open_retriever` takes them, whose halves an index has."""
    available: list[str] = []
    for name in names:
        needed = _halves_of(ranking_of(built.config, built.fusion_weights, name))
        if set(needed) <= set(built.config.halves):
            available.append(name)

    return available


def ranking_of(config: IndexConfig, weights: FusionWeights | None, name: str) -> str:
    """Return what ranks under a retriever's name, which of ``hybrid`` depends on the index; others are their own.

    It is ``learned``, ``reciprocal_ranks``, ``bm25`` or ``dense`` for the hybrid.
    """
    if name != "hybrid":
        return name
    return weights.ranking if weights else config.fusion.unlearned


def _halves_of(ranking: str) -> Sequence[str]:
    return (ranking,) if ranking in ("bm25", "dense") else ("bm25", "dense")


def open_finder(folder: Path, config: IndexConfig, terms_folder: Path) -> CandidateFinder:
    """Open the finder of the hybrid's candidates; ``terms_folder`` is usually that of the index."""
    bm25 = open_retriever(folder, config, None, "bm25")
    dense = open_retriever(folder, config, None, "dense")
    terms = SentenceTerms.open(terms_folder)
    table = RowTable.open(folder / manifest.ROWS_FOLDER)
    return CandidateFinder(bm25, dense, terms, table, SourceNames.of(table.sources), config.fusion)
