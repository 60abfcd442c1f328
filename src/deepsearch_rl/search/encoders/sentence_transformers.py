"""Encoders with weights (e5, bge, MiniLM, Qwen3-Embedding, ...), by sentence-transformers on torch.

Its own ``encode`` puts a fixed number of texts into a batch: few enough for the longest passages are
too few for queries. Here texts of like lengths share a forward pass of a fixed number of tokens, and
on a CPU the passes run side by side (:mod:`.batches`).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from deepsearch_rl.core.errors import ArtifactError, UnavailableError
from deepsearch_rl.core.files import file_digests, sha256_json
from deepsearch_rl.core.hardware import usable_cores
from deepsearch_rl.core.records import NonEmpty
from deepsearch_rl.search import Device
from deepsearch_rl.search.encoders.batches import ParallelBatches, one_ahead
from deepsearch_rl.search.encoders.encoder import (
    EncoderConfig,
    Kind,
    Vectors,
    encode_readable,
    first_line,
    require_device,
)

_COMMIT = re.compile(r"[0-9a-f]{7,40}")

# Downloaded from a hub: one format of the weights, and what describes them
HUB_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")

# Texts that are tokenized at once: their tokens are padded to the longest of them
TOKENIZED_TEXTS = 1024

# Most tokens of a forward pass where params say nothing. On a core a larger pass is no faster
# (docs/measurements.md); a GPU needs many tokens to be busy.
BATCH_TOKENS = {"cpu": 512, "cuda": 65_536}

# What a forward pass costs beside its tokens, in tokens. A core starts its kernels and reads the
# weights (11 to 35 tokens for MiniLM's shape, docs/measurements.md). On a GPU tokens cost little
# beside a pass: there are as few passes as the budget allows.
PASS_TOKENS = {"cpu": 20, "cuda": 65_536}

# What published folders call the prompt of each side
PROMPT_NAMES: dict[Kind, tuple[str, ...]] = {
    "query": ("query",),
    "passage": ("document", "passage", "corpus"),
}


def _require_commit(revision: str) -> str:
    if not _COMMIT.fullmatch(revision):
        raise ValueError(
            f"{revision} is no commit (7 to 40 hex digits). A branch or a tag can move, and queries would then be "
            "encoded by other weights than the passages were"
        )

    return revision


class SentenceTransformersConfig(EncoderConfig):
    """A sentence-transformers or transformers folder; null leaves a field to the folder."""

    name: Literal["sentence_transformers"]
    model: NonEmpty = Field(description="a local folder, or a hub repository")
    revision: Annotated[str, AfterValidator(_require_commit)] | None = Field(
        description="commit of the hub repository; null: model is a folder"
    )
    pooling: Literal["mean", "cls", "lasttoken"] | None = Field(
        description="in place of the folder's modules; null: as modules.json says, else mean"
    )
    query_prefix: str | None = Field(
        description="before every query; 'query: ' for e5; null: the folder's prompt"
    )
    passage_prefix: str | None = Field(
        description="before every passage; 'passage: ' for e5; null: the folder's prompt"
    )
    max_tokens: int | None = Field(
        ge=3, description="longer texts are cut; null: the folder's max_seq_length"
    )
    batch_tokens: int | None = Field(
        ge=1,
        description="most tokens of a forward pass, padding counted; null: as suits the device",
    )
    threads: int | None = Field(
        ge=1, description="forward passes side by side on a CPU; null: one for each core"
    )
    device: Device
    dtype: Literal["float32", "float16", "bfloat16"]

    @model_validator(mode="after")
    def _no_emulated_precision(self) -> "SentenceTransformersConfig":
        if self.device == "cpu" and self.dtype == "float16":
            raise ValueError(
                "dtype float16 is for device cuda: CPUs emulate it, slower than float32"
            )

        return self

    @property
    def used_threads(self) -> int:
        """Forward passes side by side on this machine."""
        return 1 if self.device == "cuda" else self.threads or usable_cores()

    def open(self, folder: Path) -> "SentenceTransformersEncoder":  # noqa: ARG002 - nothing is learnt
        """See :class:`SentenceTransformersEncoder`."""
        return SentenceTransformersEncoder(self)

    def state(self) -> dict[str, object]:
        """Return the digest of a local folder's weights, and the threads: they decide the last bits."""
        weights = None
        if self.revision is None:
            weights = sha256_json(file_digests(Path(self.model)))
        return {"weights": weights, "threads": self.used_threads}


class SentenceTransformersEncoder:
    """Sentence vectors of an encoder with weights, with a prefix per side (E5, Wang et al. 2022)."""

    def __init__(self, config: SentenceTransformersConfig) -> None:
        """Load the model and set the process's torch threads to one.

        Raises:
            ArtifactError: there is no such folder, or it holds no encoder.
            UnavailableError: there is no such device, or the revision is not in the hub's cache and
                the hub cannot be reached.
        """
        import torch  # noqa: PLC0415 - seconds to import, needed by this encoder alone
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - and seconds more
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

        require_device(config.device, f"the encoder {config.model}", "index.encoder.device")
        torch.set_num_threads(1)
        path = str(_model_folder(config))
        options: dict[str, Any] = {"model_kwargs": {"dtype": getattr(torch, config.dtype)}}

        try:
            if config.pooling is None:
                model = SentenceTransformer(
                    path, device=config.device, local_files_only=True, **options
                )
            else:
                transformer = Transformer(path, **options)
                pooling = Pooling(transformer.get_embedding_dimension(), config.pooling)
                model = SentenceTransformer(modules=[transformer, pooling], device=config.device)
        except (OSError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"{path} holds no encoder that can be loaded: {first_line(error)}"
            ) from error

        model.eval()
        if config.max_tokens is not None:
            model.max_seq_length = config.max_tokens

        self._model = model
        self.dimension = model.get_embedding_dimension() or 0
        self._prefixes = {
            "query": _prefix(model, "query", config.query_prefix),
            "passage": _prefix(model, "passage", config.passage_prefix),
        }
        # A model that is no transformer gives none, and one that packs its texts itself one for all
        mask_BT = model.preprocess(["a", "a b"]).get("attention_mask")
        self._has_masks = mask_BT is not None and len(mask_BT) == 2
        self._batch_tokens = config.batch_tokens or BATCH_TOKENS[config.device]
        pass_tokens = PASS_TOKENS[config.device]
        self._batches = ParallelBatches(self._batch_tokens, pass_tokens, config.used_threads)

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return embeddings_ND of N texts, each with its side's prefix; blank texts are zero."""
        return encode_readable(
            texts, self.dimension, lambda readable: self._embed_texts(readable, kind)
        )

    def _embed_texts(self, texts: list[str], kind: Kind) -> Vectors:
        """Embed the longest texts first, so that those that are tokenized together have like lengths.

        While some are embedded the next ones are tokenized: a GPU would wait for its tokens.
        """
        prompt = self._prefixes[kind]
        if not self._has_masks:
            return self._model.encode(texts, prompt=prompt, show_progress_bar=False)

        embeddings_ND = np.empty((len(texts), self.dimension), dtype=np.float32)
        order_N = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        blocks = [
            order_N[at : at + TOKENIZED_TEXTS] for at in range(0, len(texts), TOKENIZED_TEXTS)
        ]

        def tokenize(rows: list[int]) -> dict[str, Any]:
            return self._model.preprocess([texts[row] for row in rows], prompt=prompt)

        for rows, features in zip(blocks, one_ahead(tokenize, blocks), strict=True):
            embeddings_ND[rows] = self._embed_tokens(features)

        return embeddings_ND

    def _embed_tokens(self, features: dict[str, Any]) -> Vectors:
        lengths_B = features["attention_mask"].sum(dim=1).tolist()
        return self._batches.embed(
            lengths_B, self.dimension, lambda batch: self._forward(_part(features, batch))
        )

    def _forward(self, features: dict[str, Any]) -> Vectors:
        import torch  # noqa: PLC0415

        inputs: dict[str, Any] = {}
        for name, value in features.items():
            is_tensor = isinstance(value, torch.Tensor)
            inputs[name] = value.to(self._model.device) if is_tensor else value

        with torch.inference_mode():
            return self._model(inputs)["sentence_embedding"].float().cpu().numpy()


def _model_folder(config: SentenceTransformersConfig) -> Path:
    """Return the local folder, or the hub's files in its cache."""
    if config.revision is None:
        if not Path(config.model).is_dir():
            raise ArtifactError(
                f"there is no encoder folder {config.model}; where an index was moved without it, correct `model` in "
                "the index's manifest.json. For a repository of a hub give its commit too, in index.encoder.revision."
            )

        return Path(config.model)

    from huggingface_hub import snapshot_download  # noqa: PLC0415 - hundreds of milliseconds, needed for hubs alone
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(
            snapshot_download(config.model, revision=config.revision, allow_patterns=[*HUB_FILES])
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise UnavailableError(
            f"the encoder {config.model} at {config.revision} is not in the hub's cache and cannot be downloaded: "
            f"{first_line(error)}"
        ) from error


def _prefix(model: Any, kind: Kind, configured: str | None) -> str:
    """Return what stands before every text of a side: as params say, else as the folder does."""
    if configured is not None:
        return configured

    # An empty prompt is one, too: it keeps the default away from this side.
    for name in (*PROMPT_NAMES[kind], model.default_prompt_name):
        if name in model.prompts:
            return model.prompts[name]

    return ""


def _part(features: dict[str, Any], batch: list[int]) -> dict[str, Any]:
    """Return the features of some rows, without the columns that are padding in all of them."""
    # Padding is on the right, and on the left for some decoders
    mask_NT = features["attention_mask"]
    columns_T = mask_NT[batch].any(dim=0).nonzero()
    columns = slice(int(columns_T[0]), int(columns_T[-1]) + 1)
    part: dict[str, Any] = {}
    for name, value in features.items():
        is_of_tokens = getattr(value, "shape", None) == mask_NT.shape
        part[name] = value[batch][:, columns] if is_of_tokens else value

    return part
