"""An OpenAI-compatible chat server around an :class:`Engine`, with vLLM's conventions.

    POST /v1/chat/completions   one answer, whole or as a stream; tools, temperature, seed, stop strings, logprobs
    POST /v1/completions        token ids continued; temperature, seed, stop strings, logprobs
    GET  /v1/models             the one name that is served
    GET  /health                200 once requests are answered

:mod:`deepsearch_rl.serve.chat_request` says what a request may ask; everything else is 400 with
the field's name. Every sampled token is reported as ``token_id:N``, so that a trainer reads the
very tokens that were sampled.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from transformers import AutoModelForCausalLM

from deepsearch_rl.chat.chat_format import ChatFormat, ConversationError, load_chat_format
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.hardware import usable_cores
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.serve.chat_answer import (
    AnswerText,
    ChatAnswer,
    completion,
    error_body,
    error_text,
    make_answer,
    sampling_of,
    start_stream,
    text_completion,
)
from deepsearch_rl.serve.chat_request import (
    ChatCompletionRequest,
    CompletionRequest,
    RequestError,
    check_support,
)
from deepsearch_rl.serve.engine import (
    ContextOverflowError,
    Engine,
    Generation,
    Watch,
)
from deepsearch_rl.serve.launch import CpuConfig


def chat_app(engine: Engine, chat_format: ChatFormat, served_name: Callable[[], str]) -> FastAPI:
    """Return the server's routes.

    ``served_name`` gives the model name that requests must use now. RL changes it with every step
    (``name@step``), so that a client that still asks for the previous policy gets 404 instead of an
    answer of the new one.
    """
    app = FastAPI(title="deepsearch-rl model server")
    add_error_replies(app)

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
    async def complete(
        request: ChatCompletionRequest, connection: Request
    ) -> dict[str, Any] | StreamingResponse:
        """Answer a conversation: 404 for another model name, 400 for what is not supported or does not fit."""
        _check_name(request.model)
        answer = _prepare(request, chat_format, engine.context_tokens)
        if request.stream:
            return StreamingResponse(start_stream(engine, answer), media_type="text/event-stream")

        return completion(answer, await _generate(answer, connection))

    @app.post("/v1/completions")
    async def continue_tokens(request: CompletionRequest, connection: Request) -> dict[str, Any]:
        """Continue token ids: 404 for another model name, 400 for what is not supported or does not fit."""
        _check_name(request.model)
        answer = _prepare_continuation(request, chat_format)
        return text_completion(answer, await _generate(answer, connection))

    async def _generate(answer: ChatAnswer, connection: Request) -> Generation:
        # Without stop strings nothing has to be decoded while tokens come
        watch = _stop_watch(answer.text) if answer.request.stop else None
        future = engine.generate(answer.prompt, answer.sampling, watch)
        return await _unless_client_leaves(asyncio.wrap_future(future), connection)

    def _check_name(name: str) -> None:
        if name != served_name():
            raise HTTPException(404, f"model {name!r} is not served; {served_name()!r} is.")

    return app


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "deepsearch-rl"}


def _prepare_continuation(request: CompletionRequest, chat_format: ChatFormat) -> ChatAnswer:
    """Return the answer to begin; raise HTTPException 400 for what is not supported."""
    request.check(len(chat_format.tokenizer))
    text = AnswerText(
        chat_format.tokenizer,
        stops=request.stop or (),
        keep_stop=bool(request.include_stop_str_in_output),
        may_call=False,
    )
    return make_answer(request, request.prompt, sampling_of(request, request.max_tokens), text)


def _prepare(
    request: ChatCompletionRequest, chat_format: ChatFormat, context_tokens: int
) -> ChatAnswer:
    """Render a request; raise RequestError, ConversationError or ValueError if it cannot be answered."""
    check_support(request)
    messages = [message.for_template() for message in request.messages]
    continues = bool(request.continue_final_message)
    prompt = chat_format.prompt_ids(
        messages, request.tools if request.may_call else None, continues
    )

    # As vLLM: without a limit an answer may take what the context has left
    max_tokens = request.token_limit or max(1, context_tokens - len(prompt))
    text = AnswerText(
        chat_format.tokenizer,
        stops=request.stop or (),
        keep_stop=bool(request.include_stop_str_in_output),
        in_thought=chat_format.opens_thought(prompt, messages[-1]["content"] if continues else ""),
        may_call=request.may_call,
    )
    return make_answer(request, prompt, sampling_of(request, max_tokens), text)


async def _unless_client_leaves(
    generation: "asyncio.Future[Generation]", connection: Request
) -> Generation:
    """Return what is generated; cancel it and raise ClientLeftError where its client goes away before."""
    leaving = asyncio.create_task(_client_leaves(connection))
    try:
        await asyncio.wait((generation, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not generation.done():
            raise ClientLeftError
        return generation.result()
    finally:
        leaving.cancel()
        generation.cancel()


async def _client_leaves(connection: Request) -> None:
    while (await connection.receive())["type"] != "http.disconnect":
        pass


def _stop_watch(text: AnswerText) -> Watch:
    def watch(token: int, _logprob: float) -> bool:
        return text.add(token)

    return watch


def _server(app: FastAPI) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Run a server on a socket in a loop of its own until it is told to exit.

    From Python 3.12 on, uvicorn's own ``run`` gives asyncio.run a loop factory; ART has put a function
    without that argument in its place (nest_asyncio).
    """
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve([listener]))


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
            target=_run, args=(server, listener), name="chat-server", daemon=True
        )
        thread.start()

        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def serve_folder(
    listener: socket.socket,
    folder: Path,
    served_name: str,
    config: CpuConfig,
    adapters: Sequence[Path],
) -> None:
    """Serve a model folder, with adapters added to its weights, on a socket until told to stop."""
    torch.set_num_threads(config.threads or usable_cores())
    dtype = getattr(torch, config.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    for adapter in adapters:
        from peft import PeftModel  # noqa: PLC0415 - takes seconds, and whole models do not need it

        # Merged, because the engine reads the model's plain matrices
        adapted: Any = PeftModel.from_pretrained(model, adapter)
        model = adapted.merge_and_unload()

    engine = Engine(model.eval(), config.slots, config.context_tokens)
    app = chat_app(engine, load_chat_format(folder), lambda: served_name)
    _server(app).run([listener])


_LOG = logging.getLogger(__name__)

# Nobody reads it; nginx logs it for a client that has left
CLIENT_LEFT = 499


class ClientLeftError(Exception):
    """The client of a request has gone away before its answer."""


def add_error_replies(app: FastAPI) -> None:
    """Answer every error in OpenAI's form: 400 for what a request asks, 500 with its name for what failed here."""

    def refuse(problem: str, field: str | None = None, status: int = 400) -> JSONResponse:
        return JSONResponse(error_body(problem, "invalid_request_error", field), status)

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

    @app.exception_handler(ClientLeftError)
    async def left(_request: Request, _error: ClientLeftError) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def other(_request: Request, error: HTTPException) -> JSONResponse:
        return refuse(str(error.detail), status=error.status_code)

    @app.exception_handler(DeepsearchError)
    # Starlette raises it again after the reply, so that the log has its traceback, too
    @app.exception_handler(Exception)
    async def failed(_request: Request, error: Exception) -> JSONResponse:
        _LOG.error("a request failed: %s", error_text(error))
        return JSONResponse(error_body(error_text(error), "server_error"), 500)
