"""The base model: pretrained here on generated conversations, or a snapshot from the hub."""

import shutil
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
from pydantic import Field

from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.files import atomic_directory
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.toy.pretraining import PretrainConfig, pretrain

DESCRIPTIONS = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]


class ModelHubConfig(Record):
    """A model repository."""

    repository: NonEmpty = Field(description="owner/name")
    revision: str = Field(
        pattern=r"^[0-9a-f]{40}$", description="commit, so that every download has the same bytes"
    )


class PrepareModelConfig(Record):
    """Section ``prepare_model``; the section of the chosen source is needed."""

    source: Literal["pretrain", "hub"]
    pretrain: PretrainConfig | None = None
    hub: ModelHubConfig | None = None


def prepare_model(config: PrepareModelConfig, prompt: str, seed: int, folder: Path) -> None:
    """Write the base model with tokenizer and chat template.

    ``prompt`` and ``seed`` are for pretraining: the system prompt in documents, and the seed of
    weights and documents.

    Raises:
        ArtifactError: the prompt does not exist.
        ConfigError: the section of the source is missing, or the hub has no such model.
        EndpointError: the hub does not answer.
    """
    with atomic_directory(folder) as partial:
        if config.source == "pretrain" and config.pretrain:
            pretrain(config.pretrain, load_prompt(prompt), seed, partial)
        elif config.source == "hub" and config.hub:
            cached = snapshot(config.hub, [*DESCRIPTIONS, "*.safetensors"])
            shutil.copytree(cached, partial, copy_function=shutil.copyfile, dirs_exist_ok=True)
        else:
            raise ConfigError(
                f"prepare_model.source is {config.source!r}, so a section "
                f"prepare_model.{config.source} is needed."
            )


def snapshot(config: ModelHubConfig, patterns: list[str]) -> Path:
    """Fetch the files of a repository that match patterns into the hub's cache and return their folder.

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
