"""Replies of status 200 that are cut or no completion are asked for again, whole ones and streams alike."""

import asyncio
import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest

from deepsearch_rl.chat.client import complete, open_client
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.model_failures import model_failure
from deepsearch_rl.chat.request_options import USUAL, RequestOptions
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import StopReason
from tests.agent.conftest import ANSWER, ChatServer, Send, completion, response

EVENTS = "text/event-stream"
MESSAGES = [{"role": "user", "content": "Who?"}]


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepsearch_rl.chat.client.FIRST_WAIT_S", 0.001)


def ask(server: ChatServer, options: RequestOptions = USUAL, timeout_s: float = 20.0) -> Completion:
    async def once() -> Completion:
        endpoint = replace(server.endpoint, options=options)
        async with open_client(endpoint, timeout_s) as client:
            return await complete(client, endpoint, messages=MESSAGES, max_tokens=9)

    return asyncio.run(once())


def events(*pieces: object) -> bytes:
    """The body of a stream; bytes are events as they are."""
    body = b""
    for piece in pieces:
        data = piece if isinstance(piece, bytes) else json.dumps(piece).encode()
        body += b"data: " + data + b"\n\n"
    return body


def piece(delta: object, finish_reason: str | None = None, **fields: object) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return head | {"choices": [choice]} | fields


FIRST = piece({"role": "assistant", "content": "<ans"})
CALL = {"id": "c1", "type": "function", "function": {"name": "retrieve", "arguments": "{"}}
OVERLOADED = {"error": {"message": "overloaded", "code": 529}}


def cut_stream(handler: BaseHTTPRequestHandler) -> None:
    """Promises a longer stream than it sends."""
    body = events(FIRST)
    handler.send_response(200)
    handler.send_header("content-type", EVENTS)
    handler.send_header("content-length", str(len(body) + 100))
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True


WHOLE = {
    "cut JSON": response(b'{"choices": [{"message": {"content": "<answer>'),
    "an empty body": response(b""),
    "a page": response("<html>sign in</html>", kind="text/html"),
    "no UTF-8": response(b'{"choices": "\xc3\x28"}'),
    "brackets that are nested too deep": response(b"[" * 100_000),
    "null": response(b"null"),
}
STREAMS = {
    "a lost connection": cut_stream,
    "cut JSON in an event": response(events(FIRST, b'{"choices": [{"delta": {'), kind=EVENTS),
    "an error in an event": response(events(FIRST, OVERLOADED), kind=EVENTS),
    "choices that are null": response(events(FIRST, piece({}, choices=None)), kind=EVENTS),
    "a call that is cut": response(
        events(piece({"tool_calls": [CALL]}), piece({"tool_calls": [CALL]})), kind=EVENTS
    ),
}


@pytest.mark.parametrize("send", WHOLE.values(), ids=WHOLE)
def test_a_reply_that_is_cut_or_no_json_is_asked_for_again(
    chat_server: ChatServer, send: Send
) -> None:
    chat_server.script += [send, completion(ANSWER)]
    assert ask(chat_server).message.text == ANSWER
    assert len(chat_server.requests) == 2


@pytest.mark.parametrize("send", STREAMS.values(), ids=STREAMS)
def test_a_stream_that_breaks_is_asked_for_again(chat_server: ChatServer, send: Send) -> None:
    whole = events(FIRST, piece({"content": "wer>"}, "stop"))
    chat_server.script += [send, response(whole, kind=EVENTS)]
    assert ask(chat_server, RequestOptions(stream=True)).message.text == "<answer>"
    assert len(chat_server.requests) == 2


@pytest.mark.slow
def test_a_stream_that_hangs_in_the_middle_is_asked_for_again(chat_server: ChatServer) -> None:
    def hang(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", EVENTS)
        handler.end_headers()
        handler.wfile.write(events(FIRST))
        handler.wfile.flush()
        chat_server.finish.wait(30)

    whole = events(FIRST, piece({"content": "wer>"}, "stop"))
    chat_server.script += [hang, response(whole, kind=EVENTS)]
    assert ask(chat_server, RequestOptions(stream=True), 0.3).message.text == "<answer>"


@pytest.mark.parametrize(
    ("stream", "send"),
    [(False, response(b"[")), (True, response(events(FIRST, b"["), kind=EVENTS))],
)
def test_a_reply_that_stays_broken_is_an_endpoint_error_after_four_attempts(
    chat_server: ChatServer, send: Send, *, stream: bool
) -> None:
    chat_server.script.append(send)
    with pytest.raises(EndpointError, match=r"not JSON|could not be read"):
        ask(chat_server, RequestOptions(stream=stream))
    assert len(chat_server.requests) == 4


def test_a_prompt_that_an_event_calls_too_long_is_not_sent_again(chat_server: ChatServer) -> None:
    text = "This model's maximum context length is 512 tokens."
    error = {"error": {"message": text, "code": 400}}
    chat_server.script.append(response(events(error), kind=EVENTS))
    with pytest.raises(EndpointError, match="maximum context length") as caught:
        ask(chat_server, RequestOptions(stream=True))
    assert model_failure(caught.value) is StopReason.TOKEN_BUDGET
    assert len(chat_server.requests) == 1
