"""Requests: who may send them, and how their bodies are read.

A page in a browser on this machine can make a foreign name resolve to 127.0.0.1 (DNS rebinding) and
then reads whatever answers there. Such a request carries that name as its Host, so a server that
listens on loopback answers to loopback's names alone. The limits of a body leave room for a trainer
that sends the queries of a whole step at once.
"""

import asyncio
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

from deepsearch_rl.core.files import first_problem
from deepsearch_rl.server.limits import HeldBody

# Bytes of one body, and of those of all requests together, read or being answered
MAX_BODY_BYTES = 4 * 2**20
MAX_BODIES_BYTES = 64 * 2**20

# Bytes of the answer to one ``/access``, and of all such answers together
MAX_PAGES_BYTES = 64 * 2**20
MAX_HELD_PAGES_BYTES = 2 * MAX_PAGES_BYTES

# How long a client may take to send a body, and to read an answer: what it holds is not free for
# others
BODY_TIMEOUT_S = 30
SEND_TIMEOUT_S = 120

MAX_QUERIES = 10_000
MAX_QUERY_CHARS = 32_768
MAX_URLS = 1_000

BodyT = TypeVar("BodyT", bound=BaseModel)
Query = Annotated[str, Field(max_length=MAX_QUERY_CHARS)]


class RetrieveRequest(BaseModel):
    """Body of ``POST /retrieve``. Unknown keys are ignored, as the original servers ignore them."""

    model_config = ConfigDict(strict=True)

    queries: Annotated[list[Query], Field(max_length=MAX_QUERIES)]
    topk: int | None = Field(default=None, ge=1)
    return_scores: bool = False


class AccessRequest(BaseModel):
    """Body of ``POST /access``."""

    model_config = ConfigDict(strict=True)

    urls: Annotated[list[str], Field(max_length=MAX_URLS)]


async def read_body(scope: Scope, receive: Receive, held: HeldBody) -> bytes:
    """Return the whole body of a request; refuse a type that is not JSON, and a body that is too long or too late.

    ``held`` counts its bytes, and refuses them where all bodies together have too many.
    """
    headers = dict(scope["headers"])
    content_type = (
        headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    )

    if content_type != b"application/json" and not content_type.endswith(b"+json"):
        raise HTTPException(
            415, "the body must be JSON: send the header `Content-Type: application/json`."
        )

    body = bytearray()

    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HTTPException(400, "the body ended early.")
                block = message.get("body", b"")
                body += block
                # Counted as it comes: many bodies at once are refused before they fill the memory
                held.add(len(block))

                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(
                        413,
                        f"a body may have at most {MAX_BODY_BYTES} bytes; send several requests.",
                    )

                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise HTTPException(408, f"the body did not arrive in {BODY_TIMEOUT_S} s.") from error


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that begins with a body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def parse_body(model: type[BodyT], body: bytes) -> BodyT:
    """Return a JSON body as a ``model``; raise a HTTPException (422) that names the first field that does not fit."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise HTTPException(422, f"{field or 'body'}: {problem}") from error


def check_json(body: bytes) -> None:
    """Refuse with 400 what other readers accept or fall over: lone surrogates, deep nesting, bytes beside UTF-8."""
    try:
        from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error


def is_loopback(host: str) -> bool:
    """Return whether an address or name is this machine's own, reachable from nowhere else."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, repr=False)
class Guard:
    """Checks of a request's headers. ``token``: None if none is needed; ``loopback``: only names of this machine."""

    token: bytes | None
    loopback: bool

    def check_names(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a foreign Host with 421, a foreign Origin with 403."""
        if not self.loopback:
            return
        host = headers.get(b"host")
        origin = headers.get(b"origin")

        # A page of the internet can have its name lead to loopback (DNS rebinding)
        if host and not _names_loopback(b"//" + host):
            raise HTTPException(
                421, "this server answers on loopback, and the Host header names another machine."
            )

        if origin and not _names_loopback(origin):
            raise HTTPException(
                403, "this server answers on loopback, and the request comes from a page elsewhere."
            )

    def check_token(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request without the token with 401."""
        if self.token is None:
            return
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self.token):
            detail = "this server wants the header `Authorization: Bearer <token>`."
            raise HTTPException(401, detail, {"www-authenticate": "Bearer"})


@lru_cache(maxsize=256)
def _names_loopback(url: bytes) -> bool:
    try:
        return is_loopback(urlsplit(url.decode("latin-1")).hostname or "")
    except ValueError:
        return False
