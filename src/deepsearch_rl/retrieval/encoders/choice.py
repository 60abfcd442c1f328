"""Which encoder an index is built and searched with."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from deepsearch_rl.retrieval.encoders.encoder import Encoder
from deepsearch_rl.retrieval.encoders.tfidf_svd import TfidfSvdConfig, TfidfSvdEncoder
from deepsearch_rl.retrieval.encoders.transformer import TransformersConfig, TransformersEncoder

EncoderConfig = Annotated[TfidfSvdConfig | TransformersConfig, Field(discriminator="name")]


def open_encoder(config: TfidfSvdConfig | TransformersConfig, folder: Path) -> Encoder:
    """The encoder of an index; ``folder`` holds what it learnt from the chunks, if it learns."""
    if isinstance(config, TfidfSvdConfig):
        return TfidfSvdEncoder.load(folder)
    return TransformersEncoder(config)
