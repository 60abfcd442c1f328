"""Chat completions of a model server: limits per minute, retries, and answers that are paid for once.

One policy of retries, in :func:`complete`. What a completion holds is in
:mod:`deepsearch_rl.chat.completion`, what an error means in
:mod:`deepsearch_rl.chat.model_failures`.
"""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import httpx
import openai

from deepsearch_rl.chat.completion import Completion, read_completion
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.model_failures import (
    FailedGenerationError,
    WordlessRefusalError,
    failure_in,
    is_wordless,
    server_words,
)
from deepsearch_rl.chat.paid_answers import answer_key, is_paid, keep_answer, read_answer
from deepsearch_rl.chat.reply_body import END_OF_STREAM, read_body
from deepsearch_rl.core.rate_limits import rate_limits
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.core.retries import is_quota_spent, retry_after_s

_LOG = logging.getLogger(__name__)

# Further attempts of a call that fails
MODEL_RETRIES = 3
CONNECT_TIMEOUT_S = 10.0

# Wait before a failed call is repeated, and before a full server is asked again; both double with
# each further attempt
FIRST_WAIT_S = 0.5
FIRST_FULL_WAIT_S = 2.0
LONGEST_WAIT_S = 60.0

_CHARACTERS_PER_TOKEN = 4
# 499: a proxy says that its client went away
_REPEATED_STATUSES = (
    httpx.codes.REQUEST_TIMEOUT,
    httpx.codes.CONFLICT,
    httpx.codes.FAILED_DEPENDENCY,
    httpx.codes.TOO_EARLY,
    499,
)

# Called with the seconds of a wait that has ended
OnPause = Callable[[float], None]
_deadline: ContextVar[tuple[asyncio.Timeout, OnPause] | None] = ContextVar("deadline", default=None)


def open_client(endpoint: Endpoint, timeout_s: float) -> openai.AsyncOpenAI:
    """Return the client of an endpoint; ``timeout_s`` limits each attempt as a whole."""
    # The caller limits how many requests there are at once
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        timeout=openai.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(limits=limits),
    )


async def complete(
    client: openai.AsyncOpenAI,
    endpoint: Endpoint,
    *,
    sample: int | None = None,
    retries: int = MODEL_RETRIES,
    **request: Any,
) -> Completion:
    """Return the endpoint's completion of a request, whose fields have OpenAI's names.

    Lost connections, time-outs, 408, 409, 424, 425, 499, 5xx and failed generations are repeated
    ``retries`` times; status 429 for as long as ``rate_limit_wait_s`` allows, unless no wait can
    help. A Retry-After is honoured. What the server refuses fails at once.

    ``sample`` tells two answers to one request apart. With it, the answer of an endpoint that costs
    money is kept, and asked for once (:mod:`deepsearch_rl.chat.paid_answers`).

    Raises openai.APIError, and as :func:`read_completion`.
    """
    if sample is None or not is_paid(endpoint.base_url):
        return await _ask_until_answered(client, endpoint, retries, request)

    key = answer_key(endpoint, request, sample)
    answer = read_answer(key)
    if answer is not None:
        return Completion.model_validate_json(answer)

    completion = await _ask_until_answered(client, endpoint, retries, request)
    keep_answer(key, completion.model_dump_json(by_alias=True))
    return completion


async def _ask_until_answered(
    client: openai.AsyncOpenAI, endpoint: Endpoint, retries: int, request: dict[str, Any]
) -> Completion:
    failures = 0
    full = 0
    waited_s = 0.0
    while True:
        try:
            return await _ask(client, endpoint, request)
        except openai.RateLimitError as error:
            wait_s = retry_after_s(error.response.headers)
            if is_quota_spent(error.response.text, wait_s):
                raise
            if wait_s is None:
                # Callers that were refused together would otherwise come back together
                wait_s = min(FIRST_FULL_WAIT_S * 2**full, LONGEST_WAIT_S) * random.uniform(0.5, 1)
            # A server that names a wait of nothing must not be asked without end
            wait_s = max(wait_s, 0.01 * 2 ** min(full, 10))
            full += 1
            waited_s += wait_s
            if waited_s > endpoint.options.rate_limit_wait_s:
                raise

            problem = endpoint.redact(str(error))
            _LOG.warning("the model server is full (%s), asked again in %.3g s", problem, wait_s)
            with _paused_deadline():
                await asyncio.sleep(wait_s)
        except (openai.APIError, FailedGenerationError) as error:
            failures += 1
            if failures > retries or not _may_pass(error):
                raise
            wait_s = min(FIRST_WAIT_S * 2 ** (failures - 1), LONGEST_WAIT_S)
            if isinstance(error, openai.APIStatusError):
                wait_s = max(
                    wait_s, min(retry_after_s(error.response.headers) or 0, LONGEST_WAIT_S)
                )

            _LOG.debug("attempt %d: %s", failures, endpoint.redact(str(error)))
            await asyncio.sleep(wait_s)


def _may_pass(error: openai.APIError | FailedGenerationError) -> bool:
    """Return whether another attempt may succeed.

    Ollama and llama.cpp report a malformed call of the model, and a prompt that does not fit, by
    status 500. Another attempt would draw a new turn in place of the model's own.
    """
    if not isinstance(error, openai.APIStatusError):
        return True
    if error.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        return failure_in(server_words(error)) is StopReason.MODEL_ERROR
    return error.status_code in _REPEATED_STATUSES


async def _ask(
    client: openai.AsyncOpenAI, endpoint: Endpoint, request: dict[str, Any]
) -> Completion:
    """Ask once, as soon as the limits per minute let it."""
    options = endpoint.options
    arguments = options.arguments(request | {"model": endpoint.model})
    limits = rate_limits(
        f"{endpoint.base_url} {endpoint.model}",
        options.requests_per_minute,
        options.tokens_per_minute,
    )
    estimated = _estimated_tokens(request)
    with _paused_deadline():
        await limits.wait(estimated)

    timeout = client.timeout
    limit_s = timeout.read if isinstance(timeout, openai.Timeout) else timeout
    receive = _receive if options.stream else _post
    try:
        # httpx's own limit is for each read: a server that sends a blank now and then would hold a
        # call for ever
        async with asyncio.timeout(limit_s):
            body = await receive(client, arguments)
    except TimeoutError as error:
        raise FailedGenerationError(f"the request timed out after {limit_s} s") from error
    except openai.BadRequestError as error:
        if not is_wordless(error.response.text):
            raise
        text = "the provider refused the request with status 400 and without a word"
        raise WordlessRefusalError(text) from error

    completion = read_completion(read_body(body), request.get("messages"))
    if usage := completion.usage:
        limits.correct(estimated, usage.prompt_tokens + usage.completion_tokens)
    return completion


def _estimated_tokens(request: dict[str, Any]) -> int:
    """Return about how many tokens a provider reserves for a request: its text, and the longest answer."""
    characters = len(json.dumps([request.get("messages"), request.get("tools")], default=str))
    return characters // _CHARACTERS_PER_TOKEN + int(request.get("max_tokens") or 0)


async def _post(client: openai.AsyncOpenAI, arguments: dict[str, Any]) -> bytes:
    """Return the body of the response.

    ``chat.completions.create`` compares every field of every message and tool with its annotations,
    to rename none of them: a sixth of the agent's CPU time.
    """
    body = dict(arguments)
    body |= body.pop("extra_body", None) or {}
    response = await client.post("/chat/completions", cast_to=httpx.Response, body=body)
    return response.content


async def _receive(client: openai.AsyncOpenAI, arguments: dict[str, Any]) -> bytes:
    """Return the body of a streamed response up to the mark of its end, after which some servers keep it open.

    Raises FailedGenerationError where the connection broke.
    """
    body = bytearray()
    create = client.chat.completions.with_streaming_response.create
    async with create(**arguments) as response:
        try:
            async for part in response.iter_bytes():
                body += part
                if body[-16:].rstrip().endswith(END_OF_STREAM.encode()):
                    break
        except httpx.TimeoutException as error:
            raise FailedGenerationError("the provider's stream timed out") from error
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}"
            raise FailedGenerationError(f"the provider's stream broke ({reason})") from error

    return bytes(body)


@contextlib.contextmanager
def pausable(deadline: asyncio.Timeout, on_pause: OnPause) -> Iterator[None]:
    """Have waits for a server's limits stop a deadline, which has begun; ``on_pause`` gets the seconds of each."""
    token = _deadline.set((deadline, on_pause))
    try:
        yield
    finally:
        _deadline.reset(token)


@contextlib.contextmanager
def _paused_deadline() -> Iterator[None]:
    pair = _deadline.get()
    end = None if pair is None or pair[0].expired() else pair[0].when()
    if pair is None or end is None:
        yield
        return

    deadline, on_pause = pair
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
