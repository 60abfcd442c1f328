"""Turns and refusals as providers really send them, through the agent."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.agent.steps import NO_ROOM_LEFT
from deepsearch_rl.chat import chat_messages
from deepsearch_rl.chat.endpoint import RemoteConfig, read_remote, resolve_endpoint
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import StopReason
from tests.agent.conftest import ANSWER, Answer, response
from tests.agent.test_provider_replies import reply
from tests.conftest import ROOT

RAW_CALL = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "one"}}\n</tool_call>'


TURNS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "a newline before the call": ({"content": "I search.\n"}, "I search.", None),
    "two newlines": ({"content": "I search.\n\n"}, "I search.\n", None),
    "a carriage return": ({"content": "I search.\r\n"}, "I search.\r", None),
    "other white space": ({"content": "\u00a0 I search. \n"}, "\u00a0 I search. ", None),
    "the call twice": ({"content": f"I search.\n{RAW_CALL}"}, "I search.", None),
    "the call twice after two newlines": (
        {"content": f"I search.\n\n{RAW_CALL}\n{RAW_CALL}"},
        "I search.\n",
        None,
    ),
    "a call quoted in a thought": (
        {"content": f"<think>\nMaybe {RAW_CALL} helps.\n</think>\n\nI search.\n{RAW_CALL}"},
        "I search.",
        f"Maybe {RAW_CALL} helps.",
    ),
    "white space in a thought": (
        {"content": "<think>\n  Step 1:\n\tdo \n</think>\n\nI search.\n"},
        "I search.",
        "  Step 1:\n\tdo ",
    ),
    "white space in a field": (
        {"content": "\n\nI search.\n", "reasoning": "\n  Step 1:\n\tdo \n"},
        "I search.",
        "  Step 1:\n\tdo ",
    ),
    "a thought that the prompt opened": (
        {"content": " Step 1: \n</think>\n\nI search.\n"},
        "I search.",
        " Step 1: ",
    ),
    "an indented text after a thought": (
        {"content": "<think>a</think>\n\n  I search.\n"},
        "  I search.",
        "a",
    ),
    "a thought in other tags": (
        {"content": "<thinking> a </thinking>I search.\n"},
        "<thinking> a </thinking>I search.",
        None,
    ),
}


@pytest.mark.parametrize(("message", "content", "reasoning"), TURNS.values(), ids=TURNS)
def test_a_turn_is_sent_back_as_it_was_sampled(
    chat_server: Any,
    answer: Answer,
    message: dict[str, Any],
    content: str,
    reasoning: str | None,
) -> None:
    query = 'caf\u00e9 "x" \\ \u2028 </tool_call>'
    function = {"name": "retrieve", "arguments": json.dumps({"query": query})}
    call = {"id": "a", "type": "function", "function": function}
    message = {"role": "assistant", **message, "tool_calls": [call]}
    chat_server.script.append(
        reply({"index": 0, "message": message, "finish_reason": "tool_calls"})
    )
    chat_server.says(ANSWER)

    trajectory = answer(history_reasoning=True)
    sent, result = chat_server.requests[1]["messages"][2:4]
    assert (sent["content"], sent.get("reasoning")) == (content, reasoning)
    assert sent["reasoning_content"] == reasoning if reasoning else "reasoning_content" not in sent
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"query": query}
    assert result["content"] == trajectory.messages[3].content


FINAL = f"<|channel|>final<|message|>{ANSWER}"


HALF = "Perhaps <answer>no</answer>"


CHANNELS: dict[str, tuple[str, bool]] = {
    # vllm-project/vllm#23694, waybarrios/vllm-mlx#53
    "analysis and final": (
        f"<|channel|>analysis<|message|>{HALF}<|end|><|start|>assistant{FINAL}<|return|>",
        True,
    ),
    "final alone": (f"{FINAL}<|return|>", True),
    "no end between": (f"<|channel|>analysis<|message|>{HALF}{FINAL}", True),
    "the prompt opened the analysis": (f"{HALF}<|end|><|start|>assistant{FINAL}", True),
    "a preamble": (f"<|channel|>commentary<|message|>{HALF}<|end|><|start|>assistant{FINAL}", True),
    "special tokens dropped": (f"analysis{HALF}assistantfinal{ANSWER}", True),
    "cut": (f"<|channel|>analysis<|message|>{HALF}", False),
    "cut in the next header": (f"<|channel|>analysis<|message|>{HALF}<|end|><|channel|>fin", False),
    "a preamble alone": (f"<|channel|>commentary<|message|>{HALF}<|end|>", False),
    # Tags as models vary them
    "white space in the tags": (f"<think >{HALF}</think >{ANSWER}", True),
    "a line break in the tag": (f"<think\n>{HALF}</think>{ANSWER}", True),
    "an attribute": (f'<think type="deep" n=2>{HALF}</think>{ANSWER}', True),
    "capitals": (f"<THINK>{HALF}</Think>{ANSWER}", True),
    "another name with an attribute": (f"<thinking mode='slow'>{HALF}</thinking>{ANSWER}", True),
    "white space in the closing tag alone": (f"{HALF}</think >{ANSWER}", True),
    "white space, never closed": (f"<think >{HALF}", False),
    "an attribute, never closed": (f'<think type="deep">{HALF}', False),
    "no tag": (f"a < think> b <think so> {ANSWER}", True),
}


@pytest.mark.parametrize(("text", "is_answer"), CHANNELS.values(), ids=CHANNELS)
def test_channels_and_varied_tags_hold_thoughts_and_answers_as_others_do(
    chat_server: Any,
    answer: Answer,
    text: str,
    is_answer: bool,
) -> None:
    chat_server.says(text)
    trajectory = answer()
    assert trajectory.answer == ("Mary Moss" if is_answer else "")


def test_a_call_in_channels_that_the_server_left_in_the_text_is_unparsable(
    chat_server: Any, answer: Answer
) -> None:
    chat_server.says(
        '<|channel|>commentary to=functions.retrieve <|constrain|>json<|message|>{"query": "x"}<|call|>'
    )
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOOL_CALL_UNPARSABLE


def test_no_channel_is_sent_back(chat_server: Any, answer: Answer) -> None:
    """The model's own template refuses a content with such marks."""
    chat_server.says(f"<|channel|>analysis<|message|>Look.<|end|><|start|>assistant{FINAL}", "one")
    chat_server.says(ANSWER)
    answer(history_reasoning=True)
    sent = chat_server.requests[1]["messages"][2]
    assert (sent["content"], sent["reasoning"]) == (ANSWER, "Look.")


def test_an_endpoint_whose_prompts_open_the_thought_is_described_and_asked_for_where_it_shows(
    chat_server: Any,
    answer: Answer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat_messages.warn_once.cache_clear()
    chat_server.says(f"{HALF}</think>{ANSWER}")
    assert answer().answer == "Mary Moss"
    assert "begins_in_thought: true" in caplog.text
    monkeypatch.setenv("KEY", "k")
    described = {"base_url": chat_server.url, "model": "m", "api_key_variable": "KEY"}
    for begins, expected in ((False, "no"), (True, "")):
        request = {"request": {"begins_in_thought": begins}}
        (tmp_path / "endpoint.json").write_text(json.dumps(described | request))
        remote = read_remote(tmp_path)
        assert remote is not None
        begins_in_thought = resolve_endpoint(remote).begins_in_thought
        asked = dataclasses.replace(chat_server.endpoint, begins_in_thought=begins_in_thought)
        chat_server.script[:] = []
        chat_server.says(HALF)  # cut in its thought
        thought = answer(endpoint=asked)
        assert thought.answer == expected
    assert remote.of_answers()["request"] == {"begins_in_thought": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, ""),  # Cerebras, openclaw/openclaw#119596
        (413, "<html><h1>413 Request Entity Too Large</h1></html>"),
        (400, ""),  # earendil-works/pi#129
        (400, "{}"),
        (400, "null"),
        # can1357/oh-my-pi#1251
        (400, '{"error": "Error from inference backend: 400 status code (no body)"}'),
    ],
)
def test_a_refusal_without_a_word_is_about_the_length_where_a_shorter_prompt_was_answered(
    chat_server: Any,
    answer: Answer,
    status: int,
    body: str,
) -> None:
    chat_server.says("", "one")
    attempts = 4 if status == 400 else 1
    chat_server.script += [response(body, status)] * attempts
    chat_server.says(ANSWER)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.messages[-2].content == NO_ROOM_LEFT
    assert len(chat_server.requests) == attempts + 2


def test_a_wordless_refusal_that_passes_or_comes_first_is_the_servers(
    chat_server: Any,
    answer: Answer,
) -> None:  # earendil-works/pi#8682, earendil-works/pi#9482
    chat_server.says("", "one")
    chat_server.script.append(response("", 400))
    chat_server.says(ANSWER)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert NO_ROOM_LEFT not in trajectory.messages[-2].content
    chat_server.script[:] = [response("", 400)]
    chat_server.requests.clear()
    first = answer()
    assert first.stop_reason is StopReason.MODEL_ERROR
    assert len(chat_server.requests) == 4


def test_a_limit_of_tokens_in_a_minute_is_no_prompt_that_is_too_large(
    chat_server: Any, answer: Answer
) -> None:
    body = '{"error": {"message": "Request too large on tokens per minute (TPM): Limit 10000"}}'
    chat_server.script.append(response(body, 413))
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR


@pytest.mark.parametrize("profile", ["gpu", "thinking"])
def test_the_teacher_of_a_profile_is_asked_for_several_calls_in_a_turn(
    profile: str, chat_server: Any, answer: Answer
) -> None:
    """DashScope allows one call a reply where a request does not say otherwise."""
    teacher = find_profile(ROOT, profile).mapping("endpoints", RemoteConfig)["teacher"]
    chat_server.says("", "one", "two")
    chat_server.says(ANSWER)
    trajectory = answer(endpoint=dataclasses.replace(chat_server.endpoint, options=teacher.request))
    assert [request["parallel_tool_calls"] for request in chat_server.requests] == [True, True]
    assert len(trajectory.retrievals) == 2
