"""An OpenAI-compatible chat server around an :class:`Engine`, with vLLM's conventions.

    POST /v1/chat/completions   one answer, whole or as a stream; tools, temperature, seed, stop strings, logprobs
    POST /v1/completions        token ids continued; temperature, seed, stop strings, logprobs
    GET  /v1/models             the one name that is served
    GET  /health                200 once requests are answered

    python -m deepsearch_rl.serving.chat_server SOCKET FOLDER NAME SLOTS CONTEXT_TOKENS [ADAPTER]   (for `launch`)

:mod:`deepsearch_rl.serving.chat_request` says what a request may ask; everything else is 400 with
the field's name. Every sampled token is reported as ``token_id:N``, so that a trainer reads the
very tokens that were sampled.
"""

import asyncio
import json
import logging
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from transformers import AutoModelForCausalLM

from deepsearch_rl.conversation.chat_format import ChatFormat, ConversationError, load_chat_format
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.serving.answer_text import AnswerText
from deepsearch_rl.serving.chat_request import (
    ChatCompletionRequest,
    CompletionRequest,
    RequestError,
    check_support,
)
from deepsearch_rl.serving.engine import (
    ContextOverflowError,
    Engine,
    Generation,
    SamplingParams,
    Watch,
)

_LOG = logging.getLogger(__name__)
_END_OF_STREAM = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class _Answer:
    """A request that the engine can start: its prompt, how tokens are drawn, and the text that they make."""

    request: ChatCompletionRequest | CompletionRequest
    prompt: list[int]
    sampling: SamplingParams
    text: AnswerText
    id: str
    created: int

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that all objects of this answer share."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}

    def finish_reason(self, generation: Generation, message: dict[str, Any]) -> str:
        called = generation.finish_reason == "stop" and "tool_calls" in message
        return "tool_calls" if called else generation.finish_reason

    def usage(self, generation: Generation) -> dict[str, int]:
        completion_tokens = len(generation.token_ids)
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": completion_tokens,
            "total_tokens": len(self.prompt) + completion_tokens,
        }


def chat_app(engine: Engine, chat_format: ChatFormat, served_name: Callable[[], str]) -> FastAPI:
    """Return the server's routes.

    ``served_name`` gives the model name that requests must use now. RL changes it with every step
    (``name@step``), so that a client that still asks for the previous policy gets 404 instead of an
    answer of the new one.
    """
    app = FastAPI(title="deepsearch-rl model server")
    _add_error_replies(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model_card(served_name())]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        _check_name(name)
        return _model_card(name)

    @app.post("/v1/chat/completions", response_model=None)
    async def complete(request: ChatCompletionRequest) -> dict[str, Any] | StreamingResponse:
        """Answer a conversation: 404 for another model name, 400 for what is not supported or does not fit."""
        _check_name(request.model)
        answer = _prepare(request, chat_format, engine.context_tokens)
        if request.stream:
            return StreamingResponse(_start_stream(engine, answer), media_type="text/event-stream")

        return _completion(answer, await _generate(answer))

    @app.post("/v1/completions")
    async def continue_tokens(request: CompletionRequest) -> dict[str, Any]:
        """Continue token ids: 404 for another model name, 400 for what is not supported or does not fit."""
        _check_name(request.model)
        request.check(len(chat_format.tokenizer))
        text = AnswerText(
            chat_format.tokenizer,
            stops=request.stop or (),
            keep_stop=bool(request.include_stop_str_in_output),
            may_call=False,
        )
        sampling = _sampling(request, request.max_tokens)
        answer = _answer(request, request.prompt, sampling, text)
        return _text_completion(answer, await _generate(answer))

    async def _generate(answer: _Answer) -> Generation:
        watch = _stop_watch(answer.text) if answer.request.stop else None
        future = engine.generate(answer.prompt, answer.sampling, watch)
        return await asyncio.wrap_future(future)

    def _check_name(name: str) -> None:
        if name != served_name():
            raise HTTPException(404, f"model {name!r} is not served; {served_name()!r} is.")

    return app


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "deepsearch-rl"}


def _prepare(
    request: ChatCompletionRequest, chat_format: ChatFormat, context_tokens: int
) -> _Answer:
    """Render a request; raise RequestError, ConversationError or ValueError if it cannot be answered."""
    check_support(request)
    messages = [message.for_template() for message in request.messages]
    continues = bool(request.continue_final_message)
    prompt = chat_format.prompt_ids(
        messages, request.tools if request.may_call else None, continues
    )

    max_tokens = request.token_limit or max(1, context_tokens - len(prompt))
    text = AnswerText(
        chat_format.tokenizer,
        stops=request.stop or (),
        keep_stop=bool(request.include_stop_str_in_output),
        in_thought=chat_format.opens_thought(prompt, messages[-1]["content"] if continues else ""),
        may_call=request.may_call,
    )
    return _answer(request, prompt, _sampling(request, max_tokens), text)


def _sampling(
    request: ChatCompletionRequest | CompletionRequest, max_tokens: int
) -> SamplingParams:
    seed = secrets.randbits(63) if request.seed is None else request.seed
    temperature = 1.0 if request.temperature is None else request.temperature
    return SamplingParams(temperature, max_tokens, seed)


def _answer(
    request: ChatCompletionRequest | CompletionRequest,
    prompt: list[int],
    sampling: SamplingParams,
    text: AnswerText,
) -> _Answer:
    kind = "chatcmpl" if isinstance(request, ChatCompletionRequest) else "cmpl"
    id_ = f"{kind}-{uuid.uuid4().hex}"
    return _Answer(request, prompt, sampling, text, id_, int(time.time()))


def _stop_watch(text: AnswerText) -> Watch:
    def watch(token: int, _logprob: float) -> bool:
        return text.add(token)

    return watch


def _completion(answer: _Answer, generation: Generation) -> dict[str, Any]:
    """Return the reply to a request that is not streamed."""
    answer.text.finish(generation.token_ids)
    message = answer.text.message()
    tokens = _token_logprobs(generation.token_ids, generation.logprobs)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": answer.finish_reason(generation, message),
        "stop_reason": answer.text.stop_string,
        "logprobs": {"content": tokens} if answer.request.logprobs else None,
    }
    return answer.head("chat.completion") | {"choices": [choice], "usage": answer.usage(generation)}


def _text_completion(answer: _Answer, generation: Generation) -> dict[str, Any]:
    """Return the reply to a request that continues tokens."""
    answer.text.finish(generation.token_ids)
    tokens = {
        "tokens": [f"token_id:{token}" for token in generation.token_ids],
        "token_logprobs": list(generation.logprobs),
    }
    choice = {
        "index": 0,
        "text": answer.text.text,
        "finish_reason": generation.finish_reason,
        "stop_reason": answer.text.stop_string,
        "logprobs": None if answer.request.logprobs is None else tokens,
    }
    return answer.head("text_completion") | {"choices": [choice], "usage": answer.usage(generation)}


def _token_logprobs(token_ids: Sequence[int], logprobs: Sequence[float]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for token, logprob in zip(token_ids, logprobs, strict=True):
        # vLLM's spelling with --return-tokens-as-token-ids, so that a trainer reads one form.
        name = f"token_id:{token}"
        entries.append({"token": name, "logprob": logprob, "bytes": None, "top_logprobs": []})

    return entries


_Step: TypeAlias = tuple[int, float, str]
"""A token, its log-probability, and the content that it completes."""


def _start_stream(engine: Engine, answer: _Answer) -> AsyncIterator[str]:
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
    answer: _Answer, steps: "asyncio.Queue[_Step | None]", result: "Future[Generation]"
) -> AsyncIterator[str]:
    """Yield the events of an answer while it is drawn; a client that goes away cancels it."""
    try:
        yield _event(_chunk(answer, {"role": "assistant", "content": ""}))
        while (step := await steps.get()) is not None:
            token, logprob, content = step
            logprobs = _token_logprobs([token], [logprob]) if answer.request.logprobs else None

            # A token may complete no character, and then has nothing to show.
            if content or logprobs:
                delta = {"content": content} if content else {}
                yield _event(_chunk(answer, delta, logprobs=logprobs))

        for event in _end_of_stream(answer, result):
            yield event
    finally:
        result.cancel()


def _end_of_stream(answer: _Answer, result: "Future[Generation]") -> Iterator[str]:
    """Yield what follows the last token: the rest of the text, the calls, the finish reason and the usage."""
    try:
        generation = result.result()
    except (CancelledError, Exception) as error:  # noqa: BLE001 - the stream's reader gets it
        yield _event(_error_body(_named(error), "server_error"))
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
    answer: _Answer,
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


def _error_body(problem: str, kind: str, field: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form, from which clients read the message and the field."""
    return {"error": {"message": problem, "type": kind, "param": field, "code": None}}


def _named(error: BaseException) -> str:
    """Return an error's text, with the kind of an error that was not written for a reader."""
    if isinstance(error, CancelledError):
        return "the server is stopping."
    return str(error) if isinstance(error, DeepsearchError) else f"{type(error).__name__}: {error}"


def _add_error_replies(app: FastAPI) -> None:
    """Answer every error in OpenAI's form: 400 for what a request asks, 500 with its name for what failed here."""

    def refuse(problem: str, field: str | None = None, status: int = 400) -> JSONResponse:
        return JSONResponse(_error_body(problem, "invalid_request_error", field), status)

    @app.exception_handler(RequestValidationError)
    async def unreadable(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        return refuse(f"{field}: {first['msg']}" if field else str(first["msg"]), field or None)

    @app.exception_handler(RequestError)
    async def unsupported(_request: Request, error: RequestError) -> JSONResponse:
        return refuse(str(error), error.field)

    @app.exception_handler(ConversationError)
    @app.exception_handler(ContextOverflowError)
    async def unanswerable(_request: Request, error: ValueError) -> JSONResponse:
        return refuse(str(error))

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def other(_request: Request, error: HTTPException) -> JSONResponse:
        return refuse(str(error.detail), status=error.status_code)

    @app.exception_handler(DeepsearchError)
    @app.exception_handler(Exception)  # the log has its traceback, too
    async def failed(_request: Request, error: Exception) -> JSONResponse:
        _LOG.error("a request failed: %s", _named(error))
        return JSONResponse(_error_body(_named(error), "server_error"), 500)


def _server(app: FastAPI) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))


@contextmanager
def serve_in_thread(app: FastAPI) -> Iterator[int]:
    """Serve on a free loopback port from a thread of this process until the end of the block; yield the port."""
    server = _server(app)
    with socket.create_server((LOOPBACK, 0)) as listener:
        # Accepted connections inherit this; asyncio sets it only on sockets that know their
        # protocol, as an inherited one does. Without it every answer waits 40 ms for the client's
        # delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(
            target=server.run, args=([listener],), name="chat-server", daemon=True
        )
        thread.start()

        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def main() -> None:
    """Serve a model folder, with an adapter added to its weights, on the inherited socket until told to stop."""
    descriptor, folder, name, slots, context_tokens, *adapters = sys.argv[1:]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    for adapter in adapters:
        from peft import PeftModel  # noqa: PLC0415 - takes seconds, and whole models do not need it

        adapted: Any = PeftModel.from_pretrained(model, adapter)
        model = adapted.merge_and_unload()

    app = chat_app(
        Engine(model.eval(), int(slots), int(context_tokens)),
        load_chat_format(Path(folder)),
        lambda: name,
    )
    with socket.socket(fileno=int(descriptor)) as listener:
        _server(app).run([listener])


if __name__ == "__main__":
    main()
