"""What an encoder's folder says: pooling, prompts, length.

Sentence-transformers writes these files beside the weights:

    modules.json                       the steps: a transformer, its pooling, perhaps Dense layers or a normalisation
    1_Pooling/config.json              how the vectors of tokens become one
    sentence_bert_config.json          how many tokens are read, and whether text is lower-cased first
    config_sentence_transformers.json  prompts put before queries and passages, and the measure trained for

A folder without them is a plain transformers encoder; the params then say how it pools.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, RootModel

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.core.files import read_record
from deepsearch_rl.core.hardware import usable_cores
from deepsearch_rl.core.records import NonEmpty, OpenRecord, Record
from deepsearch_rl.search.encoders.encoder import Kind, first_line
from deepsearch_rl.search.names import Device

Pooling = Literal["mean", "cls", "lasttoken"]
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
logger = logging.getLogger(__name__)

# Downloaded from a hub repository beside the weights: tokenizers and the files that this module
# reads.
DESCRIPTIONS = ("*.json", "*.txt", "*.model")

# Most tokens of a forward pass where params say nothing. On a core a larger pass is no faster
# (docs/measurements.md); a GPU needs many tokens to be busy.
BATCH_TOKENS = {"cpu": 512, "cuda": 65_536}

# What a forward pass costs beside its tokens, in tokens. A core starts its kernels and reads the
# weights (11 to 35 tokens for MiniLM's shape, docs/measurements.md). On a GPU tokens cost little
# beside a pass: there are as few passes as the budget allows.
PASS_TOKENS = {"cpu": 20, "cuda": 65_536}

# Models that number positions from behind the number of the padding token, so that their tables
# have fewer places for text.
OFFSET_FAMILIES = ("roberta", "mpnet", "camembert")

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


class ModelFolderConfig(Record):
    """What encoders with weights have in common; null leaves a field to the folder."""

    model: NonEmpty = Field(description="a local folder, or a hub repository")
    revision: Annotated[str, AfterValidator(_require_commit)] | None = Field(
        description="commit of the hub repository; null for a folder, no hub is asked"
    )
    pooling: Pooling | None = Field(description="null: as 1_Pooling/config.json says")
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
        ge=1,
        description="forward passes side by side on a CPU, part of what decides the last bits; null: one for each core",
    )
    device: Device

    @property
    def used_threads(self) -> int:
        """Forward passes side by side on this machine's CPU, a thread each."""
        return self.threads or usable_cores()

    @property
    def used_batch_tokens(self) -> int:
        """Most tokens of a forward pass, padding counted."""
        return self.batch_tokens or BATCH_TOKENS[self.device]

    @property
    def pass_tokens(self) -> int:
        """What a forward pass costs beside its tokens, in tokens."""
        return PASS_TOKENS[self.device]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """An encoder's folder joined with the params."""

    root: Path
    # The folder of tokenizer and weights: the root, or ``0_Transformer`` in old ones
    transformer: Path
    # Class names of the steps in modules.json; none for a plain transformers folder
    steps: frozenset[str]
    pooling: str
    # Whether the tokens of the prompt are pooled with those of the text
    pools_prompt: bool
    prefixes: dict[Kind, str]
    lower_case: bool
    # Tokens that are read of a text, [CLS] and [SEP] counted
    max_tokens: int
    pad_id: int


class _Settings(OpenRecord):
    """The fields of a folder's JSON files that are read here; the others are ignored."""

    model_type: str = ""
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None
    max_seq_length: int | None = None
    do_lower_case: bool | None = None
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    # In older files a flag per mode instead, such as ``pooling_mode_cls_token: true``
    pooling_mode: str | tuple[str, ...] | None = None
    include_prompt: bool = True


class _Step(BaseModel):
    type: str
    path: str


class _Steps(RootModel[tuple[_Step, ...]]):
    """``modules.json``."""


def read_model_folder(config: ModelFolderConfig, weights: str) -> ModelFolder:
    """Find the folder, or download the files of a hub that match ``weights``, and join what it says with the params.

    Raises:
        ArtifactError: there is no such folder, or a file of it is malformed.
        ConfigError: neither folder nor params name pooling or length, or they contradict each
            other.
        UnavailableError: the revision is not in the hub's cache and the hub cannot be reached.
    """
    root = _find(config, weights)
    paths = _step_paths(root)
    transformer = paths.get("Transformer", root)
    model = _read(transformer / "config.json")
    settings = _read(transformer / "sentence_bert_config.json")
    prompts = _read(root / "config_sentence_transformers.json")

    if prompts.similarity_fn_name not in (None, "cosine"):
        logger.warning(
            "%s was trained for %s; here it is compared by cosine", root, prompts.similarity_fn_name
        )

    # A plain transformers folder may have the file without naming the step.
    pooling_file = paths.get("Pooling", root / "1_Pooling") / "config.json"
    pooling, pools_prompt = _pooling(config, root, pooling_file)
    max_tokens = _max_tokens(config, root, settings.max_seq_length, model)

    return ModelFolder(
        root=root,
        transformer=transformer,
        steps=frozenset(paths),
        pooling=pooling,
        pools_prompt=pools_prompt,
        prefixes={
            "query": _prefix("query", config.query_prefix, prompts),
            "passage": _prefix("passage", config.passage_prefix, prompts),
        },
        lower_case=bool(settings.do_lower_case),
        max_tokens=max_tokens,
        pad_id=model.pad_token_id or 0,
    )


def _step_paths(root: Path) -> dict[str, Path]:
    """Return the folder of every step of modules.json, by the name of its class without the module."""
    if not (root / "modules.json").is_file():
        return {}

    paths: dict[str, Path] = {}
    for step in read_record(root / "modules.json", _Steps).root:
        _, _, class_name = step.type.rpartition(".")
        paths[class_name] = root / step.path

    return paths


def _prefix(kind: Kind, configured: str | None, prompts: _Settings) -> str:
    """Return what stands before every text of a side: as params say, else as the folder does."""
    if configured is not None:
        return configured

    # An empty prompt is one, too: it keeps the default away from this side.
    for name in (*PROMPT_NAMES[kind], prompts.default_prompt_name or ""):
        prompt = (prompts.prompts or {}).get(name)
        if prompt is not None:
            return prompt

    return ""


def _find(config: ModelFolderConfig, weights: str) -> Path:
    if config.revision is None:
        if not Path(config.model).is_dir():
            raise ArtifactError(
                f"there is no encoder folder {config.model}; where an index was moved without it, correct `model` in "
                "the index's manifest.json. For a repository of a hub give its commit too: --revision, or "
                "index.encoder.revision in params."
            )

        return Path(config.model)

    from huggingface_hub import snapshot_download  # noqa: PLC0415 - hundreds of milliseconds, needed for hubs alone
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        folder = snapshot_download(
            config.model, revision=config.revision, allow_patterns=[*DESCRIPTIONS, weights]
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise UnavailableError(
            f"the encoder {config.model} at {config.revision} is not in the hub's cache and cannot be downloaded: "
            f"{first_line(error)}"
        ) from error

    return Path(folder)


def _read(path: Path) -> _Settings:
    return read_record(path, _Settings) if path.is_file() else _Settings()


def _pooling(config: ModelFolderConfig, root: Path, path: Path) -> tuple[str, bool]:
    """Return the pooling's name (or names joined by "+"), and whether the prompt is pooled too."""
    if not path.is_file():
        if config.pooling is None:
            raise ConfigError(
                f"{root} does not say how it pools tokens (no {path.name} in 1_Pooling): set pooling."
            )

        return config.pooling, True

    file = _read(path)
    modes = file.pooling_mode or _pooling_flags(file)
    pooling = modes if isinstance(modes, str) else "+".join(modes) or "mean"

    # Vectors that are pooled in another way search badly, and no error says so
    if config.pooling not in (None, pooling):
        raise ConfigError(
            f"{path} says that tokens are pooled by {pooling}; the params say {config.pooling}."
        )

    return pooling, file.include_prompt


def _pooling_flags(file: _Settings) -> list[str]:
    """Return the modes of an older file, which has a flag for each of them."""
    modes: list[str] = []
    for name, value in (file.model_extra or {}).items():
        if name.startswith("pooling_mode_") and value is True:
            mode = name.removeprefix("pooling_mode_")
            modes.append(mode.removesuffix("_tokens").removesuffix("_token"))

    return sorted(modes)


def _max_tokens(config: ModelFolderConfig, root: Path, length: int | None, model: _Settings) -> int:
    """Return how many tokens are read: as params say, else the least of what folder and model allow."""
    # None where the model has no table of positions
    positions = model.max_position_embeddings
    if positions is not None and any(family in model.model_type for family in OFFSET_FAMILIES):
        positions -= (model.pad_token_id or 0) + 1

    if positions is not None and (config.max_tokens or 0) > positions:
        raise ConfigError(
            f"max_tokens is {config.max_tokens}, and the encoder in {root} reads {positions} at most."
        )

    limits = [limit for limit in (length, positions) if limit is not None]
    if config.max_tokens is None and not limits:
        raise ConfigError(f"{root} does not say how many tokens it reads: set max_tokens.")
    return config.max_tokens or min(limits)


def require_device(device: str, owner: str, field: str) -> None:
    """Raise UnavailableError where the device is ``cuda`` and torch finds no GPU."""
    import torch  # noqa: PLC0415

    if device == "cuda" and not torch.cuda.is_available():
        raise UnavailableError(
            f"{owner} is to run on a GPU ({field}: cuda), and torch finds none; attach one or set the device to cpu."
        )
