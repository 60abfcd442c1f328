"""What clients ask of the CPU model server, through the OpenAI SDK."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from deepsearch_rl.chat.chat_format import assistant_message, load_chat_format
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.client import complete, open_client
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.request_options import RequestOptions
from deepsearch_rl.serve.chat_answer import AnswerText
from tests.model_servers import running_engine, serve_here

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
