"""Inputs of public reports about requests to model servers, ours and others'. The report stands beside each."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from deepsearch_rl.chat import client as client_module
from deepsearch_rl.chat.chat_format import assistant_message, load_chat_format
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.client import complete, open_client, pausable
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.endpoint import Endpoint, RemoteConfig
from deepsearch_rl.chat.request_options import RequestOptions, remedy
from deepsearch_rl.core.errors import EndpointDownError
from deepsearch_rl.core.files import sha256_json, write_json
from deepsearch_rl.core.rate_limits import rate_limits
from deepsearch_rl.core.retries import is_quota_spent
from deepsearch_rl.evaluate.evaluate_model import checkpoint_name
from deepsearch_rl.search.encoders.remote import RemoteEncoder
from deepsearch_rl.search.encoders.remote import RemoteEncoderConfig as EmbeddingsConfig
from deepsearch_rl.serve.chat_answer import AnswerText
from tests.agent.conftest import ChatServer, completion, response
from tests.model_servers import running_engine, serve_here
from tests.policies import policy_folder
from tests.public_reports.conftest import LimitClock

__all__ = ["policy_folder"]

QUESTION = "Who directed Silent Harbor?"
ANSWER = {"model": "policy", "max_tokens": 24, "seed": 3}


@pytest.fixture(scope="module")
def endpoint(policy_folder: Path) -> Iterator[Endpoint]:
    """One chat server for all requests."""
    with running_engine(policy_folder) as engine, serve_here(engine, policy_folder) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=endpoint.base_url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, *messages: dict[str, Any], **options: Any) -> Any:
    conversation = list(messages) or [{"role": "user", "content": QUESTION}]
    return client.chat.completions.create(messages=conversation, **(ANSWER | options))  # pyright: ignore


def text(client: openai.OpenAI, **options: Any) -> str:
    return ask(client, **options).choices[0].message.content


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": part} for part in texts]


# The chat server: what a request asks for is done or refused.


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_text_parts_are_the_text_that_they_make(client: openai.OpenAI, role: str) -> None:
    """google-ai-edge/LiteRT-LM#3688, ggml-org/llama.cpp#14137."""
    user = {"role": "user", "content": QUESTION}
    in_parts = ask(client, {"role": role, "content": parts("The harbor", "is silent.")}, user)
    in_one = ask(client, {"role": role, "content": "The harbor\nis silent."}, user)
    assert in_parts.usage == in_one.usage
    assert in_parts.choices[0].message == in_one.choices[0].message


def test_a_developer_message_is_a_system_message(client: openai.OpenAI) -> None:
    """ggml-org/llama.cpp#20215."""
    user = {"role": "user", "content": QUESTION}
    developer, system = (
        ask(client, {"role": role, "content": "Be brief."}, user)
        for role in ("developer", "system")
    )
    assert developer.usage == system.usage
    assert developer.choices[0].message == system.choices[0].message


def test_a_stream_has_the_text_of_a_whole_answer_and_its_usage_at_the_end(
    client: openai.OpenAI,
) -> None:
    """sgl-project/sglang#40082."""
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, logprobs=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    tokens = [
        chunk.choices[0].logprobs for chunk in chunks if chunk.choices and chunk.choices[0].logprobs
    ]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(map(bool, pieces)) > 3
    assert len(tokens) == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


@pytest.mark.slow
def test_the_clients_own_helpers_for_streams_and_raw_responses_read_the_answer(
    client: openai.OpenAI,
) -> None:
    written = text(client)
    conversation: Any = [{"role": "user", "content": QUESTION}]
    with client.chat.completions.stream(
        messages=conversation, stop=written[-3:], **ANSWER
    ) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == written.partition(written[-3:])[0]
    parsed = client.chat.completions.parse(messages=conversation, stop=written[-3:], **ANSWER)
    assert parsed.choices[0].message.content == completion.choices[0].message.content
    raw = client.chat.completions.with_raw_response.create(messages=conversation, **ANSWER)
    assert raw.parse().choices[0].message.content == written
    assert [model.id for model in client.models.list()] == ["policy"]
    assert client.models.retrieve("policy").id == "policy"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_answer_before_it(
    client: openai.OpenAI, stream: bool, as_list: bool
) -> None:
    """Blaizzy/mlx-vlm#1044."""
    whole = text(client)
    stop = whole[len(whole) // 2 :][:3]
    options: dict[str, Any] = {
        "stop": ["never written", stop] if as_list else stop,
        "stream": stream,
    }
    reply = ask(client, **options)
    if stream:
        chunks = list(reply)
        assert (
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            == whole[: whole.index(stop)]
        )
        assert chunks[-1].choices[0].finish_reason == "stop"
        return
    choice = reply.choices[0]
    assert choice.message.content == whole[: whole.index(stop)]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert reply.usage.completion_tokens < ANSWER["max_tokens"]
    kept = ask(client, **options, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].message.content == whole[: whole.index(stop)] + stop


def test_the_newer_name_of_the_token_limit_is_read(client: openai.OpenAI) -> None:
    conversation: Any = [{"role": "user", "content": QUESTION}]
    reply = client.chat.completions.create(
        model="policy", messages=conversation, max_completion_tokens=3, seed=1
    )
    assert reply.usage is not None
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (3, "length")


OPTIONAL = [
    "temperature",
    "max_completion_tokens",
    "seed",
    "stop",
    "logprobs",
    "stream",
    "tools",
    "tool_choice",
    "top_p",
]


def test_null_is_a_missing_field(client: openai.OpenAI) -> None:
    nulls = dict.fromkeys([*OPTIONAL, "n", "user", "response_format", "stream_options"])
    assert text(client, **nulls | {"seed": 3}) == text(client)


@pytest.mark.parametrize(
    "options",
    [
        {"n": 1, "top_p": 1.0, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
        {"user": "me", "metadata": {"run": "1"}, "store": True, "service_tier": "auto"},
        {"tools": [RETRIEVE_TOOL], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "top_logprobs": 0, "extra_body": {"top_k": -1}},
    ],
)
def test_what_changes_no_answer_is_accepted(client: openai.OpenAI, options: dict[str, Any]) -> None:
    assert text(client, **options) == text(client)


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
STRICT = RETRIEVE_TOOL | {"function": {"name": "retrieve", "strict": True}}


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("n", {"n": 2}),
        ("top_p", {"top_p": 0.5}),
        ("tool_choice", {"tools": [RETRIEVE_TOOL], "tool_choice": "required"}),
        (
            "tool_choice",
            {
                "tools": [RETRIEVE_TOOL],
                "tool_choice": {"type": "function", "function": {"name": "r"}},
            },
        ),
        ("parallel_tool_calls", {"parallel_tool_calls": False}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 3}),
        ("reasoning_effort", {"reasoning_effort": "low"}),
        ("frequency_penalty", {"frequency_penalty": 1}),
        ("logit_bias", {"logit_bias": {"5": -100}}),
        ("guided_json", {"extra_body": {"guided_json": {}}}),
        (
            "chat_template_kwargs",
            {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        ),
        ("max_completion_tokens", {"max_completion_tokens": 5}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stop.0", {"stop": ""}),
        ("temperature", {"temperature": "hot"}),
        ("messages.0.role", {"messages": [{"role": "banana", "content": "yes"}]}),
        ("messages.0.content", {"messages": [{"role": "user", "content": [*parts("See"), IMAGE]}]}),
        ("messages.0.content", {"messages": [{"role": "user", "content": None}]}),
        (
            "messages.0.audio",
            {"messages": [{"role": "assistant", "content": "", "audio": {"id": "a"}}]},
        ),
        ("tools.0", {"tools": [STRICT]}),
    ],
)
def test_what_the_server_does_not_do_is_refused_by_the_fields_name(
    client: openai.OpenAI, field: str, options: dict[str, Any]
) -> None:
    conversation: Any = [{"role": "user", "content": QUESTION}]
    with pytest.raises(openai.BadRequestError, match=field) as refused:
        client.chat.completions.create(**({"messages": conversation} | ANSWER | options))
    assert refused.value.param == field


@pytest.mark.slow
def test_a_clients_own_message_objects_can_be_sent_back(client: openai.OpenAI) -> None:
    conversation: Any = [{"role": "user", "content": QUESTION}]
    conversation.append(ask(client).choices[0].message)
    conversation.append({"role": "user", "content": "And who wrote it?"})
    assert ask(client, *conversation).usage.prompt_tokens > ask(client).usage.prompt_tokens


def test_another_path_is_refused_in_the_clients_own_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Not Found"):
        client.embeddings.create(model="policy", input="text")
    with pytest.raises(openai.NotFoundError, match="'policy' is"):
        ask(client, model="gpt")


# Tool calls and thoughts.

CALL = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "Silent Harbor"}}\n</tool_call>'
OTHER_CALL = CALL.replace("Silent Harbor", "director")


def queries(answer: str, *, in_thought: bool = False) -> list[str]:
    calls = assistant_message(answer, in_thought=in_thought).get("tool_calls", ())
    return [json.loads(call["function"]["arguments"])["query"] for call in calls]


@pytest.mark.parametrize(
    ("answer", "in_thought"),
    [
        (f"<think>I could write {CALL}, but</think>\n<answer> Ann Lee</answer>", False),
        (f"<think>I could write {CALL}", False),
        (f"I could write {CALL}, but</think>\n<answer> Ann Lee</answer>", True),
        (f"I could write {CALL}", True),
        (f"I could write {CALL}, but</think>\n<answer> Ann Lee</answer>", False),
        (f"First. <think>{CALL}</think> <answer> Ann Lee</answer>", False),
    ],
)
def test_a_call_inside_a_thought_is_thought(answer: str, in_thought: bool) -> None:
    """volcengine/verl#4757."""
    assert assistant_message(answer, in_thought=in_thought) == {
        "role": "assistant",
        "content": answer,
    }


def test_the_call_after_a_thought_that_mentions_one_is_carried_out() -> None:
    thought = f"<think>I could write {CALL}.</think>"
    message = assistant_message(f"{thought}\n{OTHER_CALL}")
    assert message["content"] == f"{thought}\n"
    assert queries(f"{thought}\n{OTHER_CALL}") == ["director"]
    assert queries(f"{thought.removeprefix('<think>')}\n{OTHER_CALL}", in_thought=True) == [
        "director"
    ]


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<tool_call>"])
def test_a_tag_inside_a_calls_query_is_a_part_of_the_query(tag: str) -> None:
    assert queries(CALL.replace("Silent", tag)) == [f"{tag} Harbor"]


@pytest.mark.parametrize(
    "answer",
    [
        f"Let me look.\n\n{CALL}\n{OTHER_CALL}",
        f"\n\nLet me look. {CALL}",
        CALL,
        f"<think>Or {CALL}?</think>\n{OTHER_CALL}",
        f"{CALL} or not</think> {OTHER_CALL}",
        "<tool_call>\nnot json\n</tool_call> and more ",
        "1 <2 and <tool and <tool_cal",
        "northern ěščř 北京 🙂 <answer> Ann Lee</answer>\n",
    ],
)
def test_the_pieces_of_a_stream_make_the_content_of_the_whole_answer(
    policy_folder: Path, answer: str
) -> None:
    tokenizer = load_chat_format(policy_folder).tokenizer
    token_ids = tokenizer.encode(answer)
    stream = AnswerText(tokenizer, stops=("never written", "<answers>"))
    pieces: list[str] = []
    for token in token_ids:
        assert not stream.add(token)
        pieces.append(stream.next_content())
    stream.finish(token_ids)
    pieces.append(stream.last_content())
    assert stream.text == answer
    assert "".join(pieces) == (stream.message()["content"] or "")


def test_a_stop_string_of_several_tokens_is_found_wherever_a_token_begins(
    policy_folder: Path,
) -> None:
    tokenizer = load_chat_format(policy_folder).tokenizer
    written = "I look. <search> director </search> and <answer>"
    for keep_stop, stops in itertools.product(
        (False, True), (["</search>"], ["</answer>", "</search>"], ["</sea"])
    ):
        stream = AnswerText(tokenizer, stops=stops, keep_stop=keep_stop)
        pieces: list[str] = []
        for token in tokenizer.encode(written):
            stopped = stream.add(token)
            pieces.append(stream.next_content())
            if stopped:
                break
        pieces.append(stream.last_content())
        expected = written.partition(stops[-1])[0] + (stops[-1] if keep_stop else "")
        assert "".join(pieces) == stream.text == expected


# Other servers: how a model wants to be asked, and how often.

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


def test_a_streamed_answer_is_the_whole_one(client: openai.OpenAI, endpoint: Endpoint) -> None:
    written = text(client)
    stop = written[len(written) // 2 :][:3]
    streamed = Endpoint(endpoint.base_url, "policy", options=RequestOptions(stream=True))
    conversation = [{"role": "user", "content": QUESTION}]

    async def ask_streamed() -> Completion:
        async with open_client(streamed, 20.0) as client:
            return await complete(client, streamed, messages=conversation, stop=stop, **ANSWER)

    completion = asyncio.run(ask_streamed())
    assert completion.message.text == written.partition(stop)[0]
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 0


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


SPENT = {
    "OpenAI": {
        "error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}
    },
    "OpenAI's type, NextChat#449": {
        "error": {
            "message": "You exceeded your current quota, please check your plan and billing details.",
            "type": "insufficient_quota",
            "code": None,
        }
    },
    "xAI, continue#10373": {
        "error": "Your team has either used all available credits or reached its monthly spending limit."
    },
    "Moonshot, continue#11443": {
        "error": {
            "message": "Your account is suspended due to insufficient balance, please recharge your account"
        }
    },
    "Zhipu": {
        "error": {
            "code": "1113",
            "message": "\u4f59\u989d\u4e0d\u8db3\u6216\u65e0\u53ef\u7528\u8d44\u6e90\u5305",
        }
    },
    "OpenRouter, cline#5301": {
        "error": {"message": "Rate limit exceeded: free-models-per-day. Add 10 credits"}
    },
    "Gemini's quota of a day": [
        {
            "error": {
                "message": "Quota exceeded. Please retry in 34s.",
                "quotaId": "GenerateRequestsPerDayPerProject",
            }
        }
    ],
    "SerpApi, serpapi-python#16": {"error": "Your account has run out of searches."},
    "Google": {
        "error": {
            "message": "Quota exceeded for quota metric 'Queries' and limit 'Queries per day'"
        }
    },
}


@pytest.mark.parametrize("body", SPENT.values(), ids=SPENT)
def test_an_account_without_money_is_not_waited_for(chat_server: ChatServer, body: object) -> None:
    chat_server.script.append(response(body, 429))
    with pytest.raises(openai.RateLimitError):
        asyncio.run(answer_of(Endpoint(chat_server.url, "m")))
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize("body", SPENT.values(), ids=SPENT)
def test_an_embeddings_endpoint_without_money_is_not_waited_for(
    chat_server: ChatServer, body: object
) -> None:
    chat_server.script.append(response(body, 429))
    with pytest.raises(EndpointDownError, match="answered 429"):
        embeddings_of(chat_server).encode(["a"], "query")
    assert len(chat_server.requests) == 1


def embeddings_of(server: ChatServer, **changes: Any) -> RemoteEncoder:
    values = {
        "base_url": server.url,
        "model": "m",
        "api_key_variable": None,
        "dimension": 1,
        "query_prefix": "",
    }
    values |= {
        "name": "remote",
        "passage_prefix": "",
        "max_characters": None,
        "batch_texts": 1,
        "concurrency": 1,
    }
    values |= {"timeout_s": 5.0, "retries": 2}
    return RemoteEncoder(EmbeddingsConfig.model_validate(values | changes))


@pytest.mark.slow
def test_an_embeddings_endpoint_that_takes_no_more_requests_is_waited_for(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepsearch_rl.core.retries.FIRST_CAPACITY_WAIT_S", 0.01)
    for _ in range(5):  # more than its attempts
        chat_server.script.append(response('{"error": {"message": "slow down"}}', 429))
    chat_server.script.append('{"data": [{"index": 0, "embedding": [1.0]}]}')
    assert embeddings_of(chat_server).encode(["a"], "query").tolist() == [[1.0]]


def test_embeddings_requests_of_a_process_share_a_limit(
    chat_server: ChatServer, limit_clock: LimitClock
) -> None:
    chat_server.reply = lambda _: '{"data": [{"index": 0, "embedding": [1.0]}]}'
    for _ in range(2):
        embeddings_of(chat_server, requests_per_minute=120, concurrency=8).encode(
            ["a"] * 7, "passage"
        )
    assert limit_clock.waited_s > 0.8


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
