"""Build an index folder from a chunk file.

Every part streams the file or reads a bounded sample of it, so that memory does not grow with the
corpus. Encoding, which takes hours, keeps its progress in a work folder and continues there after a
kill; the rest is done again.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Self

import faiss
from pydantic import Field, model_validator

from deepsearch_rl.core.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.core.files import atomic_directory, only_writer, sha256_file
from deepsearch_rl.core.hardware import Threads
from deepsearch_rl.core.records import Question
from deepsearch_rl.search import IndexHalf, manifest
from deepsearch_rl.search.encoding import EncodingJob, encode_to_file, remove_work
from deepsearch_rl.search.flat_index import VECTORS_FILE, open_vector_file
from deepsearch_rl.search.gold import warn_of_missing
from deepsearch_rl.search.importing import imported_config, write_imported
from deepsearch_rl.search.learning import learn_fusion
from deepsearch_rl.search.manifest import IndexConfig, IndexManifest, VectorsConfig
from deepsearch_rl.search.quality import QualityConfig
from deepsearch_rl.search.ranking import FusionWeights
from deepsearch_rl.search.rows import ChunkStore, write_rows
from deepsearch_rl.search.searcher import open_finder
from deepsearch_rl.search.sentence_terms import write_sentence_terms

# Files that an error names
NAMED = 3
LIBRARIES = ("PyStemmer", "numpy", "scikit-learn")


class IndexSection(IndexConfig):
    """Section ``index``: indexes over every corpus's chunks, and how they are measured."""

    # Instead of ``vectors``, for the corpora named here: 21 million passages are searched
    # otherwise than a few thousand.
    corpus_vectors: dict[str, VectorsConfig]
    corpus_only: dict[str, IndexHalf] = Field(
        default_factory=dict, description="corpora of which one half alone is built"
    )
    imported: dict[str, Path] = Field(
        default_factory=dict,
        description="prebuilt indexes by corpus: a .npy or FAISS file, a folder of Lucene's",
    )
    quality: QualityConfig
    threads: Threads = Field(description="of this and of every stage without such a field")

    @model_validator(mode="after")
    def _halves_are_described(self) -> Self:
        for corpus, half in self.corpus_only.items():
            if half not in self.halves:
                raise ValueError(
                    f"corpus_only.{corpus} is {half}, and {'encoder' if half == 'dense' else half} is null"
                )

        return self

    def of(self, corpus: str) -> IndexConfig:
        """Return the configuration of one corpus's index."""
        # Without what is of other corpora: an index's digest must not change with them
        fields = {name: getattr(self, name) for name in IndexConfig.model_fields}
        fields["vectors"] = self.corpus_vectors.get(corpus, self.vectors)

        match self.corpus_only.get(corpus):
            case "bm25":
                fields["encoder"] = None
            case "dense":
                fields["bm25"] = None
            case None:
                pass

        return IndexConfig(**fields)


def build_indexes(
    chunks_root: Path,
    index_root: Path,
    section: IndexSection,
    seed: int,
    work: Path,
    questions: Mapping[str, Sequence[Question]],
) -> None:
    """Index every ``<corpus>.jsonl`` of a folder into a folder of that name; ``questions`` are by corpus.

    Raises:
        ArtifactError: there are no chunk files, or one is empty.
        UnknownNameError: ``corpus_vectors`` or ``corpus_only`` names a corpus that has no chunks.
    """
    corpora = {path.stem: path for path in sorted(chunks_root.glob("*.jsonl"))}
    if not corpora:
        raise ArtifactError(
            f"{chunks_root} holds no chunk files; run the chunk stage first (`dvc repro`)."
        )

    for name in (*section.corpus_vectors, *section.corpus_only, *section.imported):
        look_up("corpus", name, corpora)
    for name, path in corpora.items():
        known = questions.get(name, ())
        config = section.of(name)
        source = section.imported.get(name)
        if source is not None:
            config = imported_config(source, config)
        build_index(path, index_root / name, config, seed, work / name, known, source)


def build_index(
    chunks_path: Path,
    index_dir: Path,
    config: IndexConfig,
    seed: int,
    work: Path | None = None,
    questions: Sequence[Question] = (),
    imported: Path | None = None,
) -> IndexManifest:
    """Index a chunk file, or a corpus in FlashRAG's layout, into ``index_dir``, replacing an index there.

    Searching will read the passages from ``chunks_path``. ``index_dir`` appears, or changes, in one
    moment at the end. ``work``, by default a hidden folder beside it, keeps the progress of
    encoding until then. The hybrid learns from those of ``questions`` that have gold evidence;
    ``seed`` is for random samples. ``imported`` is a prebuilt index, which becomes this one's; then
    ``config`` is that of :func:`~deepsearch_rl.search.importing.imported_config`.

    Raises:
        ArtifactError: the chunk file is missing, empty, or changed meanwhile; or the disk is full.
        RecordError: a line of it is neither a chunk nor a FlashRAG document.
        ConfigError: another process builds this folder, or works in ``work``; ``index_dir`` holds
            files that no build wrote; or a parameter does not fit the corpus.
    """
    index_dir = index_dir.resolve()
    work = (work or index_dir.with_name(f".{index_dir.name}.work")).resolve()
    _require_replaceable(index_dir, chunks_path, work)

    with only_writer(index_dir), only_writer(work):
        with atomic_directory(index_dir) as folder:
            built = _write_parts(folder, chunks_path, config, seed, work, questions, imported)

            # Relative, so that a folder with chunks and index can be moved as one.
            relative_path = os.path.relpath(chunks_path.resolve(), index_dir)
            built = built.model_copy(update={"chunks": relative_path})
            manifest.write_manifest(folder, built)

        remove_work(work)

    return built


def _require_replaceable(index_dir: Path, chunks_path: Path, work: Path) -> None:
    """Raise ConfigError where replacing ``index_dir`` would cost chunks, work or somebody's files."""
    if chunks_path.resolve().is_relative_to(index_dir):
        raise ConfigError(
            f"{chunks_path} lies in {index_dir}, which the index would replace; name another folder."
        )

    # The folder is removed as a whole, so a mistyped path must not cost the files of somebody.
    is_index = (index_dir / manifest.FILE).is_file() and (index_dir / manifest.ROWS_FOLDER).is_dir()
    is_empty = not index_dir.exists() or (index_dir.is_dir() and not any(index_dir.iterdir()))

    if not is_index and not is_empty:
        raise ConfigError(
            f"{index_dir} is neither an index nor an empty folder, so it is not replaced; name another folder, or "
            f"remove this one."
        )

    if others := _files_of_others(index_dir):
        raise ConfigError(
            f"{index_dir} holds files that no build wrote ({', '.join(others[:NAMED])}), and is replaced as a "
            "whole; move them, or name another folder."
        )

    if work.is_relative_to(index_dir) or work.is_file():
        raise ConfigError(
            f"the work folder {work} is a file, or lies in the index folder, which is replaced."
        )


def _files_of_others(index_dir: Path) -> list[str]:
    """Return the files in an index's folder that its manifest does not name; hidden ones are left out."""
    try:
        built = manifest.read_manifest(index_dir)
    except ArtifactError:
        # No index yet, or one of an earlier format, whose files are not known
        return []

    known = {manifest.FILE, *built.sizes_bytes}
    others: list[str] = []
    for path in sorted(index_dir.rglob("*")):
        name = path.relative_to(index_dir).as_posix()
        if name not in known and path.is_file() and not path.name.startswith("."):
            others.append(name)

    return others


def _write_vectors(
    folder: Path, chunks: ChunkStore, config: IndexConfig, chunks_sha256: str, seed: int, work: Path
) -> int | None:
    """Write the vectors' part of an index and return their dimension; None where the index has no such part."""
    if config.encoder is None:
        return None

    encoder = folder / manifest.ENCODER_FOLDER
    vectors = folder / manifest.DENSE_FOLDER / VECTORS_FILE
    config.encoder.prepare(chunks, encoder, seed)
    job = EncodingJob(config.encoder, encoder, chunks, config.encoding)
    encode_to_file(job, chunks_sha256, vectors, work)

    # Building may remove the file, so what it holds is read first.
    dimension = open_vector_file(vectors).dimension
    config.vectors.build(vectors, vectors.parent, seed)
    return dimension


def _write_parts(
    folder: Path,
    chunks_path: Path,
    config: IndexConfig,
    seed: int,
    work: Path,
    questions: Sequence[Question],
    imported: Path | None,
) -> IndexManifest:
    """Write every file but the manifest, and return that, with the chunk file's path as it is given here."""
    if not chunks_path.is_file():
        problem = "is a folder; name one file in it" if chunks_path.is_dir() else "does not exist"
        raise ArtifactError(f"{chunks_path} {problem}; it should hold the passages to index.")

    encoder_files = {} if config.encoder is None else config.encoder.files()
    before = chunks_path.stat()
    sha256 = sha256_file(chunks_path)
    if not write_rows(chunks_path, folder / manifest.ROWS_FOLDER):
        raise ArtifactError(f"{chunks_path} holds no chunks, so there is nothing to index.")
    chunks = ChunkStore(chunks_path, folder / manifest.ROWS_FOLDER)

    if imported is not None:
        dimension = write_imported(imported, folder, chunks, config)
    else:
        if config.bm25 is not None:
            config.bm25.build(chunks, folder / manifest.BM25_FOLDER)
        dimension = _write_vectors(folder, chunks, config, sha256, seed, work)

    weights = _learn_weights(folder, chunks, config, seed, questions)

    # The offsets of rows would point into the middle of other lines.
    after = chunks_path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ArtifactError(
            f"{chunks_path} was changed while it was being indexed; run this again."
        )

    sizes_bytes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sizes_bytes[str(path.relative_to(folder))] = path.stat().st_size

    return IndexManifest(
        chunks=str(chunks_path),
        chunks_bytes=before.st_size,
        chunks_sha256=sha256,
        rows=len(chunks),
        config=config,
        dimension=dimension,
        encoder_files=encoder_files,
        fusion_weights=weights,
        seed=seed,
        sizes_bytes=sizes_bytes,
        versions={
            "faiss": faiss.__version__,
            **{library: version(library) for library in LIBRARIES},
        },
    )


def _learn_weights(
    folder: Path,
    chunks: ChunkStore,
    config: IndexConfig,
    seed: int,
    questions: Sequence[Question],
) -> FusionWeights | None:
    """Return the learnt weights of the hybrid; None where there is nothing to learn or to learn from."""
    learning = config.fusion.learning
    if learning is None or not questions or len(config.halves) < 2:
        return None

    warn_of_missing(chunks, questions, "the questions to learn from")

    terms = folder / manifest.TERMS_FOLDER
    write_sentence_terms(chunks, terms)
    finder = open_finder(folder, config, terms)
    weights = learn_fusion(finder, chunks, questions, learning, seed)

    # Only the learnt ranking reads the sentence terms.
    if weights is None or weights.ranking != "learned":
        shutil.rmtree(terms)
    return weights
