"""A model server: its address, client and errors, and the fields of its chat completions that the agent uses.

The fields are checked here, because the OpenAI client accepts whatever a server sends.
"""

import base64
import re
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import unquote, urlsplit

import openai
from openai.types.chat import ChatCompletion
from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.files import first_problem
from deepsearch_rl.records import ForeignRecord, StopReason, TokenUsage
from deepsearch_rl.redaction import redact

NO_KEY = "none"  # the key for a server that needs none
MODEL_RETRIES = 3
"""Further attempts of a model call; the client makes them for 408, 409, 429, 5xx, connection errors and time-outs."""
CONNECT_TIMEOUT_S = 10.0
_TOO_LONG = re.compile(
    r"context.?(length|window)|context of \d+ tokens|max_model_len|too long|too many (input )?tokens", re.IGNORECASE
)
"""How OpenAI, vLLM, other servers and our own report that a prompt does not fit."""
_REFUSALS = {400, 413, 422}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and its model; ``base_url`` ends in ``/v1`` and may hold a password, which no repr shows."""

    base_url: str = field(repr=False)
    model: str
    api_key: str = field(default=NO_KEY, repr=False)

    def redact(self, text: str) -> str:
        """Replace the key, user and password, which a server may repeat in an error, by asterisks."""
        user = urlsplit(self.base_url).netloc.rpartition("@")[0]
        as_header = base64.b64encode(unquote(user).encode()).decode()
        return redact(text, (user, as_header, None if self.api_key == NO_KEY else self.api_key))


def open_client(endpoint: Endpoint, timeout_s: float) -> openai.AsyncOpenAI:
    """Return a client that retries failed calls with back-off; ``timeout_s`` applies to each call."""
    timeout = openai.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
    return openai.AsyncOpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, timeout=timeout, max_retries=MODEL_RETRIES
    )


def model_failure(error: openai.APIError) -> StopReason:
    """Return whether the prompt did not fit or the endpoint failed."""
    refused = isinstance(error, openai.APIStatusError) and error.status_code in _REFUSALS
    return StopReason.TOKEN_BUDGET if refused and _TOO_LONG.search(str(error)) else StopReason.MODEL_ERROR


def replace_lone_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can escape and no file can hold, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


StorableText = Annotated[str, AfterValidator(replace_lone_surrogates)]
TokenNumber = Annotated[int, Field(ge=0)]


class _ServerRecord(ForeignRecord):
    model_config = ConfigDict(strict=True)


class _CalledFunction(_ServerRecord):
    name: StorableText
    arguments: StorableText


class _ToolCall(_ServerRecord):
    id: StorableText | None = None
    function: _CalledFunction


class AssistantMessage(_ServerRecord):
    """What a model wrote in one turn."""

    content: StorableText | None = None
    refusal: StorableText | None = None
    reasoning: StorableText | None = None
    reasoning_content: StorableText | None = None
    tool_calls: list[_ToolCall] | None = None

    @property
    def text(self) -> str:
        """The content, or the refusal where there is no content."""
        return self.content or self.refusal or ""

    @property
    def thought(self) -> str | None:
        """The reasoning that the server split from the text, under either of its two names."""
        return self.reasoning or self.reasoning_content or None


class _Choice(_ServerRecord):
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    message: AssistantMessage


class _Usage(_ServerRecord):
    prompt_tokens: TokenNumber | None = None
    completion_tokens: TokenNumber | None = None


class Completion(_ServerRecord):
    """A completion with one choice or more, of which the first counts."""

    choices: list[_Choice] = Field(min_length=1)
    reported_usage: _Usage | None = Field(default=None, alias="usage")

    @property
    def message(self) -> AssistantMessage:
        """The message of the first choice."""
        return self.choices[0].message

    @property
    def usage(self) -> TokenUsage | None:
        """Tokens of the call; None where the server counts none, which some report as zeros."""
        usage = self.reported_usage
        if not usage or not (usage.prompt_tokens or usage.completion_tokens):
            return None
        return TokenUsage(prompt_tokens=usage.prompt_tokens or 0, completion_tokens=usage.completion_tokens or 0)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the turn, where the server names it (vLLM: stop_reason, SGLang: matched_stop)."""
        reasons = (self.choices[0].stop_reason, self.choices[0].matched_stop)
        return next((reason for reason in reasons if isinstance(reason, str)), None)

    def truncated(self, max_tokens: int) -> bool:
        """Return whether the limit of tokens ended the turn.

        A server that parses tool calls may report ``tool_calls`` for a truncated turn, and some report nothing; the
        token count then decides. It does not for a turn that ended by itself: some servers count hidden reasoning.
        """
        reason = self.choices[0].finish_reason
        completion_tokens = self.usage.completion_tokens if self.usage else 0
        return reason == "length" or (reason in {None, "tool_calls"} and completion_tokens >= max_tokens)


def read_completion(response: ChatCompletion) -> Completion:
    """Return the checked fields of a server's response; raise EndpointError if it is no chat completion."""
    if not isinstance(response, ChatCompletion):  # the client returns a body that is no JSON as text
        raise EndpointError("the endpoint's response is not JSON")
    try:
        return Completion.model_validate(response.model_dump(warnings=False))
    except ValidationError as error:
        field, problem = first_problem(error)
        raise EndpointError(f"the endpoint's response is not a chat completion ({field}: {problem})") from error
