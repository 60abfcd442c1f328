"""A model server: its client, and the fields of its chat completions that the agent uses.

The fields are checked here, because the OpenAI client accepts whatever a server sends. A reply of
status 200 can be a failure, too: a generation that an error, a filter or a lost connection ended is
no answer of the model. It is asked for again, and then it is an error with the provider's reason.
What an error means is decided in :mod:`deepsearch_rl.endpoints.model_failures`.
"""

import json
import logging
from typing import Annotated, Any

import httpx
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion
from pydantic import AfterValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import first_problem
from deepsearch_rl.core.records import ForeignRecord, StopReason, TokenUsage
from deepsearch_rl.core.retries import retry
from deepsearch_rl.endpoints.address import Endpoint
from deepsearch_rl.endpoints.model_failures import (
    FailedGenerationError,
    WordlessRefusalError,
    failure_in,
    is_wordless,
)
from deepsearch_rl.endpoints.pacing import call_in_turn
from deepsearch_rl.endpoints.pools import spread_transport
from deepsearch_rl.endpoints.request_options import USUAL, RequestOptions

_LOG = logging.getLogger(__name__)

# Further attempts of a model call; the client makes them for 408, 409, 429, 5xx, connection errors
# and time-outs.
MODEL_RETRIES = 3
CONNECT_TIMEOUT_S = 10.0

# Wait before a failed generation is asked for again; it doubles with each further attempt.
FIRST_WAIT_S = 0.5

# Finish reasons, in lower case, of a turn that the model ended: TGI, Anthropic, Cohere and Gemini
# have their own.
ENDED_BY_MODEL = frozenset(
    {
        "stop",
        "tool_calls",
        "function_call",
        "eos",
        "eos_token",
        "stop_sequence",
        "end_turn",
        "tool_use",
        "complete",
    }
)

# Likewise of a turn that the limit of tokens ended
ENDED_BY_LIMIT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})


def open_client(endpoint: Endpoint, timeout_s: float) -> openai.AsyncOpenAI:
    """Return a client that retries failed calls with back-off; ``timeout_s`` applies to each call."""
    timeout = openai.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
    http_client = openai.DefaultAsyncHttpxClient(
        transport=spread_transport(), event_hooks={"response": [_keep_what_is_final]}
    )
    return openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        timeout=timeout,
        max_retries=MODEL_RETRIES,
        http_client=http_client,
    )


async def _keep_what_is_final(response: httpx.Response) -> None:
    """Keep the client from repeating a request whose status 5xx is about the request or about the model's own turn.

    Ollama and llama.cpp report a malformed call of the model and a prompt that does not fit in that
    way. Another attempt would draw another turn in place of the model's own. Status 429 is waited
    for in :mod:`deepsearch_rl.endpoints.pacing`, with more patience than the client has.
    """
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        response.headers["x-should-retry"] = "false"
    if response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
        return
    await response.aread()
    if failure_in(response.text) is not StopReason.MODEL_ERROR:
        response.headers["x-should-retry"] = "false"


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


def _text_of(content: object) -> str | None:
    """Return a text, or the text of a list of parts that are all texts; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts: list[str] = []

    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            return None
        texts.append(text)

    return "".join(texts)


class AssistantMessage(_ServerRecord):
    """What a model wrote in one turn."""

    content: StorableText | None = None
    refusal: StorableText | None = None
    reasoning: StorableText | None = None
    reasoning_content: StorableText | None = None
    tool_calls: list[_ToolCall] | None = None

    @model_validator(mode="before")
    @classmethod
    def _join_parts(cls, message: Any) -> Any:
        """Put the parts of a content into one text, and those that are thoughts into the reasoning (Mistral's form)."""
        parts = message.get("content") if isinstance(message, dict) else None
        if not isinstance(parts, list):
            return message

        thought = ""
        others: list[object] = []
        for part in parts:
            if isinstance(part, dict) and part.get("type") == "thinking":
                thought += _text_of(part.get("thinking")) or ""
            else:
                others.append(part)

        # What holds anything else stays as it is: the field's own check says what should stand
        # there.
        text = _text_of(others)
        if text is None:
            return message
        return message | {"content": text, "reasoning": message.get("reasoning") or thought}

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
    native_finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    error: JsonValue = None
    message: AssistantMessage

    @property
    def ending(self) -> str:
        """The finish reason in lower case, empty where the server gives none."""
        return (self.finish_reason or "").lower()


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
        return TokenUsage(
            prompt_tokens=usage.prompt_tokens or 0, completion_tokens=usage.completion_tokens or 0
        )

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the turn, where the server names it (vLLM: stop_reason, SGLang: matched_stop)."""
        # A number is the token that ended the turn.
        for reason in (self.choices[0].stop_reason, self.choices[0].matched_stop):
            if isinstance(reason, str):
                return reason

        return None

    def truncated(self, max_tokens: int) -> bool:
        """Return whether the limit of tokens ended the turn.

        A server that parses tool calls may report ``tool_calls`` for a truncated turn, and some
        report nothing; the token count then decides. It does not for a turn that ended by itself:
        some servers count hidden reasoning.
        """
        ending = self.choices[0].ending
        completion_tokens = self.usage.completion_tokens if self.usage else 0
        return ending in ENDED_BY_LIMIT or (
            ending in {"", "tool_calls"} and completion_tokens >= max_tokens
        )

    @property
    def failure(self) -> str | None:
        """Why the provider generated no whole turn, in its own words; None for a turn that the model wrote.

        A turn without a character is one that the model wrote only where the server counted a token
        of it.
        """
        choice = self.choices[0]
        if choice.error:
            return _error_text(choice.error)
        if choice.ending and choice.ending not in ENDED_BY_MODEL | ENDED_BY_LIMIT:
            native = choice.native_finish_reason
            return f"finish_reason {choice.finish_reason!r}" + (f", {native}" if native else "")

        message = self.message
        is_empty = not (message.text or message.thought or message.tool_calls)
        has_tokens = self.usage is not None and self.usage.completion_tokens > 0
        if is_empty and not has_tokens and choice.ending not in ENDED_BY_LIMIT:
            return "nothing was generated"
        return None


def _error_beside(fields: dict[str, Any]) -> JsonValue:
    """Return the error that stands in a response in place of choices, or beside them; None where there is none.

    MiniMax reports one in ``base_resp``, DashScope and FastChat report it without an object around
    it.
    """
    # Some write an empty text or object where there is none
    error = fields.get("error") or None
    if error is not None or fields.get("choices"):
        return error
    base = fields.get("base_resp")
    if isinstance(base, dict) and base.get("status_code"):
        return {"message": base.get("status_msg"), "code": base["status_code"]}
    message = fields.get("message") or fields.get("detail")
    return {"message": message, "code": fields.get("code")} if isinstance(message, str) else None


def _error_text(error: JsonValue) -> str:
    """Return an error object in one line: the message, and the code where there is one."""
    if not isinstance(error, dict):
        return str(error)
    text = error.get("message")
    code = error.get("code")
    if not isinstance(text, str) or not text:
        text = json.dumps(error, ensure_ascii=False)
    return text if code is None else f"{text} (code {code})"


def read_completion(response: ChatCompletion) -> Completion:
    """Return the checked fields of a server's response.

    Raises:
        FailedGenerationError: the response reports that the generation failed, and another attempt
            may succeed.
        EndpointError: it is no chat completion, or it reports an error that another attempt would
            repeat.
    """
    # The client returns a body that is no JSON as text
    if not isinstance(response, ChatCompletion):
        raise EndpointError("the endpoint's response is not JSON")
    fields = response.model_dump(warnings=False)
    error = _error_beside(fields)
    if error is None and fields.get("choices") in (None, []):
        error = "nothing was generated, the response has no choices"
    if error is None:
        try:
            completion = Completion.model_validate(fields)
        except ValidationError as invalid:
            field, problem = first_problem(invalid)
            raise EndpointError(
                f"the endpoint's response is not a chat completion ({field}: {problem})"
            ) from invalid

        failure = completion.failure
        if failure is None:
            return completion
    else:
        failure = _error_text(error)

    text = f"the provider failed under status 200: {failure}"
    if failure_in(failure) is not StopReason.MODEL_ERROR:
        raise EndpointError(text)
    raise FailedGenerationError(text)


async def complete(
    client: openai.AsyncOpenAI, options: RequestOptions = USUAL, **request: Any
) -> Completion:
    """Return the completion of a request; a failed generation is asked for as often as the client repeats a call.

    ``options`` say how the model takes requests, and how many. Raises openai.APIError after all
    attempts, and as :func:`read_completion`.
    """
    arguments = options.arguments(request)

    def log(error: BaseException, attempt: int) -> None:
        _LOG.debug("attempt %d: %s", attempt, error)

    async def ask() -> ChatCompletion:
        if options.stream:
            return await _receive(client, arguments)
        return await _post(client, arguments)

    @retry(client.max_retries + 1, FIRST_WAIT_S, FailedGenerationError, log)
    async def ask_in_turn() -> Completion:
        """Ask once, as soon as the endpoint's limits let it; what fails for good is raised as it is."""
        try:
            response = await call_in_turn(client, options, request, ask)
        except openai.BadRequestError as error:
            if not is_wordless(error.response.text):
                raise
            text = "the provider refused the request with status 400 and without a word"
            raise WordlessRefusalError(text) from error

        return read_completion(response)

    return await ask_in_turn()


async def _post(client: openai.AsyncOpenAI, arguments: dict[str, Any]) -> ChatCompletion:
    """Return the whole answer to a request.

    ``chat.completions.create`` compares every field of every message and tool with its annotations,
    to rename none of them: a sixth of the agent's CPU time.
    """
    body = dict(arguments)
    body |= body.pop("extra_body", None) or {}
    return await client.post("/chat/completions", cast_to=ChatCompletion, body=body)


async def _receive(client: openai.AsyncOpenAI, arguments: dict[str, Any]) -> ChatCompletion:
    """Return a streamed answer as a whole one; raise FailedGenerationError if the stream ended before the answer."""
    pieces = ChatCompletionStreamState()
    async with await client.chat.completions.create(**arguments) as stream:
        async for chunk in stream:
            pieces.handle_chunk(chunk)

    # The library asserts that something came.
    try:
        completion = pieces.current_completion_snapshot
    except AssertionError as error:
        raise FailedGenerationError("the provider's stream ended without an answer") from error

    if not completion.choices or not completion.choices[0].finish_reason:
        raise FailedGenerationError("the provider's stream ended before the answer did")
    return completion
