"""What an endpoint can send instead of a completion: each ends in a stop reason, none in an exception."""

import json
import socket
import struct
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent

from deepsearch_rl.core.records import StopReason, Trajectory
from tests.agent.conftest import ANSWER, KEY, Answer, Send, response
from tests.agent.conftest import completion as completion_body
from tests.search_servers import serve_app


@pytest.fixture
def rollout(answer: Answer) -> Answer:
    """Runs one rollout and checks that it can be stored."""

    def run(**changes: Any) -> Trajectory:
        trajectory = answer(**changes)
        stored = trajectory.model_dump_json()
        assert Trajectory.model_validate_json(stored) == trajectory
        assert KEY not in stored
        return trajectory

    return run


def completion(**changes: Any) -> Send:
    """Sends a completion with some of its fields replaced."""
    return response(json.loads(completion_body(ANSWER)) | changes)


def said(**message: Any) -> Send:
    """Sends a completion whose message holds these fields."""
    return completion(
        choices=[{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]
    )


def called(function: object) -> Send:
    """Sends a completion with one tool call."""
    return said(content="", tool_calls=[{"id": "1", "type": "function", "function": function}])


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    """Promises a thousand bytes, sends a few, and closes the connection."""
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Drops the connection, unsent data and all."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The handler's files would keep it open
    socket.socket(fileno=handler.connection.detach()).close()
    handler.close_connection = True


def no_http(handler: BaseHTTPRequestHandler) -> None:
    """Speaks something else than HTTP."""
    handler.wfile.write(b"\x00\x01garbage\r\n\r\n")
    handler.close_connection = True


STREAM = (
    b'data: {"choices": [{"delta": {"content": "<ans' + b"\xff\xfe" + b'"}}]}\n\ndata: [DONE]\n\n'
)
GARBAGE: dict[str, Send] = {
    "no JSON": response(f"<html>{KEY}</html>", kind="text/html"),
    "no JSON, said to be": response(KEY.encode()),
    "truncated JSON": response(b'{"choices": [{"message": {"content": "<answer>'),
    "an empty body": response(b""),
    "a number": response(b"7"),
    "null": response(b"null"),
    "an array": response(b"[]"),
    "deeply nested": response(b"[" * 100_000),
    "a stream of events": response(STREAM, kind="text/event-stream"),
    "a stream said to be JSON": response(STREAM),
    "random bytes": response(bytes(range(256)) * 64, kind="application/octet-stream"),
    "invalid UTF-8": response(
        b'{"choices": [{"message": {"role": "assistant", "content": "\xc3\x28"}}'
    ),
    "an error under status 200": response({"error": {"message": f"bad key {KEY}"}}),
    "no choices": completion(choices=[]),
    "choices that are null": completion(choices=None),
    "choices of text": completion(choices="none"),
    "a choice of null": completion(choices=[None]),
    "a choice without message": completion(choices=[{"index": 0, "finish_reason": "stop"}]),
    "a message of null": completion(
        choices=[{"index": 0, "message": None, "finish_reason": "error"}]
    ),
    "a message of text": completion(
        choices=[{"index": 0, "message": ANSWER, "finish_reason": "stop"}]
    ),
    "content of a number": said(content=7),
    "content in parts that are no text": said(
        content=[{"type": "text", "text": ANSWER}, {"type": "image_url"}]
    ),
    "content in parts of text": said(content=[ANSWER]),
    "calls of text": said(content="", tool_calls="retrieve"),
    "a call without function": said(content="", tool_calls=[{"id": "1", "type": "function"}]),
    "a tool name of null": called({"name": None, "arguments": "{}"}),
    "a redirect to itself": response(b"", status=307, location="/v1/chat/completions"),
    "a redirect to nowhere": response(b"", status=302),
    "an unknown status": response(KEY, 799, "text/plain"),
    "teapot": response(KEY, 418, "text/plain"),
    "a body cut off": cut_off,
    "a connection reset": reset,
    "no HTTP at all": no_http,
}


@pytest.mark.slow
@pytest.mark.parametrize("send", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_completion_is_a_model_error_that_says_what_came(
    chat_server: Any, rollout: Answer, send: Send
) -> None:
    chat_server.script.append(send)
    trajectory = rollout()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert trajectory.error
    assert [message.role for message in trajectory.messages] == ["system", "user"]


@pytest.mark.slow
def test_a_failure_after_a_search_keeps_what_came_before(chat_server: Any, rollout: Answer) -> None:
    chat_server.says("", "Silent Harbor")
    chat_server.script.append(reset)
    trajectory = rollout()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert [retrieval.query for retrieval in trajectory.retrievals] == ["Silent Harbor"]


UNPARSABLE: dict[str, Send] = {
    "no JSON": called({"name": "retrieve", "arguments": "query: Silent Harbor"}),
    "cut JSON": called({"name": "retrieve", "arguments": '{"query": "Silent'}),
    "empty arguments": called({"name": "retrieve", "arguments": ""}),
    "a list": called({"name": "retrieve", "arguments": '["Silent Harbor"]'}),
    "a query of null": called({"name": "retrieve", "arguments": '{"query": null}'}),
    "two objects": called({"name": "retrieve", "arguments": '{"query": "a"}{"query": "b"}'}),
    "a tool that does not exist": called({"name": "browse", "arguments": '{"query": "a"}'}),
    "a tool without name": called({"name": "", "arguments": '{"query": "a"}'}),
    "another argument": called({"name": "retrieve", "arguments": '{"question": "a"}'}),
    "half a surrogate pair in a name": called(
        {"name": "retr\ud83d", "arguments": '{"query": "a"}'}
    ),
    "half a surrogate pair in a query": called(
        {"name": "retrieve", "arguments": '{"query": "\\ud83d"}'}
    ),
    "a query that is too long": called(
        {"name": "retrieve", "arguments": json.dumps({"query": "a" * 40_000})}
    ),
    "arguments that are too deep": called({"name": "retrieve", "arguments": "[" * 100_000}),
    "a number of too many digits": called(
        {"name": "retrieve", "arguments": '{"query": ' + "1" * 5000 + "}"}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("send", UNPARSABLE.values(), ids=UNPARSABLE.keys())
def test_a_call_that_is_no_search_is_unparsable_and_kept_as_written(
    chat_server: Any, searches: Any, rollout: Answer, send: Send
) -> None:
    chat_server.script.append(send)
    trajectory = rollout()
    assert trajectory.stop_reason is StopReason.TOOL_CALL_UNPARSABLE
    assert trajectory.error
    assert trajectory.messages[-1].tool_calls
    assert searches.queries == []


def test_an_argument_that_does_not_fit_is_named(chat_server: Any, rollout: Answer) -> None:
    chat_server.script.append(called({"name": "retrieve", "arguments": '{"query": {"of": 7}}'}))
    assert "query: " in (rollout().error or "")


def test_a_call_that_is_written_as_text_is_unparsable(
    chat_server: Any, searches: Any, rollout: Answer
) -> None:
    chat_server.says('<tool_call>\n{"name": "retrieve", "arguments": \n</tool_call>')
    trajectory = rollout()
    assert trajectory.stop_reason is StopReason.TOOL_CALL_UNPARSABLE
    assert searches.queries == []


@pytest.mark.slow
def test_a_body_that_never_ends_is_the_servers_failure(chat_server: Any, rollout: Answer) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.end_headers()
        handler.wfile.write(b'{"choices": ')
        handler.wfile.flush()
        chat_server.finish.wait(30)

    chat_server.script.append(drip)
    assert rollout(timeout_s=0.3).stop_reason is StopReason.MODEL_ERROR


@pytest.mark.slow
def test_an_answer_behind_ten_megabytes_of_thought_is_still_an_answer(
    chat_server: Any, rollout: Answer
) -> None:
    chat_server.says("x" * 10_000_000 + ANSWER)
    assert rollout().answer == "Mary Moss"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "<answer>Zoe\u0308 \u200b\U0001f600 \u202eabc\x00</answer>",
            "Zoe\u0308 \u200b\U0001f600 \u202eabc\x00",
        ),
        ("<answer>line\u2028line\u0085line\r\n</answer>", "line\u2028line\u0085line"),
    ],
)
def test_unicode_in_an_answer_stays_as_it_is(
    chat_server: Any, rollout: Answer, content: str, expected: str
) -> None:
    chat_server.says(content)
    trajectory = rollout()
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWERED, expected)


@pytest.fixture(scope="module")
def bad_searches() -> Iterator[str]:
    """An MCP server whose tool answers as its query asks: with text, without chunks, with none of the fields."""
    mcp = MCPServer("retrieval_server", log_level="ERROR", subscriptions=False)
    answers: dict[str, Any] = {
        "nothing": None,
        "no list": {"result": "none"},
        "no id": {"result": [{"chunk": "About it."}]},
        "wrong types": {"result": [{"chunk": 7, "chunk_id": None}]},
        "another key": {"documents": []},
    }

    @mcp.tool(structured_output=False)
    async def retrieve(query: str) -> CallToolResult:
        return CallToolResult(
            content=[TextContent(text="[1] About it.")], structured_content=answers[query]
        )

    with serve_app(
        mcp.streamable_http_app(stateless_http=True, json_response=True, host="127.0.0.1")
    ) as url:
        yield url


@pytest.mark.parametrize(
    "query", ["nothing", "no list", "no id", "wrong types", "another key", "unknown"]
)
def test_a_search_result_that_names_no_chunks_is_a_tool_error_and_never_an_empty_result(
    chat_server: Any, bad_searches: str, answer: Answer, query: str
) -> None:
    chat_server.says("", query)
    trajectory = answer(url=bad_searches)
    assert trajectory.stop_reason is StopReason.TOOL_ERROR
    assert trajectory.retrievals == ()
    assert all(message.role != "tool" for message in trajectory.messages)
