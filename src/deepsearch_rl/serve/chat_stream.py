"""An answer as server-sent events, while its tokens are drawn."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeAlias

from deepsearch_rl.serve.chat_answer import ChatAnswer, token_logprobs
from deepsearch_rl.serve.chat_request import (
    ChatCompletionRequest,
)
from deepsearch_rl.serve.engine import (
    Engine,
    Generation,
)
from deepsearch_rl.serve.error_replies import error_body, error_text

_END_OF_STREAM = "data: [DONE]\n\n"

# A token, its log-probability, and the content that it completes
_Step: TypeAlias = tuple[int, float, str]


def start_stream(engine: Engine, answer: ChatAnswer) -> AsyncIterator[str]:
    """Start an answer and return its server-sent events; raise as :meth:`Engine.generate` before the first one."""
    loop = asyncio.get_running_loop()
    steps: asyncio.Queue[_Step | None] = asyncio.Queue()

    def watch(token: int, logprob: float) -> bool:
        stopped = answer.text.add(token)
        loop.call_soon_threadsafe(steps.put_nowait, (token, logprob, answer.text.next_content()))
        return stopped

    def end(_result: "Future[Generation]") -> None:
        loop.call_soon_threadsafe(steps.put_nowait, None)

    result = engine.generate(answer.prompt, answer.sampling, watch)
    result.add_done_callback(end)
    return _stream(answer, steps, result)


async def _stream(
    answer: ChatAnswer, steps: "asyncio.Queue[_Step | None]", result: "Future[Generation]"
) -> AsyncIterator[str]:
    """Yield the events of an answer while it is drawn; a client that goes away cancels it."""
    try:
        yield _event(_chunk(answer, {"role": "assistant", "content": ""}))
        while (step := await steps.get()) is not None:
            token, logprob, content = step
            logprobs = token_logprobs([token], [logprob]) if answer.request.logprobs else None

            # A token may complete no character, and then has nothing to show.
            if content or logprobs:
                delta = {"content": content} if content else {}
                yield _event(_chunk(answer, delta, logprobs=logprobs))

        for event in _end_of_stream(answer, result):
            yield event
    finally:
        result.cancel()


def _end_of_stream(answer: ChatAnswer, result: "Future[Generation]") -> Iterator[str]:
    """Yield what follows the last token: the rest of the text, the calls, the finish reason and the usage."""
    try:
        generation = result.result()
    except (CancelledError, Exception) as error:  # noqa: BLE001
        # The stream's reader gets it
        yield _event(error_body(error_text(error), "server_error"))
        yield _END_OF_STREAM
        return

    answer.text.finish(generation.token_ids)
    message = answer.text.message()
    if rest := answer.text.last_content():
        yield _event(_chunk(answer, {"content": rest}))
    if calls := message.get("tool_calls"):
        numbered = [{"index": number, **call} for number, call in enumerate(calls)]
        yield _event(_chunk(answer, {"tool_calls": numbered}))

    yield _event(_chunk(answer, {}, finish_reason=answer.finish_reason(generation, message)))

    request = answer.request
    if isinstance(request, ChatCompletionRequest) and request.with_usage:
        chunk = answer.head("chat.completion.chunk") | {
            "choices": [],
            "usage": answer.usage(generation),
        }
        yield _event(chunk)

    yield _END_OF_STREAM


def _chunk(
    answer: ChatAnswer,
    delta: dict[str, Any],
    *,
    logprobs: list[dict[str, Any]] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    choice["logprobs"] = {"content": logprobs} if logprobs else None
    if finish_reason is not None:
        choice["stop_reason"] = answer.text.stop_string
    return answer.head("chat.completion.chunk") | {"choices": [choice]}


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
