"""Where a model answers, and ``endpoint.json``, which describes an OpenAI-compatible server that runs already.

A model folder that holds ``endpoint.json`` instead of weights is such a model, so that an API's
model is evaluated like any other and stands in the same table:

    {"base_url": "$OPENAI_BASE_URL", "model": "$OPENAI_MODEL", "api_key_variable": "OPENAI_API_KEY"}

A fourth field, ``request``, holds what else this model needs (:class:`RequestOptions`):

    {..., "request": {"token_limit": "max_completion_tokens", "temperature": "omit", "requests_per_minute": 60}}

Address and model name are texts, or ``$NAME`` for what the environment variable NAME holds; the key
always comes from the environment. Results name the address and the model that the variables held.

This module does not load the OpenAI client, which takes a second.
"""

import base64
import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
from pydantic import Field, JsonValue

from deepsearch_rl.chat.request_options import USUAL, RequestOptions
from deepsearch_rl.core.errors import ConfigError, EndpointError
from deepsearch_rl.core.files import atomic_directory, read_record, write_json
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.core.redaction import public_address, redact

# The key for a server that needs none
NO_KEY = "none"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and its model; ``base_url`` ends in ``/v1`` and may hold a password, which no repr shows."""

    base_url: str = field(repr=False)
    model: str
    api_key: str = field(default=NO_KEY, repr=False)
    # The chat template opens a thought at the end of every prompt, and the server leaves thoughts
    # in the text
    begins_in_thought: bool = False
    options: RequestOptions = field(default=USUAL, hash=False)

    def redact(self, text: str) -> str:
        """Replace the key, user and password, which a server may repeat in an error, by asterisks."""
        user = urlsplit(self.base_url).netloc.rpartition("@")[0]
        as_header = base64.b64encode(unquote(user).encode()).decode()
        return redact(text, (user, as_header, None if self.api_key == NO_KEY else self.api_key))


FILE = "endpoint.json"


class RemoteConfig(Record):
    """A server that runs already."""

    base_url: NonEmpty = Field(
        description="address up to and including /v1, or $NAME of the variable that holds it"
    )
    model: NonEmpty = Field(
        description="model name to ask for, or $NAME of the variable that holds it"
    )
    api_key_variable: str = Field(
        pattern=r"^[A-Za-z_]\w*$", description="environment variable that holds the key"
    )
    request: RequestOptions = Field(
        default=USUAL, description="how the model wants to be asked, and how often"
    )

    def of_answers(self) -> dict[str, JsonValue]:
        """Return what decides the model's answers, in a form that stays what it was where no option is set."""
        fields = self.model_dump(mode="json", exclude={"request"})
        options = self.request.of_answers()
        return fields | ({"request": options} if options else {})


def read_remote(folder: Path) -> RemoteConfig | None:
    """Return what ``endpoint.json`` of a model folder says, None if there is none."""
    path = folder / FILE
    return read_record(path, RemoteConfig) if path.is_file() else None


def require_remote(folder: Path) -> RemoteConfig:
    """Return what ``endpoint.json`` of a model folder says; raise ConfigError if there is none."""
    remote = read_remote(folder)
    if remote is None:
        raise ConfigError(
            f"{folder} has no {FILE}: name a folder of section endpoints, or put a file with "
            "base_url, model and api_key_variable there."
        )

    return remote


def write_endpoint(config: RemoteConfig, folder: Path) -> None:
    """Write a model folder whose ``endpoint.json`` has what the environment variables hold now, except for the key.

    An address with a password stays the variable's name. Raises as :func:`resolve_endpoint`.
    """
    endpoint = resolve_endpoint(config)
    fields = config.model_dump(mode="json", exclude_defaults=True) | {"model": endpoint.model}
    if shown_address(endpoint.base_url) == endpoint.base_url:
        fields["base_url"] = endpoint.base_url
    with atomic_directory(folder) as partial:
        write_json(partial / FILE, fields)


def resolve_endpoint(config: RemoteConfig) -> Endpoint:
    """Return the endpoint with what its environment variables hold; nothing is asked yet.

    ConfigError names a variable that is not set, or whose address or key cannot be used, and never
    shows its value.
    """
    base_url = _resolved(
        config.base_url, "the address of an OpenAI-compatible server, up to and including /v1"
    )
    address = shown_address(base_url, _place(config))
    model = _resolved(config.model, "the name of the model to ask for")
    key = _resolved(f"${config.api_key_variable}", f"the key of {address}")

    # A client would call anything else a broken connection
    if not re.fullmatch(r"[!-~]+", key):
        raise ConfigError(
            f"the environment variable {config.api_key_variable} holds no key: there is white "
            "space (perhaps a line's end) or a character outside ASCII in it."
        )

    return Endpoint(
        base_url=base_url,
        model=model,
        api_key=key,
        begins_in_thought=config.request.begins_in_thought,
        options=config.request,
    )


def _resolved(value: str, meaning: str) -> str:
    text = os.environ.get(value[1:]) if value.startswith("$") else value
    if not text:
        raise ConfigError(f"set the environment variable {value[1:]} to {meaning}.")
    return text


def _place(config: RemoteConfig) -> str:
    """Return where the address comes from."""
    if config.base_url.startswith("$"):
        return f"the environment variable {config.base_url[1:]}"
    return f"base_url ({FILE})"


def open_endpoint(config: RemoteConfig) -> Endpoint:
    """Return the endpoint of :func:`resolve_endpoint`; raise EndpointError if nothing answers at its address."""
    endpoint = resolve_endpoint(config)

    # Any answer will do: many servers have no list of models.
    try:
        httpx.get(f"{endpoint.base_url.rstrip('/')}/models", timeout=20.0)
    except httpx.TransportError as error:
        raise EndpointError(
            f"no model server answers at {shown_address(endpoint.base_url)} ({error}); start it, "
            f"or correct its address in {_place(config)}."
        ) from error

    return endpoint


def shown_address(base_url: str, place: str = "the endpoint's settings") -> str:
    """Return the address of a web server without user, password and query; ``place`` is where it comes from.

    Raises ConfigError if it cannot be read in one way only, so that nobody knows which part of it
    is secret.
    """
    address = public_address(base_url)
    with contextlib.suppress(httpx.InvalidURL):
        url = httpx.URL(base_url)
        if address is not None and url.host and url.scheme in {"http", "https"}:
            return address

    raise ConfigError(
        f"the address in {place} cannot be read: give http:// or https://, a host, a port number "
        "if it needs one, and the path up to /v1; percent-encode user and password."
    )
