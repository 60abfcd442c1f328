"""The base model: pretrained here on generated conversations, a local folder, or a snapshot from the hub.

A folder and a snapshot are checked before they are written (:mod:`deepsearch_rl.train.base_model`):
weights, architecture, tokenizer, chat template and the token that ends a turn.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

import httpx
from huggingface_hub import constants, is_offline_mode, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from pydantic import Field, JsonValue, ValidationError, model_validator

from deepsearch_rl.chat.prompts import TEMPLATE_FILE, load_prompt
from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.core.files import atomic_directory, first_problem
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.train.model_folder import WEIGHTS

DESCRIPTIONS = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]
_PATTERNS = [*DESCRIPTIONS, WEIGHTS]


class ModelHubConfig(Record):
    """A model repository."""

    repository: NonEmpty = Field(description="owner/name")
    revision: str = Field(
        pattern=r"^[0-9a-f]{40}$", description="commit, so that every download has the same bytes"
    )


class PrepareModelConfig(Record):
    """Section ``prepare_model``; only the section of the chosen source is read."""

    source: Literal["pretrain", "folder", "hub"] = Field(
        description="generated conversations, a local folder, or a hub"
    )
    pretrain: dict[str, JsonValue] | None = Field(
        default=None, description="fields of deepsearch_rl.toy.pretraining.PretrainConfig"
    )
    path: Path | None = Field(
        default=None, description="folder: a model in Hugging Face's layout; DVC compares its files"
    )
    hub: ModelHubConfig | None = None
    chat_template: Path | None = Field(
        default=None,
        description="folder, hub: a .jinja file in place of the model's own template, e.g. "
        "src/deepsearch_rl/chat/chat_template.jinja; null: the model's own",
    )

    @model_validator(mode="after")
    def _source_has_its_field(self) -> Self:
        field = "path" if self.source == "folder" else self.source
        if getattr(self, field) is None:
            raise ValueError(f"source: {self.source} needs prepare_model.{field}")
        if self.chat_template is not None and self.source == "pretrain":
            raise ValueError(
                "a pretrained model has the project's own chat_template: set it to null"
            )
        return self


def prepare_model(config: PrepareModelConfig, prompt: str, seed: int, folder: Path) -> None:
    """Write the base model with tokenizer and chat template.

    Pretraining puts ``prompt`` in front of its documents and seeds weights and documents with
    ``seed``.

    Raises:
        ArtifactError: the prompt, the chat template or the model's folder does not exist or is not whole.
        ConfigError: the source's section is missing or wrong, the hub has no such model, or the model
            cannot be trained and served as an agent (:func:`base_model.complete_base`).
        EndpointError: the hub does not answer, and its cache lacks the model.
    """
    with atomic_directory(folder) as partial:
        if config.pretrain is not None and config.source == "pretrain":
            _pretrain(config.pretrain, prompt, seed, partial)
            return

        source = source_folder(config, _PATTERNS)
        for file in _model_files(source):
            shutil.copyfile(file, partial / file.name)
        if config.chat_template is not None:
            _copy_template(config.chat_template, partial)

        # A second to import, which a pretrained model does not need
        from deepsearch_rl.train.base_model import complete_base  # noqa: PLC0415

        complete_base(partial, str(source))


def source_folder(config: PrepareModelConfig, patterns: list[str]) -> Path:
    """Return the folder of the model that params name: the hub's files that match the patterns, or ``path``.

    Raise ArtifactError where ``path`` is no folder, and as :func:`snapshot`.
    """
    if config.source == "hub" and config.hub is not None:
        return snapshot(config.hub, patterns)
    if config.path is None or not config.path.is_dir():
        raise ArtifactError(
            f"{config.path} is no folder; prepare_model.path names a model in Hugging Face's layout."
        )
    return config.path


def _model_files(folder: Path) -> Iterator[Path]:
    """Yield weights and descriptions of a model folder."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and any(file.match(pattern) for pattern in _PATTERNS):
            yield file


def _copy_template(template: Path, folder: Path) -> None:
    if not template.is_file():
        raise ArtifactError(f"{template} does not exist; prepare_model.chat_template names it.")
    shutil.copyfile(template, folder / TEMPLATE_FILE)


def _pretrain(values: Mapping[str, JsonValue], prompt: str, seed: int, folder: Path) -> None:
    # Only tiny profiles need the generated world; it is built on this package
    from deepsearch_rl.toy.pretraining import PretrainConfig, pretrain  # noqa: PLC0415

    try:
        config = PretrainConfig.model_validate(values)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise ConfigError(f"prepare_model.pretrain.{field}: {problem}.") from error

    pretrain(config, load_prompt(prompt), seed, folder)


def snapshot(config: ModelHubConfig, patterns: list[str]) -> Path:
    """Bring the repository's files that match the patterns into the hub's cache; return their folder.

    A commit that is in the cache needs no hub: neither with ``HF_HUB_OFFLINE=1`` nor where the hub
    does not answer.

    Raises ConfigError for an unknown repository or revision, EndpointError if the hub does not answer
    and the cache lacks files.
    """
    name = f"{config.repository} at revision {config.revision[:12]}"
    try:
        return _snapshot(config, patterns)
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ConfigError(
            f"the hub has no model {name}; check prepare_model.hub in the params file."
        ) from error
    except (
        OfflineModeIsEnabled,
        LocalEntryNotFoundError,
        HfHubHTTPError,
        httpx.HTTPError,
    ) as error:
        unavailable = error

    with contextlib.suppress(LocalEntryNotFoundError):
        folder = _snapshot(config, patterns, local_files_only=True)
        # Caches that list no files of the commit may hold some of them
        if WEIGHTS not in patterns or any(folder.glob(WEIGHTS)):
            return folder

    fix = "check the network (HF_ENDPOINT names a mirror)"
    if is_offline_mode():
        fix = "unset HF_HUB_OFFLINE"
    raise EndpointError(
        f"the hub did not answer for {name}, and its cache ({constants.HF_HUB_CACHE}) does not hold the "
        f"whole model. To go on, {fix}, or name a folder with the model (prepare_model.source: folder), and "
        "run the stage again; finished files are kept."
    ) from unavailable


def _snapshot(
    config: ModelHubConfig, patterns: list[str], *, local_files_only: bool = False
) -> Path:
    return Path(
        snapshot_download(
            config.repository,
            revision=config.revision,
            allow_patterns=patterns,
            local_files_only=local_files_only,
        )
    )
