import json
import threading
from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest
import torch
from fastapi import FastAPI

from deepsearch_rl.chat.chat_format import assistant_message, load_chat_format
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.processes import LOOPBACK
from deepsearch_rl.serve.chat_server import chat_app, serve_in_thread
from deepsearch_rl.serve.engine import Engine, Generation

QUESTION = [{"role": "user", "content": "Who directed Silent Harbor?"}]


def post(endpoint: Endpoint, path: str, body: dict[str, object]) -> httpx.Response:
    # Escaped: httpx cannot write half of a surrogate pair
    headers = {"Content-Type": "application/json"}
    content = json.dumps(body)
    return httpx.post(f"{endpoint.base_url}/{path}", content=content, headers=headers, timeout=30)


def complete(endpoint: Endpoint, **changes: object) -> httpx.Response:
    body = {
        "model": "policy",
        "messages": QUESTION,
        "tools": [RETRIEVE_TOOL],
        "max_tokens": 6,
        **changes,
    }
    return post(endpoint, "chat/completions", body)


def test_every_sampled_token_is_reported_by_its_id_with_a_logprob(endpoint: Endpoint) -> None:
    reply = complete(endpoint, logprobs=True, seed=1).json()
    tokens = reply["choices"][0]["logprobs"]["content"]
    assert len(tokens) == reply["usage"]["completion_tokens"] > 0
    assert all(token["token"].startswith("token_id:") and token["logprob"] <= 0 for token in tokens)


def test_equal_requests_with_a_seed_get_equal_answers(endpoint: Endpoint) -> None:
    first, second = (complete(endpoint, seed=5).json()["choices"][0]["message"] for _ in range(2))
    assert first == second


def test_a_last_message_that_is_to_be_continued_is_neither_closed_nor_followed_by_a_new_turn(
    endpoint: Endpoint,
) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "<think>Who"}]
    continued, closed, asked = (
        complete(endpoint, tools=None, **changes).json()["usage"]["prompt_tokens"]
        for changes in (
            {"messages": begun, "continue_final_message": True, "add_generation_prompt": False},
            {"messages": begun},
            {"messages": QUESTION},
        )
    )
    assert asked < continued < closed


def continue_tokens(endpoint: Endpoint, **changes: object) -> httpx.Response:
    body = {"model": "policy", "prompt": [1, 2, 3], "max_tokens": 6, "seed": 5, **changes}
    return post(endpoint, "completions", body)


def test_tokens_are_continued_as_a_conversation_of_these_tokens_is(
    endpoint: Endpoint, policy_folder: Path
) -> None:
    prompt = load_chat_format(policy_folder).prompt_ids(QUESTION, None)
    (chat,) = complete(endpoint, tools=None, logprobs=True, seed=5).json()["choices"]
    (text,) = continue_tokens(endpoint, prompt=prompt, logprobs=0).json()["choices"]
    tokens = chat["logprobs"]["content"]
    assert text["logprobs"]["tokens"] == [token["token"] for token in tokens]
    assert text["logprobs"]["token_logprobs"] == [token["logprob"] for token in tokens]
    assert text["text"] == chat["message"]["content"]
    assert text["finish_reason"] == chat["finish_reason"]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"model": "policy@3"}, 404, "'policy@3' is not served"),
        ({"max_tokens": 4096}, 400, "does not fit the context"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": "a text"}, 400, "prompt"),
        ({"prompt": [1, -1]}, 400, "prompt.1"),
        ({"prompt": [1, 10**6]}, 400, "1000000 is no token of this model"),
        ({"logprobs": 5}, 400, "logprobs"),
        ({"echo": True}, 400, "echo"),
    ],
)
def test_tokens_that_cannot_be_continued_are_refused_by_the_field(
    endpoint: Endpoint, changes: dict[str, object], status: int, words: str
) -> None:
    reply = continue_tokens(endpoint, **changes)
    assert reply.status_code == status
    assert words in reply.text


def test_a_server_in_a_thread_has_ended_where_its_block_ends(
    engine: Engine, policy_folder: Path
) -> None:
    before = set(threading.enumerate())
    with serve_in_thread(chat_app(engine, load_chat_format(policy_folder), lambda: "policy")):
        assert "chat-server" in {thread.name for thread in set(threading.enumerate()) - before}
    assert "chat-server" not in {thread.name for thread in set(threading.enumerate()) - before}


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"model": "policy@3"}, 404, "'policy@3' is not served; 'policy' is"),
        ({"max_tokens": 4096}, 400, "does not fit the context"),
        ({"messages": [{"content": "no role"}]}, 400, "messages.0.role"),
        ({"messages": []}, 400, "messages"),
        ({"temperature": -1}, 400, "temperature"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(
    endpoint: Endpoint, changes: dict[str, object], status: int, words: str
) -> None:
    reply = complete(endpoint, **changes)
    assert reply.status_code == status
    assert words in reply.text


HALF = "\ud800"
CALLED = {"type": "function", "function": {"name": "retrieve", "arguments": {"query": "Who"}}}


def conversation(**changes: object) -> dict[str, object]:
    """A conversation whose last message has these fields."""
    return {"messages": [*QUESTION, {"role": "assistant", "content": "Look.", **changes}]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": [{"role": "user", "content": f"a {HALF}"}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
            "messages.0.content",
        ),
        (conversation(name=HALF), "messages.1.name"),
        (conversation(reasoning=HALF), "messages.1.reasoning"),
        (
            conversation(
                tool_calls=[CALLED | {"function": {"name": "retrieve", "arguments": f'"{HALF}"'}}]
            ),
            "messages.1.tool_calls.0.function.arguments",
        ),
        (
            conversation(
                tool_calls=[CALLED | {"function": {"name": HALF, "arguments": {"query": "Who"}}}]
            ),
            "messages.1.tool_calls.0.function.name",
        ),
        (
            conversation(
                tool_calls=[CALLED | {"function": {"name": "f", "arguments": {"q": {HALF: 1}}}}]
            ),
            "messages.1.tool_calls.0.function.arguments.q",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": HALF}}]},
            "tools.0.function.description",
        ),
        ({"stop": [HALF]}, "stop"),
        ({"user": HALF}, "user"),
        ({"metadata": {HALF: "a"}}, "metadata"),
    ],
)
def test_half_of_a_surrogate_pair_in_any_text_is_refused_by_the_field(
    endpoint: Endpoint, changes: dict[str, object], field: str
) -> None:
    reply = complete(endpoint, **changes)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize("changes", [{"stop": ["a", HALF]}, {"user": HALF}, {HALF: 1}])
def test_half_of_a_surrogate_pair_is_refused_beside_tokens_too(
    endpoint: Endpoint, changes: dict[str, object]
) -> None:
    assert continue_tokens(endpoint, **changes).status_code == 400


CALL = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "director of Silent Harbor"}}\n</tool_call>'


def test_calls_that_parse_become_tool_calls_with_the_text_before_them_as_content() -> None:
    message = assistant_message(f"Let me look.\n{CALL}\n{CALL}")
    assert message["content"] == "Let me look.\n"  # as vLLM's hermes parser leaves it
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
        '{"query": "director of Silent Harbor"}'
    ] * 2
    assert assistant_message(CALL)["content"] is None


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        '<tool_call>\n{"name": "retrieve", "arguments": {"query": "never closed"}}',
        '<tool_call>\n{"name": "retrieve", "arguments": "not an object"}\n</tool_call>',
        "<tool_call>\nnot json\n</tool_call>",
        f"{CALL}<tool_call>half</tool_call>",
    ],
)
def test_an_answer_with_a_call_that_does_not_parse_stays_as_it_was_written(text: str) -> None:
    assert assistant_message(text) == {"role": "assistant", "content": text}


@pytest.mark.parametrize("stream", [False, True])
def test_weights_that_are_no_numbers_are_an_error_that_names_them(
    engine: Engine, endpoint: Endpoint, stream: bool
) -> None:
    with torch.no_grad():
        engine._model.lm_head.weight.fill_(float("nan"))
    reply = complete(endpoint, stream=stream)
    # A stream has begun by then, and ends with the error
    assert reply.status_code == (200 if stream else 500)
    assert "logits for token 1 of the answer hold NaN" in reply.text


def test_a_stream_that_its_client_leaves_stops_computing(
    engine: Engine, endpoint: Endpoint
) -> None:
    body = {
        "model": "policy",
        "messages": QUESTION,
        "stream": True,
        "temperature": 0,
        "logprobs": True,
    }
    with httpx.stream(
        "POST", f"{endpoint.base_url}/chat/completions", json=body, timeout=30
    ) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if "token_id" in line)
        result = engine._running[0].result
        ended = threading.Event()
        result.add_done_callback(lambda _: ended.set())
    assert ended.wait(20)
    assert result.cancelled()
    assert complete(endpoint).status_code == 200


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("chat/completions", {"messages": QUESTION}),
        ("completions", {"prompt": [1, 2, 3], "max_tokens": 6}),
    ],
)
def test_an_answer_that_its_client_does_not_wait_for_is_cancelled(
    engine: Engine,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    question: dict[str, object],
) -> None:
    # An answer that never ends by itself
    result: Future[Generation] = Future()
    ended = threading.Event()
    result.add_done_callback(lambda _: ended.set())
    monkeypatch.setattr(engine, "generate", lambda *_: result)
    url = f"{endpoint.base_url}/{path}"
    body = {"model": "policy", **question}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, timeout=httpx.Timeout(20, read=0.2))
    assert ended.wait(20)
    assert result.cancelled()
    monkeypatch.undo()
    assert complete(endpoint).status_code == 200


def test_the_server_starts_where_asyncio_run_is_one_without_a_loop_factory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(main: object, *, debug: bool = False) -> None:
        """Have the arguments of nest_asyncio's, which ART puts in the place of asyncio.run."""
        raise AssertionError(f"{main} would run in a loop that another thread has: {debug}")

    monkeypatch.setattr("uvicorn.server.asyncio_run", run)
    with serve_in_thread(FastAPI()) as port:
        assert httpx.get(f"http://{LOOPBACK}:{port}/none", timeout=10).status_code == 404
