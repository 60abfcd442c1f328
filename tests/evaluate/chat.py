"""A chat-completions endpoint on a loopback port whose answers a test decides."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from deepsearch_rl.chat.endpoint import Endpoint
from tests.search_servers import serve_app

KEY = "sk-secret-of-the-test"


@dataclass
class ChatEndpoint:
    """``reply`` maps a request's body to a message, or to a status code that the endpoint fails with."""

    reply: Callable[[dict[str, Any]], dict[str, Any] | int]
    requests: list[dict[str, Any]] = field(default_factory=list)
    choices: int = 1
    finish_reason: str = "stop"
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("", "scripted", KEY))

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> JSONResponse:
            body = await request.json()
            self.requests.append(body)
            message = self.reply(body)
            if isinstance(message, int):
                error = {"error": {"message": f"failed for {request.headers['authorization']}"}}
                return JSONResponse(error, message, headers={"retry-after-ms": "1"})
            choice = {
                "index": 0,
                "finish_reason": self.finish_reason,
                "message": {"role": "assistant", **message},
            }
            usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
            return JSONResponse(
                {
                    "id": "c",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "m",
                    "choices": [choice] * self.choices,
                    "usage": usage,
                }
            )

        return app


@contextmanager
def serve_chat(reply: Callable[[dict[str, Any]], dict[str, Any] | int]) -> Iterator[ChatEndpoint]:
    """Serve ``reply`` until the block ends."""
    chat = ChatEndpoint(reply)
    with serve_app(chat.app()) as url:
        chat.endpoint = Endpoint(f"{url}/v1", "scripted", KEY)
        yield chat


def says(content: str) -> dict[str, Any]:
    return {"content": content}


def searches(query: str) -> dict[str, Any]:
    function = {"name": "retrieve", "arguments": f'{{"query": "{query}"}}'}
    return {
        "content": None,
        "tool_calls": [{"id": "random", "type": "function", "function": function}],
    }
