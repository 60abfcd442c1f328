"""What clients send to ``/retrieve`` and ``/access``, and how much of it.

The limits leave room for a trainer that sends the queries of a whole step at once, and none for a request that would
fill the memory.
"""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from deepsearch_rl.files import first_problem

MAX_BODY_BYTES = 4 * 2**20
MAX_QUERIES = 10_000
MAX_QUERY_CHARS = 32_768
MAX_DOCUMENTS = 50_000
"""Queries times passages of one request."""
MAX_URLS = 1_000
MAX_PAGES_BYTES = 64 * 2**20
"""Size of the answer to one ``/access``."""

BodyT = TypeVar("BodyT", bound=BaseModel)
Query = Annotated[str, Field(max_length=MAX_QUERY_CHARS)]


class RequestError(Exception):
    """A request that is refused, with the status code that says why."""

    def __init__(self, status: int, detail: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(detail)
        self.status, self.headers = status, headers


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


def parse_body(model: type[BodyT], body: bytes) -> BodyT:
    """Read a body as JSON of the form of ``model``.

    Raises:
        RequestError: 422, naming the first field that does not fit.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise RequestError(422, f"{field or 'body'}: {problem}") from error


def check_json(body: bytes) -> None:
    """Refuse what other readers of JSON would let pass or fall over: lone surrogates, deep nesting, not UTF-8.

    Raises:
        RequestError: 400.
    """
    try:
        from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
