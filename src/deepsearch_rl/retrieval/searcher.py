"""Searching an index: queries in, chunks out. The one place that joins rows with the chunk file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from deepsearch_rl.errors import ArtifactError, UnknownNameError
from deepsearch_rl.files import read_jsonl, sha256_file
from deepsearch_rl.records import Chunk
from deepsearch_rl.retrieval import manifest
from deepsearch_rl.retrieval.encoders.choice import open_encoder
from deepsearch_rl.retrieval.fusion import HybridRetriever
from deepsearch_rl.retrieval.manifest import IndexManifest, read_manifest
from deepsearch_rl.retrieval.ranking import Retriever
from deepsearch_rl.retrieval.sparse.bm25 import Bm25Index
from deepsearch_rl.retrieval.vectors.dense import DenseRetriever, load_vectors

RetrieverName = Literal["bm25", "dense", "hybrid"]
RETRIEVERS: tuple[RetrieverName, ...] = get_args(RetrieverName)


@dataclass(frozen=True, slots=True)
class Hit:
    """One found chunk. ``row`` is its line in the chunk file from 0; a higher ``score`` is a better match."""

    row: int
    score: float
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Searcher:
    """A retriever with the chunks that its rows stand for."""

    retriever: Retriever
    chunks: Sequence[Chunk]

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """For each query at most ``top_k`` hits, best first; fewer where fewer match, none for an empty query.

        Raises:
            ValueError: ``top_k`` is below 1.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {top_k}")
        return [
            [
                Hit(row, score, self.chunks[row])
                for row, score in zip(ranking.rows_K.tolist(), ranking.scores_K.tolist(), strict=True)
            ]
            for ranking in self.retriever.search(queries, top_k)
        ]


def open_index(index_dir: Path, chunks_path: Path, retriever: str = "bm25") -> Searcher:
    """Open one retriever of an index together with the chunks that it was built from.

    Raises:
        ArtifactError: the index is missing or incomplete, or was built from another chunk file.
        UnknownNameError: there is no such retriever.
    """
    if retriever not in RETRIEVERS:
        raise UnknownNameError("retriever", retriever, RETRIEVERS)
    built = read_manifest(index_dir)
    if not chunks_path.is_file():
        raise ArtifactError(f"{chunks_path} does not exist; it is the chunk file of the index in {index_dir}.")
    if sha256_file(chunks_path) != built.chunks_sha256:
        raise ArtifactError(
            f"the index in {index_dir} was built from other chunks than {chunks_path}, so its rows would name the "
            f"wrong passages; build it again from this file (`dvc repro` does)."
        )
    return Searcher(_open_retriever(index_dir, built, retriever), tuple(read_jsonl(chunks_path, Chunk)))


def _open_retriever(index_dir: Path, built: IndexManifest, name: str) -> Retriever:
    if name == "bm25":
        return Bm25Index.load(index_dir / manifest.BM25_FOLDER)
    dense = _open_dense(index_dir, built)
    if name == "dense":
        return dense
    return HybridRetriever(Bm25Index.load(index_dir / manifest.BM25_FOLDER), dense, built.config.fusion)


def _open_dense(index_dir: Path, built: IndexManifest) -> Retriever:
    encoder = open_encoder(built.config.encoder, index_dir / manifest.ENCODER_FOLDER)
    return DenseRetriever(encoder, load_vectors(index_dir / manifest.VECTORS_FILE))
