"""The encoders that params can name; the code of each is in `engines/encoders/`, in the folder of its name."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from deepsearch_rl.core.own_code import OwnName
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.search.encoders.model_folder import ModelFolderConfig


class TfidfSvdConfig(Record):
    """Latent semantic analysis of the chunks themselves: no weights, no download."""

    name: Literal["tfidf_svd"]
    dimension: int = Field(
        ge=1, description="singular vectors kept; fewer where the corpus has a lower rank"
    )
    fit_rows: int = Field(
        ge=1, description="chunks that are learnt from, drawn by seed; all where there are fewer"
    )
    max_terms: int = Field(
        ge=1, description="the sample's most frequent terms are known, the others are not"
    )


class TransformersConfig(ModelFolderConfig):
    """An encoder with its tokenizer, computed by torch."""

    name: Literal["transformers"]
    dtype: Literal["float32", "float16", "bfloat16"]

    @model_validator(mode="after")
    def _no_emulated_precision(self) -> "TransformersConfig":
        if self.device == "cpu" and self.dtype == "float16":
            raise ValueError(
                "dtype float16 is for device cuda: CPUs emulate it, slower than float32"
            )

        return self


class OnnxConfig(ModelFolderConfig):
    """An exported encoder with its tokenizer, computed by onnxruntime."""

    name: Literal["onnx"]


class RemoteEncoderConfig(Record):
    """An embeddings endpoint."""

    name: Literal["remote"]
    base_url: NonEmpty = Field(
        description="up to and without /embeddings, e.g. https://api.openai.com/v1"
    )
    model: NonEmpty
    api_key_variable: NonEmpty | None = Field(
        description="environment variable with the key; null: no key"
    )
    dimension: int = Field(ge=1, description="of the model's vectors; anything else is an error")
    query_prefix: str
    passage_prefix: str
    max_characters: int | None = Field(
        ge=1, description="longer texts are cut, prefix included; null: never"
    )
    batch_texts: int = Field(ge=1, description="texts of one request")
    concurrency: int = Field(ge=1, description="requests sent at once")
    timeout_s: float = Field(gt=0, description="of one attempt")
    retries: int = Field(ge=0, description="further attempts of one request")
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="of this process, all texts together; null: no limit"
    )
    rate_limit_wait_s: float = Field(
        default=300.0,
        ge=0,
        description="how long a request may wait in all while the server answers 429",
    )


class OwnEncoderConfig(Record):
    """An encoder of the user's own (docs/own_code.md)."""

    name: Literal["own"]
    code: OwnName = Field(description="path/to/file.py:name, called without arguments")


AnyEncoderConfig = (
    TfidfSvdConfig | TransformersConfig | OnnxConfig | RemoteEncoderConfig | OwnEncoderConfig
)
EncoderConfig = Annotated[AnyEncoderConfig, Field(discriminator="name")]
