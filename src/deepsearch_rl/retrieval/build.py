"""Building an index folder: BM25 and vectors over the same chunk file, the manifest last, the whole by one rename."""

from importlib.metadata import version
from pathlib import Path

import faiss

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import atomic_directory, read_jsonl, sha256_file
from deepsearch_rl.progress import track
from deepsearch_rl.records import Chunk
from deepsearch_rl.retrieval import manifest
from deepsearch_rl.retrieval.bm25 import Bm25Index
from deepsearch_rl.retrieval.dense import build_vectors
from deepsearch_rl.retrieval.encoders import Encoder, TfidfSvdConfig, TfidfSvdEncoder, TransformersEncoder
from deepsearch_rl.retrieval.manifest import IndexConfig, IndexManifest

LIBRARIES = ("bm25s", "faiss-cpu", "PyStemmer", "numpy", "scikit-learn")


def build_indexes(chunks_root: Path, index_root: Path, config: IndexConfig, seed: int) -> None:
    """Index every ``<corpus>.jsonl`` of a folder into a folder of the corpus's name.

    Raises:
        ArtifactError: there are no chunk files, or one is empty.
    """
    corpora = sorted(chunks_root.glob("*.jsonl"))
    if not corpora:
        raise ArtifactError(f"{chunks_root} holds no chunk files; run the chunk stage first (`dvc repro`).")
    for path in track(corpora, "index", len(corpora), "corpora"):
        build_index(path, index_root / path.stem, config, seed)


def build_index(chunks_path: Path, index_dir: Path, config: IndexConfig, seed: int) -> IndexManifest:
    """Index a chunk file into ``index_dir``, replacing what is there, and return the manifest.

    Raises:
        ArtifactError: the chunk file is missing or empty.
        RecordError: a line of it is not a chunk.
    """
    texts = [chunk.contents for chunk in read_jsonl(chunks_path, Chunk)]
    if not texts:
        raise ArtifactError(f"{chunks_path} holds no chunks, so there is nothing to index.")
    with atomic_directory(index_dir) as folder:
        Bm25Index.build(texts, config.bm25).save(folder / manifest.BM25_FOLDER)
        dimension = _build_dense(texts, folder, config, seed)
        finished = IndexManifest(
            chunks_sha256=sha256_file(chunks_path),
            rows=len(texts),
            config=config,
            dimension=dimension,
            seed=seed,
            sizes_bytes=_sizes(folder),
            versions={library: version(library) for library in LIBRARIES},
        )
        manifest.write_manifest(folder, finished)
    return finished


def _build_dense(texts: list[str], folder: Path, config: IndexConfig, seed: int) -> int:
    (folder / manifest.VECTORS_FILE).parent.mkdir()
    encoder = _prepare_encoder(texts, folder / manifest.ENCODER_FOLDER, config, seed)
    vectors = build_vectors(encoder.encode(texts, "passage"), config.vectors, seed)
    faiss.write_index(vectors, str(folder / manifest.VECTORS_FILE))
    return vectors.d


def _prepare_encoder(texts: list[str], folder: Path, config: IndexConfig, seed: int) -> Encoder:
    if isinstance(config.encoder, TfidfSvdConfig):
        fitted = TfidfSvdEncoder.fit(texts, config.encoder, seed)
        fitted.save(folder)
        return fitted
    return TransformersEncoder(config.encoder)


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
