"""The encoders that params can name, and the job that one of them does for an index."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from deepsearch_rl.records import Chunk, Record
from deepsearch_rl.retrieval.encoders.encoder import Encoder
from deepsearch_rl.retrieval.encoders.onnx_export import OnnxConfig, OnnxEncoder
from deepsearch_rl.retrieval.encoders.remote import RemoteConfig, RemoteEncoder
from deepsearch_rl.retrieval.encoders.tfidf_svd import TfidfSvdConfig, TfidfSvdEncoder, sample_texts
from deepsearch_rl.retrieval.encoders.transformer import TransformersConfig, TransformersEncoder

AnyEncoderConfig = TfidfSvdConfig | TransformersConfig | OnnxConfig | RemoteConfig
EncoderConfig = Annotated[AnyEncoderConfig, Field(discriminator="name")]


def prepare_encoder(chunks: Sequence[Chunk], config: AnyEncoderConfig, folder: Path, seed: int) -> None:
    """Write what the encoder learns from a bounded sample of the chunks to ``folder``; nothing where it has weights."""
    if isinstance(config, TfidfSvdConfig):
        TfidfSvdEncoder.fit(sample_texts(chunks, config.fit_rows, seed), config, seed).save(folder)
    else:
        folder.mkdir(parents=True)


def open_encoder(config: AnyEncoderConfig, folder: Path) -> Encoder:
    """Open the encoder of an index; ``folder`` is what :func:`prepare_encoder` made."""
    match config:
        case TfidfSvdConfig():
            return TfidfSvdEncoder.load(folder)
        case TransformersConfig():
            return TransformersEncoder(config)
        case OnnxConfig():
            return OnnxEncoder(config)
        case RemoteConfig():
            return RemoteEncoder(config)


class RayConfig(Record):
    """The workers of engine ``ray``."""

    address: str | None = Field(description="`host:port` of a running cluster, or `auto`; null: Ray is started here")
    workers: int = Field(ge=1, description="actors, each with an encoder of its own")
    cpus_per_worker: float = Field(gt=0)
    gpus_per_worker: float = Field(ge=0)
    object_store_mb: int = Field(ge=80, description="shared memory of a Ray that is started here")


class EncodingConfig(Record):
    """How chunks become vectors on disk; their readers depend on ``dtype`` alone."""

    engine: Literal["local", "ray"]
    dtype: Literal["float32", "float16"] = Field(description="of the vectors on disk; float16 halves them")
    block_rows: int = Field(ge=1, description="chunks sorted by length, encoded and recorded together")
    ray: RayConfig | None = Field(description="for engine ray; null for local")

    @model_validator(mode="after")
    def _ray_is_described(self) -> "EncodingConfig":
        if (self.engine == "ray") != (self.ray is not None):
            raise ValueError("engine ray and the fields under ray go together; engine local wants ray: null")
        return self


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """Chunks to encode; ``folder`` is what :func:`prepare_encoder` made. Can be sent to another process."""

    encoder: AnyEncoderConfig
    folder: Path
    chunks: Sequence[Chunk]
    config: EncodingConfig

    def rows(self, block: int) -> range:
        """Return the rows of a block; the last block may be smaller."""
        start = block * self.config.block_rows
        return range(start, min(start + self.config.block_rows, len(self.chunks)))

    def encode(self, encoder: Encoder, block: int) -> NDArray[np.float32]:
        """Return the vectors_BD of a block by one call, so that every engine gives the same bytes."""
        return encoder.encode([self.chunks[row].contents for row in self.rows(block)], "passage")
