"""The folder of the base model, from either source."""

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
    """Where the base model comes from; the section of the chosen source must be there."""

    source: Literal["pretrain", "hub"]
    pretrain: PretrainConfig | None = None
    hub: ModelHubConfig | None = None


def prepare_model(config: PrepareModelConfig, prompt: str, seed: int, folder: Path) -> None:
    """Write the base model, with tokenizer and chat template, at once; ``seed`` draws weights and documents.

    A model trained from scratch learns the system prompt that ``prompt`` names. Raises
    ArtifactError for a prompt that does not exist, ConfigError where the section of the source is
    missing, and as :func:`snapshot`.
    """
    with atomic_directory(folder) as partial:
        if config.source == "pretrain" and config.pretrain:
            pretrain(config.pretrain, load_prompt(prompt), seed, partial)
        elif config.source == "hub" and config.hub:
            cached = snapshot(config.hub, [*DESCRIPTIONS, "*.safetensors"])
            shutil.copytree(cached, partial, copy_function=shutil.copyfile, dirs_exist_ok=True)
        else:
            raise ConfigError(f"prepare_model.source is {config.source}; add prepare_model.{config.source}.")


def snapshot(config: ModelHubConfig, patterns: list[str]) -> Path:
    """Fetch the files of a repository that fit patterns into the hub's own cache, and return their folder there.

    Raises ConfigError if there is no such repository or revision, EndpointError if the hub does not
    answer.
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
