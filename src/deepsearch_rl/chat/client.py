"""A model server: its client, and its chat completions.

A generation that failed and a reply that is cut or no JSON are asked for again; then they are an
error with the provider's reason. What a completion holds is in
:mod:`deepsearch_rl.chat.completion`, and what an error means is decided in
:mod:`deepsearch_rl.chat.model_failures`.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import httpx
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from deepsearch_rl.chat.completion import (
    Completion,
    error_text,
    failed_under_200,
    read_completion,
)
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.model_failures import (
    FailedGenerationError,
    WordlessRefusalError,
    failure_in,
    is_wordless,
)
from deepsearch_rl.chat.request_options import USUAL, RequestOptions
from deepsearch_rl.core.rate_limits import rate_limits
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.core.retries import no_capacity, retry, wait_for_capacity

ResultT = TypeVar("ResultT")
_LOG = logging.getLogger(__name__)
_CHARACTERS_PER_TOKEN = 4
# Called with the seconds of a wait that has ended
OnPause = Callable[[float], None]
_deadline: ContextVar[tuple[asyncio.Timeout, OnPause] | None] = ContextVar("deadline", default=None)


@contextlib.contextmanager
def pausable(deadline: asyncio.Timeout, on_pause: OnPause) -> Iterator[None]:
    """Have the waits in the block stop a deadline, which has begun; ``on_pause`` gets the seconds of each."""
    token = _deadline.set((deadline, on_pause))
    try:
        yield
    finally:
        _deadline.reset(token)


@contextlib.contextmanager
def _paused_deadline() -> Iterator[None]:
    pair = _deadline.get()
    if pair is None:
        yield
        return

    deadline, on_pause = pair
    end = None if deadline.expired() else deadline.when()
    if end is None:
        yield
        return

    loop = asyncio.get_running_loop()
    # The provider's limit is no fault of the rollout, whose time it would take
    began = loop.time()
    deadline.reschedule(None)

    try:
        yield
    finally:
        waited_s = loop.time() - began
        deadline.reschedule(end + waited_s)
        on_pause(waited_s)


async def call_in_turn(
    client: openai.AsyncOpenAI,
    options: RequestOptions,
    request: dict[str, Any],
    call: Callable[[], Awaitable[ResultT]],
) -> ResultT:
    """Make a call when the limits allow it, and again while the server answers 429.

    Raises openai.RateLimitError after ``rate_limit_wait_s``, or at once where money or a day's
    quota is out.
    """
    limits = rate_limits(
        f"{client.base_url} {request.get('model')}",
        options.requests_per_minute,
        options.tokens_per_minute,
    )

    def log(error: BaseException, attempt: int) -> None:
        _LOG.warning(
            "the model server takes no more requests now (%s), attempt %d",
            loggable(client, error),
            attempt,
        )

    async def sleep(seconds: float) -> None:
        with _paused_deadline():
            await asyncio.sleep(seconds)

    @wait_for_capacity(options.rate_limit_wait_s, log, sleep=sleep)
    async def take_turn() -> ResultT:
        """Call once the limits allow it, and correct them by the tokens that the answer took."""
        estimated = _estimated_tokens(request)
        with _paused_deadline():
            await limits.wait(estimated)
        try:
            result = await call()
        except openai.RateLimitError as error:
            full = no_capacity(str(error), error.response.headers, error.response.text)
            if full is None:
                raise
            raise full from error

        used = _used_tokens(result)
        if used is not None:
            limits.correct(estimated, used)
        return result

    return await take_turn()


def loggable(client: openai.AsyncOpenAI, error: BaseException) -> str:
    """Return an error's text without the key, user and password of its client, which a server may repeat in it."""
    return Endpoint(str(client.base_url), "", client.api_key).redact(str(error))


def _estimated_tokens(request: dict[str, Any]) -> int:
    """Return about how many tokens a provider reserves for a request: its text, and the longest answer."""
    characters = len(json.dumps([request.get("messages"), request.get("tools")], default=str))
    return characters // _CHARACTERS_PER_TOKEN + int(request.get("max_tokens") or 0)


def _used_tokens(response: object) -> int | None:
    """Return the tokens that a response counts, prompt and answer together; None where it counts none."""
    total = getattr(getattr(response, "usage", None), "total_tokens", None)
    return total if isinstance(total, int) and total > 0 else None


_LOG = logging.getLogger(__name__)

# Further attempts of a model call; the client makes them for 408, 409, 5xx, connection errors
# and time-outs.
MODEL_RETRIES = 3
CONNECT_TIMEOUT_S = 10.0

# Wait before a failed generation is asked for again; it doubles with each further attempt.
FIRST_WAIT_S = 0.5


class _TimedClient(openai.DefaultAsyncHttpxClient):
    """Ends a whole attempt, from the request to the last byte that it waits for, after the read timeout.

    httpx's own limit is for each read, so that a server which sends a blank now and then holds a
    call for ever. A streamed answer is over here when its head has come.
    """

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        limit_s = request.extensions.get("timeout", {}).get("read")
        try:
            async with asyncio.timeout(limit_s):
                return await super().send(request, **options)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no whole answer in {limit_s} s", request=request) from error


def open_client(endpoint: Endpoint, timeout_s: float) -> openai.AsyncOpenAI:
    """Return a client that retries failed calls with back-off; ``timeout_s`` applies to each attempt as a whole."""
    timeout = openai.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
    # The caller limits how many requests there are at once
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    http_client = _TimedClient(limits=limits, event_hooks={"response": [_keep_what_is_final]})
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
    for in :mod:`deepsearch_rl.chat.client`, with more patience than the client has.
    """
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        response.headers["x-should-retry"] = "false"
    if response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
        return
    await response.aread()
    if failure_in(response.text) is not StopReason.MODEL_ERROR:
        response.headers["x-should-retry"] = "false"


async def complete(
    client: openai.AsyncOpenAI, options: RequestOptions = USUAL, **request: Any
) -> Completion:
    """Return the completion of a request; a failed generation is asked for as often as the client repeats a call.

    So is a reply that is cut or no JSON. ``options`` say how the model takes requests, and how
    many. Raises openai.APIError after all attempts, and as :func:`read_completion`.
    """
    arguments = options.arguments(request)

    def log(error: BaseException, attempt: int) -> None:
        _LOG.debug("attempt %d: %s", attempt, loggable(client, error))

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
    try:
        return await client.post("/chat/completions", cast_to=ChatCompletion, body=body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FailedGenerationError(f"the endpoint's response is not JSON ({error})") from error


def _attempt_s(client: openai.AsyncOpenAI) -> float | None:
    """Return how long one attempt of a call may take; None: no limit."""
    return client.timeout.read if isinstance(client.timeout, openai.Timeout) else client.timeout


async def _receive(client: openai.AsyncOpenAI, arguments: dict[str, Any]) -> ChatCompletion:
    """Return a streamed answer as a whole one.

    Raises FailedGenerationError where the stream broke, could not be read or ended before the
    answer, and EndpointError where it reports an error that another attempt would repeat.
    """
    pieces = ChatCompletionStreamState()
    async with await client.chat.completions.create(**arguments) as stream:
        try:
            async with asyncio.timeout(_attempt_s(client)):
                async for chunk in stream:
                    pieces.handle_chunk(chunk)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise FailedGenerationError("the provider's stream timed out") from error
        except openai.APIError as error:
            # An event of the stream that holds an error
            raise failed_under_200(error_text(error.body or error.message)) from error
        except Exception as error:
            # The connection, or the library over a piece: it trusts what the server sends
            reason = f"{type(error).__name__}: {error}"
            raise FailedGenerationError(
                f"the provider's stream broke or could not be read ({reason})"
            ) from error

    # The library asserts that something came.
    try:
        completion = pieces.current_completion_snapshot
    except AssertionError as error:
        raise FailedGenerationError("the provider's stream ended without an answer") from error

    if not completion.choices or not completion.choices[0].finish_reason:
        raise FailedGenerationError("the provider's stream ended before the answer did")
    return completion
