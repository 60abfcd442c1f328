"""An OpenAI-compatible chat server around a ``TransformersEngine``, with vLLM's conventions.

    POST /v1/chat/completions   non-streaming; tools, temperature, max_tokens, logprobs
    GET  /v1/models             the one name that is served
    GET  /health                200 once requests are answered

Requests that wait at the same time and share their sampling settings are generated as one batch. As with vLLM, an
answer whose tool calls parse carries them as ``tool_calls`` with the text before them as ``content`` (None where
there is none), a tool call that does not parse stays in ``content`` as it is, and every sampled token is reported as
``token_id:N``, so that a trainer reads the very tokens that were sampled.
"""

import argparse
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from swift.infer_engine import TransformersEngine

from deepsearch_rl.agent.endpoint import Endpoint
from deepsearch_rl.errors import EndpointError
from deepsearch_rl.serving.swift import TransformersConfig
from deepsearch_rl.serving.transformers_engine import infer_request, load_engine, request_config

START_TIMEOUT_S = 60.0
TOOL_CALL_TAG = "<tool_call>"


class ChatCompletionRequest(BaseModel):
    """The fields of a Chat Completions request that are acted on; others are ignored, as other servers do."""

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    max_tokens: int = Field(default=256, ge=1)
    logprobs: bool = False


def chat_app(engine: TransformersEngine, served_name: Callable[[], str], context_tokens: int) -> FastAPI:
    """The server's routes.

    Args:
        engine: generates; shared by all requests.
        served_name: the model name that requests must use now. RL changes it with every step (``name@step``), so
            that a client that still asks for the previous policy is told so (404) instead of getting the new one.
        context_tokens: longest prompt that is accepted.
    """
    app = FastAPI(title="deepsearch-rl model server")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": served_name(), "object": "model", "owned_by": "deepsearch-rl"}]}

    @app.post("/v1/chat/completions")
    async def complete(request: ChatCompletionRequest) -> dict[str, Any]:
        if request.model != served_name():
            raise HTTPException(404, f"model {request.model!r} is not served; {served_name()!r} is.")
        prompt = _prompt_tokens(engine, request)
        if prompt + request.max_tokens > context_tokens:
            message = f"the prompt has {prompt} tokens and max_tokens is {request.max_tokens}"
            raise HTTPException(400, f"{message}, more than the {context_tokens} tokens of this server's context.")
        response = await engine.infer_async(infer_request(request), request_config(request))
        return _completion(request.model, response)

    return app


def _prompt_tokens(engine: TransformersEngine, request: ChatCompletionRequest) -> int:
    try:
        return len(engine.template.encode(infer_request(request))["input_ids"])
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise HTTPException(400, f"the conversation cannot be rendered: {error}") from error


def _completion(model: str, response: Any) -> dict[str, Any]:
    choice = response.choices[0]
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": _message(choice.message),
                "finish_reason": _finish_reason(choice),
                "logprobs": _logprobs(choice),
            }
        ],
        "usage": dataclasses.asdict(response.usage),
    }


def _finish_reason(choice: Any) -> str:
    return "tool_calls" if choice.finish_reason == "stop" and _parsed_calls(choice.message) else choice.finish_reason


def _parsed_calls(message: Any) -> list[Any]:
    """The message's tool calls if they are calls in the model's own format with an object of arguments, else none."""
    calls = message.tool_calls or []
    if TOOL_CALL_TAG not in message.content:
        return []
    return calls if len(calls) == message.content.count(TOOL_CALL_TAG) else []


def _message(message: Any) -> dict[str, Any]:
    calls = _parsed_calls(message)
    if not calls:
        return {"role": "assistant", "content": message.content}
    text = message.content.partition(TOOL_CALL_TAG)[0].strip()
    functions = [{"name": call.function.name, "arguments": call.function.arguments} for call in calls]
    return {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function} for function in functions
        ],
    }


def _logprobs(choice: Any) -> dict[str, Any] | None:
    if choice.logprobs is None:
        return None
    tokens = zip(choice.logprobs["content"], choice.token_ids, strict=True)
    return {"content": [{**token, "token": f"token_id:{token_id}", "top_logprobs": []} for token, token_id in tokens]}


@contextmanager
def serve_in_thread(app: FastAPI, model: str, host: str = "127.0.0.1", port: int = 0) -> Iterator[Endpoint]:
    """Run the server in a thread of this process and stop it at the end of the block; port 0 takes a free one.

    Raises:
        EndpointError: the port is in use, or the server does not start.
    """
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=_run, args=(server,), name="chat-server", daemon=True)
    thread.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise EndpointError(f"the model server could not listen on {host}:{port}; is the port in use?")
        time.sleep(0.01)
    bound = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Endpoint(base_url=f"http://{host}:{bound}/v1", model=model, api_key="EMPTY")
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def _run(server: uvicorn.Server) -> None:
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that it could not bind; `serve_in_thread` sees the thread end
        server.started = False


def main() -> None:
    """Serve a model folder until told to stop: ``python -m deepsearch_rl.serving.chat_server FOLDER --port N ...``."""
    parser = argparse.ArgumentParser(description="Serve a model folder over the OpenAI API on loopback.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True, help="model name that requests use")
    parser.add_argument("--config", type=TransformersConfig.model_validate_json, required=True, help="JSON settings")
    arguments = parser.parse_args()
    config: TransformersConfig = arguments.config
    torch.manual_seed(config.seed)
    engine = load_engine(arguments.folder, config.template, config.max_batch_size)
    app = chat_app(engine, lambda: arguments.name, config.context_tokens)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()
