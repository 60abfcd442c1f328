"""Errors of the chat server in OpenAI's form."""

import logging
from concurrent.futures import CancelledError
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from deepsearch_rl.chat.chat_format import ConversationError
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.serve.chat_request import (
    RequestError,
)
from deepsearch_rl.serve.engine import (
    ContextOverflowError,
)

_LOG = logging.getLogger(__name__)

# Nobody reads it; nginx logs it for a client that has left
CLIENT_LEFT = 499


class ClientLeftError(Exception):
    """The client of a request has gone away before its answer."""


def error_body(problem: str, kind: str, field: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form, from which clients read the message and the field."""
    return {"error": {"message": problem, "type": kind, "param": field, "code": None}}


def error_text(error: BaseException) -> str:
    """Return an error's text, with the kind of an error that was not written for a reader."""
    if isinstance(error, CancelledError):
        return "the server is stopping."
    return str(error) if isinstance(error, DeepsearchError) else f"{type(error).__name__}: {error}"


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
