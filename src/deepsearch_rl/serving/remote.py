"""Models behind servers that run already: any OpenAI-compatible endpoint, described by a small file.

A model folder that holds ``endpoint.json`` instead of weights is such a model, so that an API's model is evaluated
like any other and stands in the same table:

    {"base_url": "$OPENAI_BASE_URL", "model": "$OPENAI_MODEL", "api_key_variable": "OPENAI_API_KEY"}

Address and model name are texts, or ``$NAME`` for what the environment variable NAME holds; the key always comes from
the environment. Because an artifact must say what was really asked, results name the address and the model that the
variables held, and the log of unfinished work is kept apart by them.
"""

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import httpx
from pydantic import Field

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.errors import ConfigError, EndpointError
from deepsearch_rl.files import read_record
from deepsearch_rl.records import NonEmpty, Record

FILE = "endpoint.json"
REMOTE_TIMEOUT_S = 20.0
"""How long a server that runs already may take to say that it is there."""

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class RemoteConfig(Record):
    """A server that runs already."""

    base_url: NonEmpty = Field(description="address up to and including /v1, or $NAME of the variable that holds it")
    model: NonEmpty = Field(description="model name to ask for, or $NAME of the variable that holds it")
    api_key_variable: VariableName = Field(description="environment variable that holds the key")


def read_remote(folder: Path) -> RemoteConfig | None:
    """What ``endpoint.json`` of a model folder says, or None where the folder holds no such file.

    Raises:
        ArtifactError: the file does not fit.
    """
    path = folder / FILE
    return read_record(path, RemoteConfig) if path.is_file() else None


def resolve_endpoint(config: RemoteConfig) -> Endpoint:
    """The endpoint with what its environment variables hold; nothing is asked yet.

    Raises:
        ConfigError: a variable is not set; names it.
    """
    base_url = _resolved(config.base_url, "the address of an OpenAI-compatible server, up to and including /v1")
    model = _resolved(config.model, "the name of the model to ask for")
    key = _resolved(f"${config.api_key_variable}", f"the key of {shown_address(base_url)}")
    return Endpoint(base_url=base_url, model=model, api_key=key)


def open_endpoint(config: RemoteConfig) -> Endpoint:
    """The endpoint, after it has shown that it is there.

    Raises:
        ConfigError: a variable is not set; names it.
        EndpointError: nothing answers at its address.
    """
    endpoint = resolve_endpoint(config)
    try:
        # Whatever it answers, it is there.
        httpx.get(f"{endpoint.base_url.rstrip('/')}/models", timeout=REMOTE_TIMEOUT_S)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise EndpointError(
            f"no model server answers at {shown_address(endpoint.base_url)} ({error}); start it, or correct its address"
            f"{f' in {config.base_url}' if config.base_url.startswith('$') else ''}."
        ) from error
    return endpoint


def shown_address(base_url: str) -> str:
    """An address as it may be shown: without user, password and query."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _resolved(value: str, meaning: str) -> str:
    if not value.startswith("$"):
        return value
    found = os.environ.get(value[1:])
    if not found:
        raise ConfigError(f"set the environment variable {value[1:]} to {meaning}.")
    return found
