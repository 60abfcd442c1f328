"""Encoders with weights (e5, bge, MiniLM, Qwen3-Embedding, ...), by sentence-transformers on torch.

Its own ``encode`` puts a fixed number of texts into a batch: few enough for the longest passages are
too few for queries. Here texts of like lengths share a forward pass of a fixed number of tokens, and
on a CPU the passes run side by side (:mod:`.batches`).
"""

import logging
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from deepsearch_rl.core.errors import ArtifactError, UnavailableError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.core.hardware import usable_cores
from deepsearch_rl.core.records import NonEmpty
from deepsearch_rl.search import Device
from deepsearch_rl.search.encoders.batches import ParallelBatches, one_ahead
from deepsearch_rl.search.encoders.encoder import (
    EncoderConfig,
    Kind,
    Unread,
    Vectors,
    encode_readable,
    first_line,
    require_device,
)

_LOG = logging.getLogger(__name__)
_COMMIT = re.compile(r"[0-9a-f]{7,40}")

# Downloaded from a hub: one format of the weights, and what describes them
HUB_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")
# What decides the vectors of a local folder
LOCAL_FILES = (*HUB_FILES, "*.bin")
# A file of a few lines that git leaves where a large one should be
LFS_POINTER = b"version https://git-lfs"

# Of the longest estimate of a text's tokens
LETTERS = string.ascii_letters.encode()
SPECIAL_TOKENS = 4

# Texts that are tokenized at once: their tokens are padded to the longest of them
TOKENIZED_TEXTS = 1024

# transformers flattens lists in Python to make tensors of them: as long as one thread tokenizes, and no other may run
AS_LISTS: dict[str, Any] = {"processing_kwargs": {"common": {"return_tensors": None}}}

# Most tokens of a forward pass where params say nothing. On a core a larger pass is no faster
# (docs/measurements.md); a GPU needs many tokens to be busy.
BATCH_TOKENS = {"cpu": 512, "cuda": 65_536}

# What a forward pass costs beside its tokens, in tokens. A core starts its kernels and reads the
# weights (11 to 35 tokens for MiniLM's shape, docs/measurements.md). On a GPU tokens cost little
# beside a pass: there are as few passes as the budget allows.
PASS_TOKENS = {"cpu": 20, "cuda": 65_536}

# What published folders call the prompt of each side, in small letters, with _ for any sign
PROMPT_NAMES: dict[Kind, tuple[str, ...]] = {
    "query": ("query", "retrieval_query", "search_query", "s2p_query", "web_search_query"),
    "passage": (
        "document",
        "passage",
        "corpus",
        "retrieval_document",
        "retrieval_passage",
        "search_document",
    ),
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

    def files(self) -> dict[str, str]:
        """Return the digests of a local folder's weights and settings; a commit names those of a hub."""
        if self.revision is not None:
            return {}
        folder = Path(self.model)
        return {
            path.relative_to(folder).as_posix(): sha256_file(path) for path in _parts_of(folder)
        }

    def state(self) -> dict[str, object]:
        """Return the digests, and the threads: they decide the last bits."""
        return {**super().state(), "threads": self.used_threads}


class SentenceTransformersEncoder:
    """Sentence vectors of an encoder with weights, with a prefix per side (E5, Wang et al. 2022)."""

    def __init__(self, config: SentenceTransformersConfig) -> None:
        """Load the model and set the process's torch threads to one.

        Raises:
            ArtifactError: there is no such folder, or it holds no encoder that gives the same vectors
                every time: a file is damaged or a Git LFS pointer, weights or the vocabulary are
                missing, or queries and passages have encoders of their own (Router).
            UnavailableError: there is no such device, or the revision is not in the hub's cache and
                the hub cannot be reached.
        """
        import torch  # noqa: PLC0415 - seconds to import, needed by this encoder alone
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - and seconds more
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

        require_device(config.device, f"the encoder {config.model}", "index.encoder.device")
        torch.set_num_threads(1)
        folder = _model_folder(config)
        path = str(folder)
        _require_no_pointers(folder)
        options: dict[str, Any] = {"model_kwargs": {"dtype": getattr(torch, config.dtype)}}

        try:
            if config.pooling is None:
                model = SentenceTransformer(path, device="cpu", local_files_only=True, **options)
            else:
                transformer = Transformer(path, **options)
                pooling = Pooling(transformer.get_embedding_dimension(), config.pooling)
                model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
        except Exception as error:
            # Every library below has errors of its own for damaged files
            raise ArtifactError(
                f"{path} holds no encoder that can be loaded: {first_line(error)}"
            ) from error

        # On the CPU still: a parameter that moves forgets where it came from
        _require_whole(model, path)
        model.to(config.device)
        model.eval()
        if config.max_tokens is not None:
            model.max_seq_length = config.max_tokens

        self._path = path
        self._model = model
        self.dimension = model.get_embedding_dimension() or 0
        self._prefixes = {
            "query": _prefix(model, "query", config.query_prefix),
            "passage": _prefix(model, "passage", config.passage_prefix),
        }
        # A model that is no transformer gives none, and one that packs its texts itself one for all
        mask_BT = model.preprocess(["a", "a b"]).get("attention_mask")
        self._has_masks = mask_BT is not None and len(mask_BT) == 2
        if self._has_masks:
            _require_vocabulary(model, path)
        self._as_lists = AS_LISTS if isinstance(model[0], Transformer) else {}
        self._batch_tokens = config.batch_tokens or BATCH_TOKENS[config.device]
        pass_tokens = PASS_TOKENS[config.device]
        self._batches = ParallelBatches(self._batch_tokens, pass_tokens, config.used_threads)

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return embeddings_ND of N texts, each with its side's prefix; blank texts are zero."""
        return encode_readable(
            texts, self.dimension, lambda readable: self._embed_texts(readable, kind)
        )

    def count_unread(self, passages: Sequence[str]) -> Unread:
        """Return how many tokens of the passages lie behind the encoder's limit.

        Only texts that may not fit are tokenized a second time.
        """
        limit = self._model.max_seq_length
        if not self._has_masks or limit is None:
            return Unread()

        prompt = self._prefixes["passage"]
        texts = [
            text for text in (prompt + text for text in passages) if _most_tokens(text) > limit
        ]
        rows = self._model.tokenizer(texts, verbose=False).input_ids if texts else []
        return Unread.of(map(len, rows), int(limit))

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
            block = [texts[row] for row in rows]
            features = self._model.preprocess(block, prompt=prompt, **self._as_lists)
            return {name: _as_tensor(value) for name, value in features.items()}

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

        try:
            with torch.inference_mode():
                return self._model(inputs)["sentence_embedding"].float().cpu().numpy()
        except (IndexError, RuntimeError) as error:
            longest = features["attention_mask"].shape[1]
            raise ArtifactError(
                f"the encoder {self._path} fails at texts of {longest} tokens: {first_line(error)}. Lower "
                "index.encoder.max_tokens if it reads fewer, and batch_tokens if memory is full; a "
                "tokenizer of another model gives tokens that its weights do not know."
            ) from error


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


def _most_tokens(text: str) -> float:
    """Return at most how many tokens a text has: one for two letters, for any other byte, and the special ones."""
    data = text.encode("utf-8", "replace")
    others = len(data.translate(None, LETTERS))
    return others + (len(data) - others) / 2 + SPECIAL_TOKENS


def _parts_of(folder: Path) -> list[Path]:
    """Return the weights and settings in a folder, hidden folders left out."""
    paths = (path for pattern in LOCAL_FILES for path in folder.rglob(pattern))
    return sorted(
        path
        for path in paths
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _require_no_pointers(folder: Path) -> None:
    for path in _parts_of(folder):
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ArtifactError(
                    f"{path} is a Git LFS pointer in place of the file: run `git lfs pull` in its repository, or "
                    "download the folder again."
                )


def _require_whole(model: Any, path: str) -> None:
    """Raise ArtifactError where weights are random, or a side of the search has an encoder of its own."""
    from sentence_transformers.base.modules import Router  # noqa: PLC0415 - as above
    from transformers import PreTrainedModel  # noqa: PLC0415

    for module in model.modules():
        if isinstance(module, Router):
            raise ArtifactError(
                f"{path} routes queries and passages to encoders of their own (Router), which is not supported: "
                "name a folder with one encoder for both."
            )
        if not isinstance(module, PreTrainedModel):
            continue

        # transformers marks what it loaded. No pooling here reads a pooler, which many folders lack;
        # adapters are loaded by peft
        missing = [
            name
            for name, parameter in module.named_parameters()
            if not getattr(parameter, "_is_hf_initialized", False)
            and "pooler." not in name
            and "lora_" not in name
        ]
        if missing:
            raise ArtifactError(
                f"{path} has no weights for {len(missing)} parameters of its {type(module).__name__} "
                f"({missing[0]}, ...), so that they would be random: the names in its checkpoint do not match "
                "its config.json. Convert or download the folder again."
            )


def _require_vocabulary(model: Any, path: str) -> None:
    # Without its files a tokenizer has special tokens alone
    first_T, second_T = model.preprocess(["a", "z"])["input_ids"]
    if first_T.equal(second_T):
        raise ArtifactError(
            f"{path} has no vocabulary, and all words would be one: its tokenizer's files (tokenizer.json, "
            "vocab.txt, ...) are missing or empty. Download the folder again."
        )


def _prefix(model: Any, kind: Kind, configured: str | None) -> str:
    """Return what stands before every text of a side: as params say, else as the folder does."""
    if configured is not None:
        return configured

    # sentence-transformers adds an empty prompt for a query and a document that have none
    prompts = {
        re.sub(r"\W", "_", name.lower()): prompt for name, prompt in model.prompts.items() if prompt
    }
    for name in PROMPT_NAMES[kind]:
        if name in prompts:
            return prompts[name]

    others = prompts.keys() - PROMPT_NAMES["passage"]
    if kind == "query" and others:
        _LOG.warning(
            "queries get no prompt: none of the encoder's (%s) is known as one of queries; name the text in "
            "index.encoder.query_prefix",
            ", ".join(sorted(others)),
        )
    return ""


def _as_tensor(value: Any) -> Any:
    import torch  # noqa: PLC0415

    return torch.from_numpy(np.asarray(value)) if isinstance(value, list) else value


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
