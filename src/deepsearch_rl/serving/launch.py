"""Starting, checking and stopping the model server that a profile names.

    with serve_model(folder, config) as endpoint:
        ...  # OpenAI-compatible, stopped at the end of the block

Backends: ``cpu`` (our own engine over transformers' models), ``vllm`` (GPU), ``remote`` (a server that runs already;
its address comes from params, its key from the environment variable that params name).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
from pydantic import Field

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.errors import ArtifactError, ConfigError, EndpointError
from deepsearch_rl.records import Record
from deepsearch_rl.serving.cpu import CpuConfig, serve_cpu
from deepsearch_rl.serving.hardware import require_gpu
from deepsearch_rl.serving.vllm import VllmConfig, serve_vllm

REMOTE_TIMEOUT_S = 20.0
"""How long a server that runs already may take to say that it is there."""


class RemoteConfig(Record):
    """A server that runs already."""

    base_url: str = Field(min_length=1, description="address up to and including /v1")
    model: str = Field(min_length=1, description="model name to ask for")
    api_key_variable: str = Field(pattern=r"^[A-Za-z_]\w*$", description="environment variable that holds the key")


class ServingConfig(Record):
    """Params section ``serving``: the backend by name, and the settings of each that the profile may use."""

    backend: Literal["cpu", "vllm", "remote"]
    cpu: CpuConfig | None = None
    vllm: VllmConfig | None = None
    remote: RemoteConfig | None = None


def require_backend(config: ServingConfig) -> None:
    """Check that the named backend can run here, before anything is read or started.

    Raises:
        ConfigError: the named backend has no settings in params.
        UnavailableError: it needs a GPU or a package that is not here.
    """
    if getattr(config, config.backend) is None:
        raise ConfigError(f"serving.backend is {config.backend!r} but params have no serving.{config.backend} section.")
    if config.backend == "vllm":
        require_gpu("serving with vllm", packages=["vllm"])


@contextlib.contextmanager
def serve_model(folder: Path, config: ServingConfig) -> Iterator[Endpoint]:
    """Serve a model folder and yield where it answers.

    Raises:
        ConfigError: the named backend has no settings in params.
        UnavailableError: it needs a GPU or a package that is not here.
        ArtifactError: ``folder`` holds no model.
        EndpointError: the server does not start, or a remote one does not answer.
    """
    require_backend(config)
    settings = getattr(config, config.backend)
    if config.backend == "remote":
        yield _remote_endpoint(settings)
        return
    if not (folder / "config.json").is_file():
        raise ArtifactError(f"{folder} holds no model (config.json is missing); run the stage that makes it first.")
    serve = serve_vllm if config.backend == "vllm" else serve_cpu
    with serve(folder, settings) as endpoint:
        yield endpoint


def _remote_endpoint(config: RemoteConfig) -> Endpoint:
    key = os.environ.get(config.api_key_variable)
    if not key:
        raise ConfigError(f"set the environment variable {config.api_key_variable} to the key of {config.base_url}.")
    try:
        httpx.get(f"{config.base_url.rstrip('/')}/models", timeout=REMOTE_TIMEOUT_S)  # whatever it answers, it is there
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise EndpointError(
            f"no model server answers at {config.base_url} ({error}); start it, or correct base_url in the params file."
        ) from error
    return Endpoint(base_url=config.base_url, model=config.model, api_key=key)
