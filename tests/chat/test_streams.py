"""Streams as servers really send them, put together as one reply."""

import json
from typing import Any

import pytest

from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.request_options import USUAL, RequestOptions
from tests.agent.conftest import ANSWER, ChatServer, completion, response
from tests.chat.test_broken_replies import EVENTS, ask, events, piece

STREAM = RequestOptions(stream=True)
ONE = '{"query": "one"}'
TWO = '{"query": "two"}'


def called(arguments: object = None, name: str | None = None, **fields: object) -> dict[str, Any]:
    """Return a piece of a tool call; a name or arguments that are None are left out."""
    function = {"name": name, "arguments": arguments}
    given = {key: value for key, value in function.items() if value is not None}
    return {**fields, "type": "function", "function": given}


def first(arguments: object = "", **fields: object) -> dict[str, Any]:
    return called(arguments, "retrieve", **fields)


def turns(*calls: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return the pieces of a turn, each with some pieces of calls."""
    return [piece({"tool_calls": pieces}) for pieces in calls]


PARALLEL: dict[str, list[dict[str, object]]] = {
    "numbered": turns(
        [first(index=0, id="a")],
        [called(ONE, index=0)],
        [first(index=1, id="b")],
        [called(TWO, index=1)],
    ),
    "without index": turns([first(ONE, id="a")], [first(TWO, id="b")]),
    "without index, in pieces": turns(
        [first(id="a")], [called(ONE[:5])], [called(ONE[5:])], [first(id="b")], [called(TWO)]
    ),
    "all at index 0": turns([first(ONE, index=0, id="a")], [first(TWO, index=0, id="b")]),
    "all at index 0, in pieces": turns(
        [first(index=0, id="a")],
        [called(ONE[:5], index=0)],
        [called(ONE[5:], index=0)],
        [first(index=0, id="b")],
        [called(TWO[:5], index=0)],
        [called(TWO[5:], index=0)],
    ),
    "all at index 0, without ids": turns(
        [first(index=0)], [called(ONE, index=0)], [first(index=0)], [called(TWO, index=0)]
    ),
    "id and name in every piece": turns(
        [first(ONE[:5], index=0, id="a")],
        [first(ONE[5:], index=0, id="a")],
        [first(TWO[:5], index=1, id="b")],
        [first(TWO[5:], index=1, id="b")],
    ),
    "id and name in every piece, all at index 0": turns(
        [first("", index=0, id="a")],
        [first(ONE[:5], index=0, id="a")],
        [first(ONE[5:], index=0, id="a")],
        [first(TWO, index=0, id="b")],
    ),
    "another id in every piece": turns(
        [first(ONE[:5], index=0, id="a")],
        [first(ONE[5:], index=0, id="b")],
        [first(TWO, index=1, id="c")],
    ),
    "in one piece": turns([first(ONE), first(TWO)]),
    "interleaved by id": turns(
        [first(ONE[:5], id="a"), first("", id="b")], [called(ONE[5:], id="a"), called(TWO, id="b")]
    ),
    "numbered from 1": turns([first(ONE, index=1)], [first(TWO, index=2)]),
    "objects": turns([first({"query": "one"}, index=0)], [first({"query": "two"}, index=0)]),
    "a name in pieces": turns(
        [called(None, "retr", index=0)], [called(ONE, "ieve", index=0)], [first(TWO, index=1)]
    ),
    "an object that holds the place": turns(
        [first("{}", index=0, id="a")], [called(ONE, index=0)], [first(TWO, index=1, id="b")]
    ),
    "repeated whole at the end": turns(
        [first(ONE, index=0, id="a")],
        [first(TWO, index=1, id="b")],
        [first(ONE, index=0, id="a"), first(TWO, index=1, id="b")],
    ),
    "nulls": turns(
        [first("", index=None, id="a")],
        [{"index": None, "id": None, "function": {"name": None, "arguments": ONE}}],
        [first(TWO, index=None, id="b")],
    ),
}


def searches(reply: Completion) -> list[tuple[str, str]]:
    calls = reply.message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls]


@pytest.mark.parametrize("pieces", PARALLEL.values(), ids=PARALLEL)
def test_calls_are_told_apart_however_the_server_numbers_them(
    chat_server: ChatServer, pieces: list[dict[str, object]]
) -> None:
    """openai-python#2806, #3246, smolagents#1569, #1958, nanobot#3943."""
    body = events(*pieces, piece({}, "tool_calls"))
    chat_server.script.append(response(body, kind=EVENTS))
    assert searches(ask(chat_server, STREAM)) == [("retrieve", ONE), ("retrieve", TWO)]
    assert len(chat_server.requests) == 1


def test_a_call_without_index_and_reason_is_whole_where_the_stream_says_its_end(
    chat_server: ChatServer,
) -> None:
    body = events(
        {"choices": [{"delta": {"tool_calls": [first(ONE, id="a")]}, "finish_reason": None}]},
        b"[DONE]",
    )
    chat_server.script.append(response(body, kind=EVENTS))
    assert searches(ask(chat_server, STREAM)) == [("retrieve", ONE)]


WHOLE = events(piece({"content": ANSWER}), piece({}, "stop"), b"[DONE]")
BODIES: dict[str, bytes] = {
    "pings": b'event: ping\ndata: {"type": "ping"}\n\n: waiting\n\nevent: ping\ndata: now\n\n'
    + WHOLE,
    "an event without choices": events(piece({}, choices=None), {"type": "ping"}) + WHOLE,
    "lines of Windows": WHOLE.replace(b"\n", b"\r\n"),
    "usage without choices": events(
        piece({"content": ANSWER}, "stop"), piece({}, choices=[], usage={"prompt_tokens": 7})
    ),
    "a whole message at the end": events(
        {"choices": [{"message": {"content": ANSWER}, "finish_reason": "stop"}]}
    ),
    "a line separator in the text": events(
        json.dumps(piece({"content": f"\u2028{ANSWER}"}, "stop"), ensure_ascii=False).encode()
    ),
    "one piece as JSON": json.dumps(piece({"content": ANSWER}, "stop")).encode(),
    "a byte order mark": b"\xef\xbb\xbf" + completion(ANSWER).encode(),
    "a whole reply": completion(ANSWER).encode(),
}


@pytest.mark.parametrize("options", [USUAL, STREAM], ids=["whole asked", "stream asked"])
@pytest.mark.parametrize("kind", ["application/json", EVENTS])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_body_says_whether_it_is_a_stream(
    chat_server: ChatServer, body: bytes, kind: str, options: RequestOptions
) -> None:
    chat_server.script.append(response(body, kind=kind))
    assert ask(chat_server, options).message.text.strip() == ANSWER
    assert len(chat_server.requests) == 1


def test_details_of_reasoning_are_put_together_by_their_place(chat_server: ChatServer) -> None:
    def detail(index: int, **fields: str) -> dict[str, object]:
        details = [
            {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": index, **fields}
        ]
        return piece({"reasoning_details": details})

    body = events(
        detail(0, text="I "),
        detail(0, text="need."),
        detail(0, signature="s1"),
        detail(1, text="More."),
        piece({"content": ANSWER}, "stop"),
    )
    chat_server.script.append(response(body, kind=EVENTS))
    kept = {"type": "reasoning.text", "format": "anthropic-claude-v1"}
    assert ask(chat_server, STREAM).message.provider_fields == {
        "reasoning_details": [
            {**kept, "index": 0, "text": "I need.", "signature": "s1"},
            {**kept, "index": 1, "text": "More."},
        ]
    }


def test_a_streamed_thought_in_parts_and_the_text_after_it_are_both_kept(
    chat_server: ChatServer,
) -> None:
    """Mistral's reasoning models."""
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "Look."}]}]
    body = events(
        piece({"content": ""}), piece({"content": thinking}), piece({"content": ANSWER}, "stop")
    )
    chat_server.script.append(response(body, kind=EVENTS))
    message = ask(chat_server, STREAM).message
    assert (message.text, message.thought) == (ANSWER, "Look.")


def test_the_pieces_of_a_thought_are_one_up_to_its_signature(chat_server: ChatServer) -> None:
    """BerriAI/litellm#29428."""
    texts = [("I ", ""), ("need.", ""), ("", "s1"), ("More.", "s2")]
    blocks = [
        {"type": "thinking", "thinking": text, "signature": signature} for text, signature in texts
    ]
    pieces = [piece({"thinking_blocks": [block]}) for block in blocks]
    body = events(*pieces, piece({"content": ANSWER}, "stop"))
    chat_server.script.append(response(body, kind=EVENTS))
    assert ask(chat_server, STREAM).message.provider_fields == {
        "thinking_blocks": [
            {"type": "thinking", "thinking": "I need.", "signature": "s1"},
            {"type": "thinking", "thinking": "More.", "signature": "s2"},
        ]
    }


def test_a_signature_that_a_call_repeats_stays_what_it_is(chat_server: ChatServer) -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    call = first(ONE, index=0, id="a", extra_content=signature)
    body = events(*turns([call], [call]), piece({}, "tool_calls"))
    chat_server.script.append(response(body, kind=EVENTS))
    [kept] = ask(chat_server, STREAM).message.tool_calls or []
    assert kept.provider_fields == {"extra_content": signature}
