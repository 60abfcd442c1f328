"""Building an index folder: BM25 and vectors over the same chunk file, the manifest last, the whole by one rename."""

import os
from importlib.metadata import version
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.errors import ArtifactError, UnknownNameError
from deepsearch_rl.files import atomic_directory, sha256_file
from deepsearch_rl.progress import Meter
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval import manifest
from deepsearch_rl.retrieval.chunk_store import ChunkStore
from deepsearch_rl.retrieval.encoders.choice import EncoderConfig
from deepsearch_rl.retrieval.encoders.encoder import Encoder
from deepsearch_rl.retrieval.encoders.tfidf_svd import TfidfSvdConfig, TfidfSvdEncoder
from deepsearch_rl.retrieval.encoders.transformer import TransformersEncoder
from deepsearch_rl.retrieval.fusion import FusionConfig
from deepsearch_rl.retrieval.manifest import IndexConfig, IndexManifest
from deepsearch_rl.retrieval.quality import QualityConfig
from deepsearch_rl.retrieval.row_table import write_rows
from deepsearch_rl.retrieval.sparse.bm25 import Bm25Config, Bm25Index
from deepsearch_rl.retrieval.vectors.building import VECTORS_FILE, build_vector_index
from deepsearch_rl.retrieval.vectors.config import VectorsConfig

ENCODED_AT_ONCE = 4096
LIBRARIES = ("PyStemmer", "numpy", "scikit-learn")


class IndexSection(Record):
    """Section ``index``: what is built over every corpus's chunks, and how it is measured."""

    bm25: Bm25Config
    encoder: EncoderConfig
    vectors: VectorsConfig
    corpus_vectors: dict[str, VectorsConfig] = Field(description="instead of ``vectors``, for the corpora named here")
    fusion: FusionConfig
    quality: QualityConfig

    def of(self, corpus: str) -> IndexConfig:
        """What is built over one corpus's chunks."""
        vectors = self.corpus_vectors.get(corpus, self.vectors)
        return IndexConfig(bm25=self.bm25, encoder=self.encoder, vectors=vectors, fusion=self.fusion)


def build_indexes(chunks_root: Path, index_root: Path, section: IndexSection, seed: int) -> None:
    """Index every ``<corpus>.jsonl`` of a folder into a folder of the corpus's name.

    Raises:
        ArtifactError: there are no chunk files, or one is empty.
        UnknownNameError: ``corpus_vectors`` names a corpus that has no chunks.
    """
    corpora = {path.stem: path for path in sorted(chunks_root.glob("*.jsonl"))}
    if not corpora:
        raise ArtifactError(f"{chunks_root} holds no chunk files; run the chunk stage first (`dvc repro`).")
    for name in section.corpus_vectors:
        if name not in corpora:
            raise UnknownNameError("corpus", name, corpora)
    for name, path in corpora.items():
        build_index(path, index_root / name, section.of(name), seed)


def build_index(chunks_path: Path, index_dir: Path, config: IndexConfig, seed: int) -> IndexManifest:
    """Index a chunk file into ``index_dir``, replacing what is there, and return the manifest.

    Raises:
        ArtifactError: the chunk file is missing or empty.
        RecordError: a line of it is not a chunk.
    """
    with atomic_directory(index_dir) as folder:
        if not write_rows(chunks_path, folder / manifest.ROWS_FOLDER):
            raise ArtifactError(f"{chunks_path} holds no chunks, so there is nothing to index.")
        chunks = ChunkStore(chunks_path, folder / manifest.ROWS_FOLDER)
        Bm25Index.build(chunks, folder / manifest.BM25_FOLDER, config.bm25)
        texts = [chunk.contents for chunk in chunks]
        dimension = _build_dense(texts, folder, config, seed)
        finished = IndexManifest(
            chunks=os.path.relpath(chunks_path.resolve(), index_dir.resolve()),
            chunks_bytes=chunks_path.stat().st_size,
            chunks_sha256=sha256_file(chunks_path),
            rows=len(texts),
            config=config,
            dimension=dimension,
            fusion_weights=None,
            seed=seed,
            sizes_bytes=_sizes(folder),
            versions={"faiss": faiss.__version__, **{library: version(library) for library in LIBRARIES}},
        )
        manifest.write_manifest(folder, finished)
    return finished


def _build_dense(texts: list[str], folder: Path, config: IndexConfig, seed: int) -> int:
    dense = folder / manifest.DENSE_FOLDER
    dense.mkdir()
    encoder = _prepare_encoder(texts, folder / manifest.ENCODER_FOLDER, config, seed)
    vectors_ND = _encode(encoder, texts)
    np.save(dense / VECTORS_FILE, vectors_ND)
    build_vector_index(dense / VECTORS_FILE, dense, config.vectors, seed)
    return vectors_ND.shape[1]


def _prepare_encoder(texts: list[str], folder: Path, config: IndexConfig, seed: int) -> Encoder:
    if isinstance(config.encoder, TfidfSvdConfig):
        fitted = TfidfSvdEncoder.fit(texts, config.encoder, seed)
        fitted.save(folder)
        return fitted
    return TransformersEncoder(config.encoder)


def _encode(encoder: Encoder, texts: list[str]) -> NDArray[np.float32]:
    starts = range(0, len(texts), ENCODED_AT_ONCE)
    with Meter("encode", len(texts), "chunks") as meter:
        parts = []
        for start in starts:
            parts.append(encoder.encode(texts[start : start + ENCODED_AT_ONCE], "passage"))
            meter.advance(len(parts[-1]))
    return np.concatenate(parts)


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
