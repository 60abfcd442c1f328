"""The base model: pretrained here on generated conversations, or a snapshot from the hub."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from pydantic import Field, JsonValue, ValidationError

from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.files import atomic_directory, first_problem
from deepsearch_rl.core.records import NonEmpty, Record

DESCRIPTIONS = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]


class ModelHubConfig(Record):
    """A model repository."""

    repository: NonEmpty = Field(description="owner/name")
    revision: str = Field(
        pattern=r"^[0-9a-f]{40}$", description="commit, so that every download has the same bytes"
    )


class PrepareModelConfig(Record):
    """Section ``prepare_model``; only the section of the chosen source is read."""

    source: Literal["pretrain", "hub"]
    pretrain: dict[str, JsonValue] | None = Field(
        default=None, description="fields of deepsearch_rl.toy.pretraining.PretrainConfig"
    )
    hub: ModelHubConfig | None = None


def prepare_model(config: PrepareModelConfig, prompt: str, seed: int, folder: Path) -> None:
    """Write the base model with tokenizer and chat template.

    Pretraining puts ``prompt`` in front of its documents and seeds weights and documents with
    ``seed``.

    Raises:
        ArtifactError: the prompt does not exist.
        ConfigError: the source's section is missing or wrong, or the hub has no such model.
        EndpointError: the hub does not answer.
    """
    with atomic_directory(folder) as partial:
        if config.source == "pretrain" and config.pretrain:
            _pretrain(config.pretrain, prompt, seed, partial)
        elif config.source == "hub" and config.hub:
            cached = snapshot(config.hub, [*DESCRIPTIONS, "*.safetensors"])
            shutil.copytree(cached, partial, copy_function=shutil.copyfile, dirs_exist_ok=True)
        else:
            raise ConfigError(
                f"prepare_model.source is {config.source!r}, so a section "
                f"prepare_model.{config.source} is needed."
            )


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
    """Download the repository's files that match the patterns into the hub's cache; return their folder.

    Raises ConfigError for an unknown repository or revision, EndpointError if the hub does not answer.
    """
    name = f"{config.repository} at revision {config.revision[:12]}"
    try:
        return Path(
            snapshot_download(config.repository, revision=config.revision, allow_patterns=patterns)
        )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ConfigError(
            f"the hub has no model {name}; check prepare_model.hub in the params file."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError) as error:
        raise EndpointError(
            f"the hub did not answer for {name}. Check the network (HF_ENDPOINT names a mirror) "
            "and run the stage again; finished files are kept."
        ) from error
