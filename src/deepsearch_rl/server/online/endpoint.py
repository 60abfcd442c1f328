"""A search endpoint: the YAML file that describes it, and the exchange of one query for one answer.

``{query}``, ``{top_k}`` and ``{key}`` are filled into the URL (percent-encoded), the header values
and every string of the body. A string of the body that is ``"{top_k}"`` and nothing else becomes a
number. Paths into the answer are dotted keys, where a number is a position in a list:
``web.results``, ``data.0.items``. docs/retrieval.md has examples.

The HTTP transport is used without a client around it: a client would log URLs, and the key may be
in one.
"""

import contextlib
import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote, urlsplit

import httpx
import orjson
import yaml
from pydantic import Field, JsonValue, ValidationError, model_validator

from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointDownError, EndpointError
from deepsearch_rl.core.files import first_problem
from deepsearch_rl.core.rate_limits import MachineLimit, rate_limits
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.core.redaction import mask_users, public_address, redact
from deepsearch_rl.core.retries import (
    NoCapacityError,
    is_out_of_money,
    no_capacity,
    retry,
    retry_after_s,
    wait_for_capacity,
)
from deepsearch_rl.server.online.json_answer import parse_answer

_LOG = logging.getLogger(__name__)

PLACEHOLDERS = ("query", "top_k", "key")
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
ERROR_CHARS = 200
# The key is missing or wrong, or its budget is spent (Tavily: 432, 433)
REFUSED_CLIENT = (401, 402, 432, 433)
# The key may not search, or a firewall does not like this query
FORBIDDEN = 403
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

AnswerPath = Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)*$")]
ResultField = Literal["title", "text", "url", "score"]


class FieldMap(Record):
    """Where an answer holds the parts of a passage. The paths of a result start at that result."""

    results: AnswerPath | None = Field(
        description="path of the list of results; null: the answer is that list"
    )
    title: AnswerPath | None = Field(
        default=None, description="becomes the first line of the passage"
    )
    text: AnswerPath = Field(
        description="the passage: a string, or a list of strings, which become lines"
    )
    url: AnswerPath | None = Field(default=None, description="becomes the passage's id")
    score: AnswerPath | None = Field(
        default=None, description="a number, more is better; null: 1 / rank"
    )
    metadata: dict[str, AnswerPath] = Field(
        default_factory=dict, description="further fields by name, taken where the result has them"
    )
    optional: tuple[ResultField, ...] = Field(
        default=(), description="fields that may be missing in a result"
    )
    results_optional: bool = Field(
        default=False,
        description="whether an answer without the list means no results; otherwise it is an error",
    )
    expected: dict[AnswerPath, str] = Field(
        default_factory=dict,
        description="texts that the answer to a search that worked has; another one is an error",
    )
    failures: AnswerPath | None = Field(
        default=None,
        description="path of what went wrong, where an answer without results may be a failure",
    )


class OnlineConfig(Record):
    """A search endpoint. Request and fields have no defaults; limits have."""

    name: NonEmpty = Field(description="its name in errors")
    url: NonEmpty = Field(
        description="template, http or https; a key is sent over https or to loopback alone"
    )
    method: Literal["GET", "POST"] = "GET"
    headers: dict[str, str] = Field(default_factory=dict, description="templates of header values")
    body: JsonValue = Field(default=None, description="template of the JSON body of a POST")
    api_key_variable: str | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*$", description="environment variable that holds {key}"
    )
    fields: FieldMap
    max_results: int = Field(default=20, ge=1, description="upper limit of top_k in a request")
    max_concurrency: int = Field(default=8, ge=1, description="requests at once")
    timeout_s: float = Field(default=10.0, gt=0, description="for one attempt")
    attempts: int = Field(
        default=3, ge=1, description="for 429, 5xx, lost connections and time-outs"
    )
    backoff_s: float = Field(
        default=0.5, ge=0, description="before the second attempt; doubles with each"
    )
    max_wait_s: float = Field(
        default=10.0, ge=0, description="longest wait; a Retry-After beyond it ends the attempts"
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="of this process, all searches together; null: no limit"
    )
    requests_per_second: float | None = Field(
        default=None,
        gt=0,
        description="of all processes of this user on the machine together; null: no limit",
    )
    rate_limit_wait_s: float = Field(
        default=300.0,
        ge=0,
        description="how long a search may wait in all for 429 without a Retry-After",
    )
    max_response_bytes: int = Field(
        default=4_000_000, ge=1, description="a longer answer is an error"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = urlsplit(self.url)
        # A ValueError where it is no number
        _ = parts.port
        if parts.scheme not in ("http", "https") or not parts.hostname or "{" in parts.netloc:
            raise ValueError(
                "url must begin with http:// or https:// and a host without placeholders"
            )

        if self.body is not None and self.method == "GET":
            raise ValueError("a GET has no body; set method: POST")

        # In a body braces can belong to the JSON, so that only url and headers are checked.
        visible = " ".join([self.url, *self.headers.values()])
        for name in _PLACEHOLDER.findall(visible):
            if name not in PLACEHOLDERS:
                raise ValueError(
                    f"unknown placeholder {{{name}}}; there are {{query}}, {{top_k}} and {{key}}"
                )

        templates = f"{visible} {self.body!r}"
        if "{query}" not in templates:
            raise ValueError("neither url nor body nor headers hold {query}")
        if ("{key}" in templates) != (self.api_key_variable is not None):
            raise ValueError(
                "{key} and api_key_variable go together: one is given without the other"
            )

        is_plain = parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS
        if self.api_key_variable and is_plain:
            raise ValueError("a key must not travel over plain http; use https")

        return self

    @property
    def place(self) -> str:
        """The address as errors may show it: without the query string, which may hold the key."""
        return public_address(self.url) or "the address of its config"


def read_online_config(path: Path) -> OnlineConfig:
    """Read a YAML file; raise ArtifactError if it is none, ConfigError with the first field that does not fit."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ArtifactError(
            f"{path} cannot be read as YAML: {' '.join(str(error).split())}."
        ) from error

    return parse_online_config(values, path)


def parse_online_config(values: object, path: Path) -> OnlineConfig:
    """Return what a file holds; raise ConfigError with the first field that does not fit."""
    try:
        return OnlineConfig.model_validate(values)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise ConfigError(f"{path}, {field or 'file'}: {problem}.") from error


class _TryAgainError(Exception):
    """An attempt failed in a way that may pass; ``wait_s`` is the Retry-After of the endpoint, if any.

    ``about_query``: whether it may be about this query alone.
    """

    def __init__(
        self, reason: str, wait_s: float | None = None, *, about_query: bool = True
    ) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.about_query = about_query


class SuspectedDownError(EndpointDownError):
    """The endpoint failed for one query in a way that may be about that query: other queries will tell."""


class SearchEndpoint:
    """Client of one endpoint; safe to use from several threads."""

    def __init__(self, config: OnlineConfig, key: str | None = None) -> None:
        self.config = config
        self._key = key
        self._limits = rate_limits(config.place, config.requests_per_minute)
        per_second = config.requests_per_second
        self._machine = None if per_second is None else MachineLimit(config.place, per_second)
        self._transport = httpx.HTTPTransport(
            limits=httpx.Limits(max_connections=config.max_concurrency)
        )

    def ask(self, query: str, top_k: int) -> JsonValue:
        """Return the parsed answer to a query.

        Raises:
            SuspectedDownError: all attempts failed, the query was forbidden, or led elsewhere.
            EndpointDownError: nothing can be reached, the key was refused, or a quota is out.
            EndpointError: the query was refused, or the answer is none.
        """
        request = self._request({"query": query, "top_k": str(top_k), "key": self._key or ""})
        config = self.config

        def log(failure: BaseException, _attempt: int) -> None:
            _LOG.warning("%s", self._message(f"{failure} Trying again."))

        repeated = retry(
            config.attempts, config.backoff_s, _TryAgainError, log, max_wait_s=config.max_wait_s
        )
        patient = wait_for_capacity(config.rate_limit_wait_s, log)

        try:
            # A full quota is waited for beyond the attempts: they are for failures
            return patient(repeated(self._exchange))(request)
        except NoCapacityError as failure:
            problem = (
                f"{failure} It takes no more requests, for longer than rate_limit_wait_s allows."
            )
            raise EndpointDownError(self._message(problem)) from failure
        except _TryAgainError as failure:
            problem = f"{failure} ({config.attempts} attempts)."
            if failure.wait_s is not None and failure.wait_s > config.max_wait_s:
                problem = f"{failure} It asks to wait {failure.wait_s:g} s, longer than max_wait_s allows."
            kind = SuspectedDownError if failure.about_query else EndpointDownError
            raise kind(self._message(problem)) from failure

    def error(self, problem: str) -> EndpointError:
        """Return an error of this endpoint; whatever text it quotes, the key is not in it."""
        return EndpointError(self._message(problem))

    def _message(self, problem: str) -> str:
        return redact(
            f"online search {self.config.name!r} at {self.config.place}: {problem}", [self._key]
        )

    def _request(self, values: Mapping[str, str]) -> httpx.Request:
        config = self.config
        encoded_values: dict[str, str] = {}
        for name, value in values.items():
            encoded_values[name] = quote(value, safe="", errors="replace")
        url = _fill(config.url, encoded_values)

        headers = {"accept": "application/json", "accept-encoding": "identity"}
        for name, template in config.headers.items():
            headers[name.lower()] = _fill(template, values)

        content = None
        if config.method == "POST":
            content = orjson.dumps(_fill_body(config.body, values))
            headers = {"content-type": "application/json"} | headers

        # As bytes: httpx refuses letters beyond ASCII in a text
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        timeout = httpx.Timeout(config.timeout_s).as_dict()

        try:
            return httpx.Request(
                config.method,
                url,
                headers=encoded,
                content=content,
                extensions={"timeout": timeout},
            )
        except httpx.InvalidURL as error:
            raise self.error(
                f"a query of {len(values['query'])} characters does not fit into its URL."
            ) from error

    def _exchange(self, request: httpx.Request) -> JsonValue:
        """Send a request and return the parsed body of a success."""
        config = self.config
        body = bytearray()
        self._limits.wait_in_thread()
        if self._machine is not None:
            self._machine.wait_in_thread()
        # httpx limits the time of each read: a server that sends a byte at a time would never be
        # late
        deadline = time.monotonic() + config.timeout_s

        try:
            response = self._transport.handle_request(request)
            with contextlib.closing(response):
                for block in response.iter_bytes():
                    body += block
                    if len(body) > config.max_response_bytes:
                        raise self.error(
                            f"the answer is longer than max_response_bytes, {config.max_response_bytes}."
                        )

                    if time.monotonic() > deadline:
                        raise _TryAgainError(
                            f"the answer was not complete within {config.timeout_s:g} s."
                        )
        except httpx.TimeoutException as error:
            raise _TryAgainError(f"no answer within {config.timeout_s:g} s.") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _TryAgainError(
                f"the connection failed ({str(error) or type(error).__name__}).",
                about_query=not isinstance(error, httpx.ConnectError),
            ) from error

        # An endpoint may repeat the key. It goes first: a part of it would not be recognised
        return self._parsed(response, redact(body.decode(errors="replace"), [self._key]))

    def _parsed(self, response: httpx.Response, text: str) -> JsonValue:
        """Return the parsed body of a success; raise EndpointError where it is no JSON, and :meth:`_failure` else."""
        start = " ".join(text.split())[:ERROR_CHARS]
        if not response.is_success:
            raise self._failure(response, text, start)

        try:
            return parse_answer(text)
        except orjson.JSONDecodeError as error:
            kind = "an HTML page" if start.startswith("<") else "something that is not JSON"
            raise self.error(f"it answered with {kind}: {start!r}.") from error

    def _failure(self, response: httpx.Response, text: str, start: str) -> Exception:
        """Return the error for an answer that is no success; ``text`` is its body, ``start`` what errors quote."""
        status = response.status_code
        quoted = f"status {status}" + (f", {start!r}" if start else "")

        # Too many requests: a wait helps, unless a quota is spent
        is_too_many = status == httpx.codes.TOO_MANY_REQUESTS
        full = no_capacity(f"{quoted}.", response.headers, text) if is_too_many else None
        if full is not None and full.wait_s is None:
            return full
        if full is not None:
            return _TryAgainError(f"{quoted}.", full.wait_s, about_query=False)
        if is_too_many or is_out_of_money(text):
            problem = f"{quoted}; its quota or its money is out: raise the plan, or wait until it begins anew."
            return EndpointDownError(self._message(problem))

        if response.is_server_error:
            return _TryAgainError(f"{quoted}.", retry_after_s(response.headers))

        # Not followed: the key would travel along
        if response.has_redirect_location:
            location = redact(response.headers["location"], [self._key])
            target = mask_users(location.partition("?")[0])[:ERROR_CHARS]
            problem = f"status {status}, a redirect to {target!r}; correct the url in the config"
            return SuspectedDownError(self._message(problem))

        if status in (*REFUSED_CLIENT, FORBIDDEN):
            if self.config.api_key_variable:
                quoted += f"; is the key in {self.config.api_key_variable} right?"
            kind = SuspectedDownError if status == FORBIDDEN else EndpointDownError
            return kind(self._message(quoted))

        return self.error(quoted)


def _fill_body(template: JsonValue, values: Mapping[str, str]) -> JsonValue:
    if isinstance(template, dict):
        return {name: _fill_body(value, values) for name, value in template.items()}
    if isinstance(template, list):
        return [_fill_body(value, values) for value in template]
    if template == "{top_k}":
        return int(values["top_k"])
    return _fill(template, values) if isinstance(template, str) else template


def _fill(template: str, values: Mapping[str, str]) -> str:
    # In one pass, so that a query that reads "{key}" stays what it is.
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)
