"""MCP over HTTP for clients that do not accept both kinds of answer.

The protocol wants clients to accept JSON and event streams. Some send ``Accept: text/event-stream``
alone, or no Accept at all, and the library refuses them with 406. Here an answer is one JSON text,
which an event stream can carry as its only event.
"""

import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

JSON = "application/json"
EVENTS = "text/event-stream"
_WEIGHT_ZERO = re.compile(r"q\s*=\s*0(\.0*)?")


class AnyAccept:
    """An application before an MCP application that answers in JSON: it answers in what the client accepts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; one that accepts neither JSON nor events is left to the library to refuse."""
        kinds = _accepted(Headers(scope=scope).getlist("accept"))

        if kinds & {JSON, "application/*", "*/*"}:
            await self._app(_accepting(scope, f"{JSON}, {EVENTS}"), receive, send)
        elif kinds & {EVENTS, "text/*"}:
            await self._app(_accepting(scope, f"{JSON}, {EVENTS}"), receive, EventSend(send))
        else:
            await self._app(scope, receive, send)


def _accepted(headers: Sequence[str]) -> set[str]:
    """Return the media types of all Accept headers, without those of weight 0; none at all means any."""
    text = ",".join(headers).lower()

    # Absent, empty, or nothing but commas
    if not text.replace(",", "").strip():
        return {"*/*"}

    kinds: set[str] = set()
    for media_range in text.split(","):
        kind, *parameters = map(str.strip, media_range.split(";"))
        if kind and not any(map(_WEIGHT_ZERO.fullmatch, parameters)):
            kinds.add(kind)

    return kinds


def _accepting(scope: Scope, accept: str) -> Scope:
    others = [(name, value) for name, value in scope["headers"] if name != b"accept"]
    return {**scope, "headers": [*others, (b"accept", accept.encode())]}


class EventSend:
    """A ``send`` that turns a successful JSON answer into an event stream of one event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        # Of a JSON answer, until its body is complete
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        """Send a message of the answer, or keep it until the answer is complete."""
        if (
            message["type"] == "http.response.start"
            and message["status"] == 200
            and _is_json(message)
        ):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_event(self._start)

    async def _send_event(self, start: Message) -> None:
        # Line breaks of JSON lie between its tokens, where blanks may stand as well.
        event = b"event: message\ndata: %b\n\n" % b" ".join(self._body.splitlines())
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["content-type"] = EVENTS
        headers["content-length"] = str(len(event))
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": event})


def _is_json(start: Message) -> bool:
    return Headers(raw=list(start["headers"])).get("content-type", "").startswith(JSON)
