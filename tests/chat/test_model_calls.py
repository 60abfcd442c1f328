"""One call of a model server, from the request to the completion, and what it logs."""

import asyncio
import base64
import logging
import time
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest

from deepsearch_rl.chat.client import complete, open_client
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.request_options import RequestOptions
from deepsearch_rl.core.errors import EndpointError
from tests.agent.conftest import ANSWER, KEY, ChatServer, Send, completion, response


def ask(endpoint: Endpoint, timeout_s: float = 20.0) -> Completion:
    messages = [{"role": "user", "content": "Who?"}]

    async def once() -> Completion:
        async with open_client(endpoint, timeout_s) as client:
            return await complete(client, endpoint, messages=messages, max_tokens=9)

    return asyncio.run(once())


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepsearch_rl.chat.client.FIRST_WAIT_S", 0.001)


def drip(piece: bytes, kind: str = "application/json") -> Send:
    """Makes what sends a piece again and again and never ends."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", kind)
        handler.end_headers()
        with suppress(OSError):
            for _ in range(300):
                handler.wfile.write(piece)
                time.sleep(0.05)

    return send


@pytest.mark.parametrize("status", [429, 200])
def test_no_secret_that_a_server_repeats_reaches_the_log(
    chat_server: ChatServer, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """A full server and a failed generation are logged, and asked again."""
    login = "somebody:pass-word"
    said = f"{KEY} of {base64.b64encode(login.encode()).decode()} for {login}"
    body = {"error": {"message": f"the limit of {said} is reached"}}
    chat_server.script.append(response(body, status, **{"retry-after-ms": "1"}))
    chat_server.script.append(completion(ANSWER))

    address = chat_server.url.replace("://", f"://{login}@")
    endpoint = replace(chat_server.endpoint, base_url=address)
    with caplog.at_level(logging.DEBUG, "deepsearch_rl"):
        assert ask(endpoint).message.text == ANSWER
    assert "the limit of *** of *** for *** is reached" in caplog.text


@pytest.mark.slow
def test_a_server_that_sends_a_blank_now_and_then_is_given_no_more_time_than_one_that_hangs(
    chat_server: ChatServer,
) -> None:
    chat_server.script += [drip(b" "), completion(ANSWER)]
    assert ask(chat_server.endpoint, 0.4).message.text == ANSWER


@pytest.mark.slow
def test_a_stream_of_empty_events_ends_when_the_time_of_a_call_is_over(
    chat_server: ChatServer,
) -> None:
    chat_server.script.append(drip(b": wait\n\n", "text/event-stream"))
    streamed = replace(chat_server.endpoint, options=RequestOptions(stream=True))
    with pytest.raises(EndpointError, match="timed out after"):
        ask(streamed, 0.2)
