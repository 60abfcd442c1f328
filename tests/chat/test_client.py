"""How an endpoint is asked: options of its requests, limits per minute, waits and remedies."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from deepsearch_rl.chat import client as client_module
from deepsearch_rl.chat.client import complete, open_client, pausable
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.endpoint import Endpoint, RemoteConfig
from deepsearch_rl.chat.request_options import RequestOptions, remedy
from deepsearch_rl.core.files import sha256_json, write_json
from deepsearch_rl.core.rate_limits import rate_limits
from deepsearch_rl.core.retries import is_quota_spent
from deepsearch_rl.evaluate.evaluate_model import checkpoint_name
from tests.agent.conftest import ChatServer, completion, response
from tests.limit_clock import LimitClock
from tests.spent_quotas import SPENT

QUESTION = "Who directed Silent Harbor?"


FIELDS = {"max_tokens": 7, "temperature": 0.7, "seed": 1}


def asked_fields(chat: ChatServer, **options: Any) -> dict[str, Any]:
    """The fields of the request that an endpoint with such options gets."""
    endpoint = Endpoint(chat.url, "m", options=RequestOptions(**options))
    asyncio.run(answer_of(endpoint))
    return {
        name: value
        for name, value in chat.requests[-1].items()
        if name not in ("model", "messages")
    }


async def answer_of(endpoint: Endpoint, *, count: int = 1, **fields: Any) -> list[Completion]:
    messages = [{"role": "user", "content": QUESTION}]
    async with open_client(endpoint, 20.0) as client:
        request = {"messages": messages, **FIELDS, **fields}
        return await asyncio.gather(*(complete(client, endpoint, **request) for _ in range(count)))


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, FIELDS),
        (
            {"token_limit": "max_completion_tokens", "temperature": "omit", "seed": "omit"},
            {"max_completion_tokens": 7},
        ),
        (
            {"extra_body": {"enable_thinking": False, "provider": {"order": ["a"]}}},
            {**FIELDS, "enable_thinking": False, "provider": {"order": ["a"]}},
        ),
        ({"extra_body": {"reasoning_effort": "low"}}, {**FIELDS, "reasoning_effort": "low"}),
    ],
)
def test_a_model_is_asked_as_its_options_say(
    chat_server: ChatServer, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    """langfuse/langfuse#8509, sbintuitions/flexeval#111, browser-use/web-ui#659."""
    chat_server.says("yes")
    assert asked_fields(chat_server, **options) == fields


CALL_CHUNKS = [
    {"delta": {"role": "assistant", "content": "", "reasoning_content": "I need"}},
    {"delta": {"reasoning_content": " a search."}},
    {
        "delta": {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "retrieve"}}
            ]
        }
    },
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"query": '}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]}},
    {"delta": {}, "finish_reason": "tool_calls"},
]


def streams(chat: ChatServer, chunks: list[dict[str, Any]]) -> None:
    """Add an answer in pieces."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    body = ""
    for chunk in chunks:
        choice = {"index": 0, "finish_reason": None} | chunk
        body += f"data: {json.dumps(head | {'choices': [choice]})}\n\n"
    body += "data: [DONE]\n\n"

    chat.script.append(response(body, kind="text/event-stream"))


def test_a_streamed_call_and_thought_are_put_together_and_a_cut_stream_is_asked_for_again(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepsearch_rl.chat.client.FIRST_WAIT_S", 0.001)
    streams(chat_server, CALL_CHUNKS[:3])
    streams(chat_server, CALL_CHUNKS)
    [completion] = asyncio.run(
        answer_of(Endpoint(chat_server.url, "m", options=RequestOptions(stream=True)))
    )
    assert completion.message.thought == "I need a search."
    [call] = completion.message.tool_calls or []
    assert (call.id, call.function.name, call.function.arguments) == (
        "c1",
        "retrieve",
        '{"query": "x"}',
    )
    assert [request["stream_options"] for request in chat_server.requests] == [
        {"include_usage": True}
    ] * 2


@pytest.mark.parametrize("taken", ["temperature", "messages", "max_tokens", "stream"])
def test_an_extra_field_that_has_an_option_of_its_own_is_refused(taken: str) -> None:
    with pytest.raises(ValueError, match=f"{taken}: the agent writes it"):
        RequestOptions(extra_body={taken: 1})


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (
            "Error code: 400 - Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            "token_limit: max",
        ),
        (
            "Error code: 400 - Unsupported value: 'temperature' does not support 0.7",
            "temperature: omit",
        ),
        ("Error code: 400 - This model only support stream mode", "stream: true"),
        (
            "Error code: 400 - parameter.enable_thinking must be set to false for non-streaming calls",
            "extra_body",
        ),
        ("Error code: 422 - extra fields not permitted: seed", "seed: omit"),
        ("Error code: 401 - Incorrect API key", "correct the key"),
        ("Error code: 400 - something new", "see what it complains about"),
        ("Error code: 402 - Insufficient Balance", "raise the account's balance"),
        ("Error code: 429 - {'code': 'insufficient_quota'}", "raise the account's balance"),
        ("Error code: 429 - Rate limit reached", "wait until its limit allows more"),
        ("Error code: 404 - The model `x` does not exist", "correct the model's name"),
        (
            'Error code: 400 - "auto" tool choice requires --enable-auto-tool-choice',
            "--tool-call-parser",
        ),
        ("Error code: 400 - x does not support tools", "search_tags"),
        (
            "Error code: 400 - max_tokens is too large: 100000. This model supports at most 16384",
            "lower agent.max_tok",
        ),
        ("APIConnectionError: Connection error.", "start the server again"),
        ("APITimeoutError: Request timed out.", "start the server again if it hangs, or give"),
        ("the provider's stream timed out", "start the server again if it hangs, or give"),
        ("Error code: 503 - overloaded", "start the server again"),
    ],
)
def test_the_remedy_of_an_error_is_to_change_what_the_server_refused(
    error: str, change: str
) -> None:
    assert change in remedy(error)
    assert ("start the server" in remedy(error)) == ("start the server" in change)


def test_options_are_in_the_name_and_digest_of_a_run_where_they_change_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_IT", "sk-1")
    plain = {
        "base_url": "https://api.example.com/v1",
        "model": "gpt-5",
        "api_key_variable": "KEY_OF_IT",
    }
    names: list[str] = []
    digests: list[str] = []
    for options in (
        {},
        {"requests_per_minute": 5, "rate_limit_wait_s": 1},
        {"temperature": "omit"},
    ):
        config = RemoteConfig.model_validate(plain | {"request": options})
        write_json(tmp_path / "endpoint.json", config.model_dump(mode="json"))
        names.append(checkpoint_name(tmp_path))
        digests.append(sha256_json(config.of_answers()))
    assert names[0] == names[1] == "gpt-5 at https://api.example.com/v1"
    assert names[2] == 'gpt-5 at https://api.example.com/v1, asked with {"temperature": "omit"}'
    assert digests[0] == digests[1] == sha256_json(plain) != digests[2]


def test_a_429_without_a_wait_is_waited_for_by_minutes_and_costs_a_question_no_time(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """explodinggradients/ragas#1519."""
    full = json.dumps(
        {
            "error": {
                "message": "Rate limit reached",
                "type": "requests",
                "code": "rate_limit_exceeded",
            }
        }
    )
    for _ in range(3):
        chat_server.script.append(response(full, 429))
    chat_server.says("yes")
    waits_s: list[float] = []
    pauses_s: list[float] = []

    async def within_a_deadline() -> list[Completion]:
        async with asyncio.timeout(60) as deadline:

            async def sleep(seconds: float) -> None:
                assert deadline.when() is None  # it stands still
                waits_s.append(seconds)

            # Of this module alone: servers in other threads sleep too
            own_asyncio = SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
            monkeypatch.setattr(client_module, "asyncio", own_asyncio)
            with pausable(deadline, pauses_s.append):
                return await answer_of(Endpoint(chat_server.url, "m"))

    [completion] = asyncio.run(within_a_deadline())
    assert completion.message.text == "yes"
    assert [
        longest / 2 <= wait_s <= longest for wait_s, longest in zip(waits_s, (2, 4, 8), strict=True)
    ] == [True] * 3
    assert len(pauses_s) >= 3
    assert sum(pauses_s) < 2  # nobody has slept


def test_the_waits_of_a_full_server_end_with_its_error(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepsearch_rl.chat.client.FIRST_FULL_WAIT_S", 0.05)
    chat_server.script.append(response('{"error": {"message": "full"}}', 429))
    with pytest.raises(openai.RateLimitError, match="full"):
        asyncio.run(
            answer_of(Endpoint(chat_server.url, "m", options=RequestOptions(rate_limit_wait_s=0.2)))
        )
    assert 2 < len(chat_server.requests) < 6


@pytest.mark.parametrize("body", SPENT.values(), ids=SPENT)
def test_an_account_without_money_is_not_waited_for(chat_server: ChatServer, body: object) -> None:
    chat_server.script.append(response(body, 429))
    with pytest.raises(openai.RateLimitError):
        asyncio.run(answer_of(Endpoint(chat_server.url, "m")))
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Rate limit reached for gpt-4 on tokens per min (TPM): Limit 6000. Please try again in 7s.",
        # Gemini says the same of a minute's quota and of money; the wait tells them apart.
        "You exceeded your current quota, please check your plan and billing details. Please retry in 34.07s. "
        "quotaId: GenerateContentInputTokensPerModelPerMinute-FreeTier",
        "Your account request reached max request: 3, please try again after 1 seconds",
        "Need more tokens? Upgrade to Dev Tier today at https://console.groq.com/settings/billing",
        "Requests rate limit exceeded",
    ],
)
def test_a_limit_of_a_minute_is_waited_for_whatever_its_words(text: str) -> None:
    assert not is_quota_spent(text, None)
    assert not is_quota_spent("Limit of tokens per day (TPD) reached", 30.0)


@pytest.mark.parametrize(
    ("limit", "calls", "least_s"),
    [
        # A tenth of a minute's at once, then one in half a second
        ({"requests_per_minute": 120}, 12 + 2, 0.8),
        # One of 300 tokens and more leaves no room for another
        ({"tokens_per_minute": 600}, 2, 0.7),
    ],
)
def test_all_callers_of_a_process_share_the_limits_of_a_model(
    chat_server: ChatServer,
    limit_clock: LimitClock,
    limit: dict[str, int],
    calls: int,
    least_s: float,
) -> None:
    chat_server.reply = lambda _: completion("yes", tokens=(10, 295))
    endpoint = Endpoint(chat_server.url, "m", options=RequestOptions.model_validate(limit))
    for count in (calls // 2, calls // 2):  # two clients, one after the other
        assert len(asyncio.run(answer_of(endpoint, count=count, max_tokens=295))) == count
    assert limit_clock.waited_s > least_s


def test_searches_of_a_process_share_a_limit_in_threads(limit_clock: LimitClock) -> None:
    limits = rate_limits("a search endpoint", 600)
    assert limits is rate_limits("a search endpoint", 600)
    assert limits is not rate_limits("another", 600)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: limits.wait_in_thread(), range(60 + 4)))
    assert limit_clock.waited_s > 0.25
