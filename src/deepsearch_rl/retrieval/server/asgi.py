"""The little of HTTP that the routes need: a body with a limit, an answer, and a request handed on.

A framework's request and response objects would cost a cached answer more time than all the rest of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from pydantic_core import to_json

from deepsearch_rl.retrieval.server.bodies import MAX_BODY_BYTES, RequestError
from deepsearch_rl.retrieval.server.metrics import Metrics

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = b"application/json"
BODY_TIMEOUT_S = 30
"""How long a client may take to send a body: one that stops halfway must not be waited for forever."""
_Header: TypeAlias = tuple[bytes, bytes]


class CountedSend:
    """A ``send`` that counts the request as soon as its answer begins; afterwards ``begun`` is set."""

    __slots__ = ("_metrics", "_route", "_send", "_started", "begun")

    def __init__(self, send: Send, route: str, metrics: Metrics) -> None:
        self._send, self._route, self._metrics = send, route, metrics
        self._started = time.perf_counter()
        self.begun = False

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.begun = True
            self._metrics.count_request(self._route, message["status"], time.perf_counter() - self._started)
        await self._send(message)


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body of a request.

    Raises:
        RequestError: 413 if it is longer than ``MAX_BODY_BYTES``, 415 if it is said to be something else than JSON,
            408 if it does not arrive in time.
    """
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    content_type = headers.get(b"content-type", JSON).partition(b";")[0].strip().lower()
    if content_type != JSON and not content_type.endswith(b"+json"):
        raise RequestError(415, "the body must be JSON: send the header `Content-Type: application/json`.")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise _too_long()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _receive_all(receive)
    except TimeoutError as error:
        raise RequestError(408, f"the body did not arrive in {BODY_TIMEOUT_S} s.") from error


async def _receive_all(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(400, "the body ended early.")
        part = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > MAX_BODY_BYTES:
            raise _too_long()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_long() -> RequestError:
    return RequestError(413, f"the body may have at most {MAX_BODY_BYTES} bytes; send several requests.")


async def respond(
    send: Send, body: bytes, status: int = 200, content_type: bytes = JSON, headers: tuple[_Header, ...] = ()
) -> None:
    """Send a whole answer."""
    length = str(len(body)).encode()
    written = [(b"content-type", content_type), (b"content-length", length), *headers]
    await send({"type": "http.response.start", "status": status, "headers": written})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, status: int, detail: str, headers: tuple[_Header, ...] = ()) -> None:
    """Send ``{"detail": detail}``."""
    await respond(send, to_json({"detail": detail}), status, headers=headers)


def answering_once(send: Send) -> Send:
    """A ``send`` that takes the beginning of a second answer for the end of the first, and drops the rest of it.

    An event stream that is cut off when the server stops would otherwise answer once more, in the middle of itself.
    """
    begun = ended = False

    async def send_one_answer(message: Message) -> None:
        nonlocal begun, ended
        if ended:
            return
        if begun and message["type"] == "http.response.start":
            message = {"type": "http.response.body", "body": b""}
        begun = True
        ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    return send_one_answer


def replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that begins with a body that was read already."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again
