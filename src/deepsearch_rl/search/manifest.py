"""The manifest of an index folder, which is written last: its existence proves that the index is whole."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import read_json, read_record, sha256_json, write_json
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.search import IndexHalf
from deepsearch_rl.search.bm25.builtin import Bm25Config
from deepsearch_rl.search.bm25.lucene import LuceneConfig
from deepsearch_rl.search.encoders.own import OwnEncoderConfig
from deepsearch_rl.search.encoders.remote import RemoteEncoderConfig
from deepsearch_rl.search.encoders.sentence_transformers import SentenceTransformersConfig
from deepsearch_rl.search.encoders.tfidf_svd import TfidfSvdConfig
from deepsearch_rl.search.encoding import EncodingConfig
from deepsearch_rl.search.faiss_index import FaissConfig
from deepsearch_rl.search.flat_index import FlatConfig
from deepsearch_rl.search.ranking import FusionConfig, FusionWeights

FILE = "manifest.json"
SCHEMA_VERSION = 3
ROWS_FOLDER = "rows"
BM25_FOLDER = "bm25"
DENSE_FOLDER = "dense"
ENCODER_FOLDER = "dense/encoder"
TERMS_FOLDER = "terms"
BUILD_IT = (
    "Build it with `deepsearch retrieve build`, or with `dvc repro` if it belongs to the graph."
)


# The engines that params can name
AnyBm25Config = Annotated[Bm25Config | LuceneConfig, Field(discriminator="engine")]
AnyEncoderConfig = Annotated[
    TfidfSvdConfig | SentenceTransformersConfig | RemoteEncoderConfig | OwnEncoderConfig,
    Field(discriminator="name"),
]
VectorsConfig = Annotated[FlatConfig | FaissConfig, Field(discriminator="kind")]


class IndexConfig(Record):
    """What is built over one corpus's chunks."""

    bm25: AnyBm25Config | None = Field(description="null: no lexical index, dense search alone")
    encoder: AnyEncoderConfig | None = Field(
        description="null: no vectors, BM25 alone; encoding and vectors are not read"
    )
    encoding: EncodingConfig
    vectors: VectorsConfig
    fusion: FusionConfig

    @property
    def halves(self) -> tuple[IndexHalf, ...]:
        """The rankings that are built."""
        return (*(("bm25",) if self.bm25 else ()), *(("dense",) if self.encoder else ()))

    @model_validator(mode="after")
    def _has_a_half(self) -> Self:
        if not self.halves:
            raise ValueError(
                "bm25 and encoder are both null, so there is nothing to build; give one of them"
            )

        return self


class IndexManifest(Record):
    """Chunks, configuration and libraries that an index was built from."""

    schema_version: Literal[3] = SCHEMA_VERSION
    # The chunk file, relative to the index folder
    chunks: NonEmpty
    chunks_bytes: int = Field(ge=1)
    chunks_sha256: str
    # Chunks in the index; row N is line N of the chunk file, from 0, blank lines not counted
    rows: int
    config: IndexConfig
    # Of the vectors, which can be lower than configured where the corpus is small; null: none
    dimension: int | None
    metric: Literal["inner_product"] = "inner_product"
    # SHA-256 of the local files that decide the encoder's vectors; null: not known
    encoder_files: dict[str, str] | None = None
    # Learnt from training questions; null where nothing was learnt
    fusion_weights: FusionWeights | None
    seed: int
    # Every other file of the folder
    sizes_bytes: dict[str, int]
    # Of the libraries that wrote the files
    versions: dict[str, str]


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Write the manifest of an index that is otherwise complete."""
    write_json(folder / FILE, manifest.model_dump(mode="json"))


def digest_index(folder: Path) -> str:
    """Return the SHA-256 of all in a manifest that decides which passages are found; raise as :func:`read_manifest`."""
    # Where the chunk file lies, and by which versions the same bytes were written, change nothing
    # that a search returns.
    values = read_manifest(folder).model_dump(mode="json", exclude={"chunks", "versions"})
    return sha256_json(values)


def read_manifest(folder: Path) -> IndexManifest:
    """Return the manifest of an index; raise ArtifactError where there is none, or none of this version."""
    path = folder / FILE
    if not path.is_file():
        raise ArtifactError(
            f"{path} does not exist: there is no index in {folder}, or its build did not end. {BUILD_IT}"
        )

    # Before the record is read: a file of another format has other fields, and the error should
    # name the format instead of one of them.
    values = read_json(path)
    version = values.get("schema_version") if isinstance(values, dict) else None

    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise ArtifactError(
            f"the index in {folder} has format {version}, and this version reads {SCHEMA_VERSION}. "
            f"{BUILD_IT}"
        )

    return read_record(path, IndexManifest)
