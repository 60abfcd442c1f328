"""Requests: who may send them, and how their bodies are read.

A page in a browser can make a foreign name resolve to 127.0.0.1 (DNS rebinding) and read whatever
answers there. Such a request carries that name as its Host, so a server on loopback answers to
loopback's names alone.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from deepsearch_rl.core.files import first_problem

# Room for a trainer that sends the queries of a whole step at once
MAX_BODY_BYTES = 4 * 2**20
MAX_QUERIES = 10_000
MAX_QUERY_CHARS = 32_768
MAX_URLS = 1_000

BodyT = TypeVar("BodyT", bound=BaseModel)
Query = Annotated[str, Field(max_length=MAX_QUERY_CHARS)]


class RetrieveRequest(BaseModel):
    """Body of ``POST /retrieve``; unknown keys are ignored, as by the original servers."""

    model_config = ConfigDict(strict=True)

    queries: Annotated[list[Query], Field(max_length=MAX_QUERIES)]
    topk: int | None = Field(default=None, ge=1)
    return_scores: bool = False


class AccessRequest(BaseModel):
    """Body of ``POST /access``."""

    model_config = ConfigDict(strict=True)

    urls: Annotated[list[str], Field(max_length=MAX_URLS)]


async def read_body(request: Request, model: type[BodyT]) -> BodyT:
    """Return the JSON body as a ``model``.

    Raise HTTPException: 413 for a body that is too long, 422 with the first field that does not fit.
    """
    body = bytearray()
    try:
        async for block in request.stream():
            body += block
            if len(body) > MAX_BODY_BYTES:
                problem = f"a body may have at most {MAX_BODY_BYTES} bytes; send several requests."
                raise HTTPException(413, problem)
    except ClientDisconnect as error:
        raise HTTPException(400, "the body ended early.") from error

    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise HTTPException(422, f"{field or 'body'}: {problem}") from error


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
