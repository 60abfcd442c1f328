"""An OpenAI-compatible chat server around an :class:`Engine`, with vLLM's conventions.

    POST /v1/chat/completions   non-streaming; tools, temperature, max_tokens, seed, logprobs, continue_final_message
    GET  /v1/models             the one name that is served
    GET  /health                200 once requests are answered

    python -m deepsearch_rl.serving.chat_server SOCKET FOLDER NAME SLOTS CONTEXT_TOKENS [ADAPTER]   (for `launch`)

Every sampled token is reported as ``token_id:N``, so that a trainer reads the very tokens that were sampled.
"""

import asyncio
import secrets
import socket
import sys
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
from pydantic import BaseModel, Field
from transformers import AutoModelForCausalLM

from deepsearch_rl.processes import LOOPBACK
from deepsearch_rl.serving.chat_format import ChatFormat, ConversationError, assistant_message, load_chat_format
from deepsearch_rl.serving.engine import Engine, Generation, Sampling


class ChatCompletionRequest(BaseModel):
    """The fields of a Chat Completions request that are used; others are ignored, as other servers do."""

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    max_tokens: int = Field(default=256, ge=1)
    seed: int | None = Field(default=None, ge=0, description="drawn at random if not given")
    continue_final_message: bool = Field(default=False, description="the answer goes on where the last message ends")
    logprobs: bool | None = False


def chat_app(engine: Engine, chat_format: ChatFormat, served_name: Callable[[], str]) -> FastAPI:
    """Return the server's routes.

    ``served_name`` gives the model name that requests must use now. RL changes it with every step (``name@step``), so
    that a client that still asks for the previous policy gets 404 instead of an answer of the new one.
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
        """Answer a conversation: 404 for another model name, 400 for what cannot be rendered or does not fit."""
        if request.model != served_name():
            raise HTTPException(404, f"model {request.model!r} is not served; {served_name()!r} is.")
        seed = secrets.randbits(63) if request.seed is None else request.seed
        sampling = Sampling(request.temperature, request.max_tokens, seed)
        try:
            prompt = chat_format.prompt_ids(request.messages, request.tools, request.continue_final_message)
            generation = await asyncio.wrap_future(engine.generate(prompt, sampling))
        except (ConversationError, ValueError) as error:
            raise HTTPException(400, str(error)) from error
        text = chat_format.tokenizer.decode(list(generation.token_ids), skip_special_tokens=True)
        return _completion(request, len(prompt), generation, str(text))

    return app


def _completion(
    request: ChatCompletionRequest, prompt_tokens: int, generation: Generation, text: str
) -> dict[str, Any]:
    message = assistant_message(text)
    called = generation.finish_reason == "stop" and "tool_calls" in message
    tokens = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(generation.token_ids, generation.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if called else generation.finish_reason,
        "logprobs": {"content": tokens} if request.logprobs else None,
    }
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(tokens),
            "total_tokens": prompt_tokens + len(tokens),
        },
    }


def _server(app: FastAPI) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))


@contextmanager
def serve_in_thread(app: FastAPI) -> Iterator[int]:
    """Serve on a free loopback port from a thread of this process until the end of the block; yield the port."""
    server = _server(app)
    with socket.create_server((LOOPBACK, 0)) as listener:
        # Accepted connections inherit this; asyncio sets it only on sockets that know their protocol, as an inherited
        # one does. Without it every answer waits 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=server.run, args=([listener],), name="chat-server", daemon=True)
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
    app = chat_app(Engine(model.eval(), int(slots), int(context_tokens)), load_chat_format(Path(folder)), lambda: name)
    with socket.socket(fileno=int(descriptor)) as listener:
        _server(app).run([listener])


if __name__ == "__main__":
    main()
