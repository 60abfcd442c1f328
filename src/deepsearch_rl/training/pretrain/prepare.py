"""The folder of the base model: pretrained from scratch, or a snapshot of the Hugging Face hub at a pinned revision."""

import shutil
from pathlib import Path

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

from deepsearch_rl.errors import ConfigError, EndpointError, look_up
from deepsearch_rl.files import atomic_directory
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.training.pretrain.trainer import PretrainConfig, pretrain

HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")


class ModelHubConfig(Record):
    """A model repository."""

    repository: NonEmpty = Field(description="owner/name")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="commit, so that every download has the same bytes")


class PrepareModelConfig(Record):
    """Where the base model comes from; the section of the chosen source must be there."""

    source: str = Field(description="pretrain | hub")
    pretrain: PretrainConfig | None = None
    hub: ModelHubConfig | None = None


def prepare_model(config: PrepareModelConfig, seed: int, folder: Path) -> None:
    """Write the base model, with tokenizer and chat template; the whole folder is replaced, and only by a whole model.

    ``seed`` draws weights and documents.

    Raises:
        UnknownNameError: no such source or prompt.
        ConfigError: the section of the source is missing, or the hub has no such repository or revision.
        EndpointError: the hub does not answer.
    """
    sources = {"pretrain": config.pretrain, "hub": config.hub}
    section = look_up("source of the base model", config.source, sources)
    if section is None:
        raise ConfigError(
            f"prepare_model.source is {config.source!r}, but there is no section prepare_model.{config.source}."
        )
    with atomic_directory(folder) as partial:
        if isinstance(section, PretrainConfig):
            pretrain(section, seed, partial)
        else:
            download(section, partial)


def download(config: ModelHubConfig, folder: Path, endpoint: str | None = None) -> None:
    """Fetch weights, tokenizer and configs into an existing folder.

    Files come through the hub's own cache, so a killed download continues where it stopped.

    Raises:
        ConfigError: there is no such repository or revision.
        EndpointError: the hub does not answer.
    """
    name = f"{config.repository} at revision {config.revision[:12]}"
    try:
        cached = snapshot_download(
            config.repository, revision=config.revision, allow_patterns=list(HUB_FILES), endpoint=endpoint
        )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ConfigError(f"the hub has no model {name}; check prepare_model.hub in the params file.") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError) as error:
        raise EndpointError(
            f"the hub did not answer for {name}. Check the network (HF_ENDPOINT names a mirror) and run the stage "
            "again; finished files are kept."
        ) from error
    shutil.copytree(cached, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
