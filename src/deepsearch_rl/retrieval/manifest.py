"""What an index folder says about itself. Written last, so that its existence proves that the index is whole."""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import read_json, write_json
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.encoders.choice import EncoderConfig
from deepsearch_rl.retrieval.fusion import FusionConfig
from deepsearch_rl.retrieval.sparse.bm25 import Bm25Config
from deepsearch_rl.retrieval.vectors.dense import VectorsConfig

FILE = "manifest.json"
BM25_FOLDER = "bm25"
VECTORS_FILE = "dense/vectors.faiss"
ENCODER_FOLDER = "dense/encoder"


class IndexConfig(Record):
    """What is built over one corpus's chunks."""

    bm25: Bm25Config
    encoder: EncoderConfig
    vectors: VectorsConfig
    fusion: FusionConfig


class IndexManifest(Record):
    """From which chunks, how and with what an index was built."""

    schema_version: Literal[1] = 1
    chunks_sha256: str
    rows: int
    """Chunks in the index; row N is line N of the chunk file, from 0."""
    config: IndexConfig
    dimension: int
    """Of the vectors, which can be lower than configured where the corpus is small."""
    metric: Literal["inner_product"] = "inner_product"
    seed: int
    sizes_bytes: dict[str, int]
    """Every other file of the folder."""
    versions: dict[str, str]
    """Of the libraries that wrote the files."""


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Write the manifest of an index that is otherwise complete."""
    write_json(folder / FILE, manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> IndexManifest:
    """The manifest of an index.

    Raises:
        ArtifactError: there is none (the index is missing or was not finished), or it is not one of ours.
    """
    try:
        return IndexManifest.model_validate(read_json(folder / FILE))
    except ValidationError as error:
        raise ArtifactError(f"{folder / FILE} is not an index manifest: {error.errors()[0]['msg']}.") from error
