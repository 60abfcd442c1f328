"""Connections of the retrieval server, with limits: how many there are, how long a request's head is and takes.

uvicorn has no limit of its own that helps here: its ``limit_concurrency`` refuses every request once
there are too many connections, those of clients that work as well, and nothing bounds a head. Here
a connection too many gets its refusal before anything of it is read, and the others go on. One that
sends no request makes room for others after a while.

A request may ask for another protocol, as ``curl --http2`` does. A server need not know it (RFC
9110, section 7.8), and this one answers in HTTP/1.1. The parser takes what follows such a head for
bytes of the other protocol, so the head is read once more without that wish.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httptools
from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_LOG = logging.getLogger(__name__)

# More than the rollouts that run at once in a large training step, each of which holds a connection
MAX_CONNECTIONS = 2048

# What the kernel holds of a connection (Linux: twice of it), and so what one reading of all may
# bring in
RECEIVE_BYTES = 64 * 2**10

# Open files that are no connections: the index, the log, the listening socket
RESERVED_FILES = 64

MAX_HEAD_BYTES = 64 * 2**10
HEAD_TIMEOUT_S = 30.0

# How long a refused client may take to read why, because a connection that is closed at once may
# lose the answer; and how many refused connections may wait for that
REFUSAL_S = 2.0
MAX_REFUSALS = 256


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    """How many connections a process may have, and those that are being refused."""

    connections: int
    refused: "set[LimitedConnection]" = field(default_factory=set)

    @classmethod
    def of_files(cls, open_files: int) -> Self:
        """Return the limit of a process that may have so many open files."""
        return cls(max(1, min(MAX_CONNECTIONS, open_files - MAX_REFUSALS - RESERVED_FILES)))


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's connection; one beyond the limit is answered 503, a head that is too long 431."""

    def __init__(self, *arguments: Any, limit: ConnectionLimit, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit = limit
        # Where in a request the last byte was
        self._place: Literal["between", "head", "body"] = "between"
        self._head_bytes = 0
        # Whether a request ended in the bytes that are being read
        self._message_ended = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or refuse it where there are enough."""
        if len(self.connections) < self._limit.connections:
            super().connection_made(transport)
            self._expect_head()
            return

        self.transport = transport
        if not self._limit.refused:
            _LOG.warning(
                "%d connections are open, so further ones are refused", len(self.connections)
            )
        # A refusal takes an open file until it is sent
        if len(self._limit.refused) >= MAX_REFUSALS:
            transport.abort()
            return
        self._limit.refused.add(self)
        problem = (
            f"the server has {self._limit.connections} connections, and no more may be open; "
            "close some, or try again."
        )
        self._refuse(b"503 Service Unavailable", problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._limit.refused.discard(self)
        self._settle_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what a client sends; of a refused one, drop it."""
        if self.transport.is_closing() or self in self._limit.refused:
            return
        self._message_ended = False
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

        if self._place != "body" and not self.transport.is_closing():
            self._limit_head(0 if self._message_ended else len(data))

    def _parse(self, data: bytes) -> None:
        """Have the parser read bytes; raise HttpParserError where they are no HTTP."""
        # One read may bring several requests, each with such a head
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._asks_for_upgrade():
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _asks_for_upgrade(self) -> bool:
        """Return whether the request whose head was read last names another protocol; CONNECT has no other form."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        """Return the head that was read last without what asks for another protocol."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]

        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                kept = [option for option in options if option.lower() != b"upgrade"]
                lines.append(b"connection: " + b", ".join(kept))
            elif name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))

        return b"\r\n".join([*lines, b"", b""])

    def _limit_head(self, size_bytes: int) -> None:
        """Count bytes of a head that is not complete, and bound its size and its time."""
        self._head_bytes += size_bytes
        is_too_long = self._head_bytes > MAX_HEAD_BYTES

        if self._is_answering():
            # A refusal would stand in the middle of the answer before it
            if is_too_long:
                self.flow.pause_reading()
        elif is_too_long:
            problem = f"the head of a request may have at most {MAX_HEAD_BYTES} bytes."
            self._limit.refused.add(self)
            self._refuse(b"431 Request Header Fields Too Large", problem)
        else:
            # Whatever came, uvicorn no longer counts the time of an idle connection
            self._expect_head()

    def _is_answering(self) -> bool:
        """Return whether a request waits for its answer, or for the rest of it."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._place = "head"
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Go on to the body."""
        if self._asks_for_upgrade():
            return
        self._place = "body"
        self._head_bytes = 0
        self._settle_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Go on to the next request."""
        if self._asks_for_upgrade():
            return
        self._place = "between"
        self._message_ended = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Drop what a request's application did not read, which would stay until the next request."""
        if self.cycle.response_complete:
            self.cycle.body = bytearray()
        super().on_response_complete()

        # A head that began during the answer: its time begins now
        if self._place == "head" and not self._is_answering() and not self.transport.is_closing():
            self._expect_head()

    def _expect_head(self) -> None:
        """Have a head end in time."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _settle_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: bytes, problem: str) -> None:
        """Answer a connection that ends, and close it once the client can have read the answer."""
        body = to_json({"detail": problem})
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nretry-after: 1\r\n"
            b"connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(REFUSAL_S, self.transport.abort)
