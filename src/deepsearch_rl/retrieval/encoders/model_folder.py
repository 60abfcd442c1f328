"""What a folder of an encoder says about itself: the files that sentence-transformers writes beside the weights.

    modules.json                       the pipeline: a transformer, its pooling, perhaps a normalisation
    1_Pooling/config.json              how token vectors become one: the mean of all, or the first ([CLS])
    sentence_bert_config.json          how many tokens are read, and whether text is lower-cased first
    config_sentence_transformers.json  prompts put before queries and passages, and the measure trained for

A folder without them is a plain transformers encoder, and the params must say what they would have said.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel

from deepsearch_rl.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.files import read_record
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.retrieval.encoders.encoder import Kind

Pooling = Literal["mean", "cls"]
logger = logging.getLogger(__name__)

DESCRIPTIONS = ("*.json", "*.txt", "*.model")
"""What is taken from a hub repository beside the weights: tokenizers and what this module reads."""


class ModelFolderConfig(Record):
    """What encoders with weights have in common; null leaves a field to what the folder says."""

    model: NonEmpty = Field(description="a local folder, or a hub repository")
    revision: NonEmpty | None = Field(description="commit of the hub repository; null for a folder, no hub is asked")
    pooling: Pooling | None = Field(description="null: as 1_Pooling/config.json says")
    query_prefix: str | None = Field(description="before every query; 'query: ' for e5; null: the folder's prompt")
    passage_prefix: str | None = Field(
        description="before every passage; 'passage: ' for e5; null: the folder's prompt"
    )
    max_tokens: int | None = Field(ge=3, description="longer texts are cut; null: the folder's max_seq_length")
    batch_tokens: int = Field(ge=1, description="tokens of a forward pass, padding counted")
    threads: int = Field(ge=1, description="CPU threads of a forward pass; part of what decides the last bits")
    device: Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder of an encoder, read."""

    root: Path
    transformer: Path
    """The folder of tokenizer and weights: the root, or ``0_Transformer`` in old ones."""
    pooling: Pooling
    prefixes: dict[Kind, str]
    lower_case: bool
    max_tokens: int
    """Tokens that are read of a text, [CLS] and [SEP] counted."""
    pad_id: int

    def prompted(self, texts: list[str], kind: Kind) -> list[str]:
        """The texts as the model reads them, each behind its side's prefix."""
        prefix = self.prefixes[kind]
        return [(prefix + text).lower() if self.lower_case else prefix + text for text in texts]


class _File(BaseModel):
    """A file of another project: what is not named here is let be."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Module(_File):
    type: str
    path: str


class _Modules(RootModel[tuple[_Module, ...]]):
    model_config = ConfigDict(frozen=True)


class _PoolingFile(_File):
    pooling_mode: str | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = True
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    include_prompt: bool = True

    @property
    def modes(self) -> set[str]:
        """Names of the poolings whose results are joined; one of them in every published encoder."""
        if self.pooling_mode is not None:
            return {self.pooling_mode}
        flags = self.model_dump(exclude={"pooling_mode", "include_prompt"})
        return {
            flag.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
            for flag, chosen in flags.items()
            if chosen
        }


class _TransformerFile(_File):
    max_seq_length: int | None = None
    do_lower_case: bool = False


class _ModelFile(_File):
    model_type: str = ""
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None

    @property
    def positions(self) -> int | None:
        """Tokens that the model can tell apart by position; None where positions are not counted in a table."""
        counted_behind_padding = any(family in self.model_type for family in ("roberta", "mpnet", "camembert"))
        if self.max_position_embeddings is None or not counted_behind_padding:
            return self.max_position_embeddings
        return self.max_position_embeddings - (self.pad_token_id or 0) - 1


class _PromptsFile(_File):
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None


FileT = TypeVar("FileT", bound=_File)


def read_model_folder(config: ModelFolderConfig, weights: str) -> ModelFolder:
    """Find the folder and join what it says with what the params say.

    A configured revision is downloaded once, without any weights but those that match the pattern ``weights``.

    Raises:
        ArtifactError: there is no such folder, or a file of it is malformed.
        ConfigError: neither folder nor params name pooling or length, they contradict each other, or the folder's
            pipeline has a step that is not known here.
        UnavailableError: the revision is not in the hub's cache and the hub cannot be reached.
    """
    root = _find(config, weights)
    modules = read_record(root / "modules.json", _Modules).root if (root / "modules.json").is_file() else ()
    paths = {module.type.rpartition(".")[2]: root / module.path for module in modules}
    for step in sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise ConfigError(f"the encoder in {root} has a step {step} (modules.json), which cannot be computed here.")
    transformer = paths.get("Transformer", root)
    model = _optional(transformer / "config.json", _ModelFile)
    reading = _optional(transformer / "sentence_bert_config.json", _TransformerFile)
    prompts = _optional(root / "config_sentence_transformers.json", _PromptsFile)
    if prompts.similarity_fn_name not in (None, "cosine"):
        logger.warning("%s was trained for %s; here it is compared by cosine", root, prompts.similarity_fn_name)
    return ModelFolder(
        root=root,
        transformer=transformer,
        pooling=_pooling(config, root, paths.get("Pooling")),
        prefixes={
            "query": _prefix(config.query_prefix, prompts, ("query",)),
            "passage": _prefix(config.passage_prefix, prompts, ("document", "passage", "corpus")),
        },
        lower_case=reading.do_lower_case,
        max_tokens=_max_tokens(config, root, reading.max_seq_length, model.positions),
        pad_id=model.pad_token_id or 0,
    )


def _find(config: ModelFolderConfig, weights: str) -> Path:
    if config.revision is None:
        if not Path(config.model).is_dir():
            raise ArtifactError(
                f"there is no encoder folder {config.model}; for a repository of a hub give its revision too."
            )
        return Path(config.model)
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - hundreds of milliseconds, needed for hubs alone
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(config.model, revision=config.revision, allow_patterns=[*DESCRIPTIONS, weights]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UnavailableError(
            f"the encoder {config.model} at {config.revision} is neither in the hub's cache nor to be fetched: {reason}"
        ) from error


def _optional(path: Path, model: type[FileT]) -> FileT:
    return read_record(path, model) if path.is_file() else model()


def _pooling(config: ModelFolderConfig, root: Path, folder: Path | None) -> Pooling:
    path = (folder or root / "1_Pooling") / "config.json"
    if not path.is_file():
        if config.pooling is None:
            raise ConfigError(f"{root} does not say how it pools tokens (no {path.name} in 1_Pooling): set pooling.")
        return config.pooling
    said = read_record(path, _PoolingFile)
    if not said.include_prompt:
        raise ConfigError(f"{path} leaves prompts out of the pooling, which cannot be computed here.")
    for name in ("mean", "cls"):
        if said.modes == {name} and config.pooling in (None, name):
            return name
    wanted = "mean and cls can be computed here" if config.pooling is None else f"the params say {config.pooling}"
    raise ConfigError(f"{path} says that tokens are pooled by {' and '.join(sorted(said.modes))}; {wanted}.")


def _max_tokens(config: ModelFolderConfig, root: Path, said: int | None, positions: int | None) -> int:
    if positions is not None and (config.max_tokens or 0) > positions:
        raise ConfigError(f"max_tokens is {config.max_tokens}, and the encoder in {root} reads {positions} at most.")
    known = [length for length in (said, positions) if length is not None]
    if config.max_tokens is None and not known:
        raise ConfigError(f"{root} does not say how many tokens it reads: set max_tokens.")
    return config.max_tokens or min(known)


def _prefix(configured: str | None, prompts: _PromptsFile, names: tuple[str, ...]) -> str:
    if configured is not None:
        return configured
    named = [prompts.prompts[name] for name in (*names, prompts.default_prompt_name or "") if name in prompts.prompts]
    return named[0] if named else ""
