"""Turns and refusals as providers really send them, through the agent."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.agent.steps import NO_ROOM_LEFT
from deepsearch_rl.chat import chat_messages
from deepsearch_rl.chat.endpoint import RemoteConfig, read_remote, resolve_endpoint
from deepsearch_rl.chat.request_options import RequestOptions, remedy
from deepsearch_rl.core.profile import find_profile
from deepsearch_rl.core.records import StopReason, Trajectory
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
    "special tokens dropped, and the role stays": (
        f"assistantanalysis{HALF}assistantanalysisMore.assistantfinal{ANSWER}",
        True,
    ),
    "special tokens dropped, and the prompt opened the analysis": (
        f"{HALF}assistantfinal{ANSWER}",
        True,
    ),
    "special tokens dropped, a preamble": (
        f"analysis{HALF}assistantcommentary{HALF}assistantfinal{ANSWER}",
        True,
    ),
    "special tokens dropped, a small letter": (
        f"analysiswe see {HALF}assistantfinal{ANSWER}",
        True,
    ),
    "special tokens dropped, cut": (f"assistantanalysis{HALF}", False),
    "special tokens dropped, no role, cut": (f"analysis{HALF}", False),
    "special tokens dropped, a preamble alone": (f"assistantcommentary{HALF}", False),
    "the word analysis": (f"analysis of the passages: {ANSWER}", True),
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


QUERY = '{"query": "x"}'
LEFT_CALLS: dict[str, tuple[str, str]] = {
    "Hermes": (RAW_CALL, "hermes"),
    "Qwen3-Coder": (
        "<tool_call>\n<function=retrieve>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>",
        "qwen3_coder",
    ),
    "Qwen3-Coder, the mark dropped": (
        "<function=retrieve>\n<parameter=query>\nx\n</parameter>\n</function>",
        "qwen3_coder",
    ),
    "GLM": (
        "<tool_call>retrieve\n<arg_key>query</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
        "glm45",
    ),
    "Kimi K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.retrieve:0<|tool_call_argument_begin|>"
        f"{QUERY}<|tool_call_end|><|tool_calls_section_end|>",
        "kimi_k2",
    ),
    "DeepSeek V3": (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>retrieve\n```json\n"
        + QUERY,
        "deepseek_v3",
    ),
    "DeepSeek V3.1": (
        f"<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>retrieve<\uff5ctool\u2581sep\uff5c>{QUERY}<\uff5ctool\u2581call\u2581end\uff5c>",
        "deepseek_v31",
    ),
    "DeepSeek V3.2": (
        '<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="retrieve">',
        "deepseek_v32",
    ),
    "Mistral, a list": (f'[TOOL_CALLS] [{{"name": "retrieve", "arguments": {QUERY}}}]', "mistral"),
    "Mistral, a name": (f"[TOOL_CALLS]retrieve[ARGS]{QUERY}", "mistral"),
    "Llama 3": (f'{{"name": "retrieve", "parameters": {QUERY}}}', "llama3_json"),
    "Llama 3 with its mark": ('<|python_tag|>{"name": "retrieve"}', "llama3_json"),
    "Llama 3's functions": (f"<function=retrieve>{QUERY}</function>", "llama3_json"),
    "Llama 4": ('[retrieve(query="x")]', "pythonic"),
    "MiniMax": (
        '<minimax:tool_call>\n<invoke name="retrieve">\n<parameter name="query">x</parameter>',
        "minimax_m2",
    ),
    "Gemma 4": ('<|tool_call>call:retrieve{query:<|"|>x<|"|>}<tool_call|>', "gemma4"),
    "FunctionGemma": (
        "<start_function_call>call:retrieve{query:<escape>x<escape>}<end_function_call>",
        "functiongemma",
    ),
    "Gemma 3": ('```tool_code\nretrieve(query="x")\n```', "pythonic"),
    "gpt-oss": (
        f"<|channel|>commentary to=functions.retrieve <|constrain|>json<|message|>{QUERY}<|call|>",
        "openai",
    ),
    "gpt-oss, special tokens dropped": (
        f"analysisI search.assistantcommentary to=functions.retrieve json{QUERY}",
        "openai",
    ),
    "gpt-oss, the recipient with the role": (
        f" to=functions.retrieve<|channel|>commentary json<|message|>{QUERY}<|call|>",
        "openai",
    ),
    "DeepSeek V3.2, the mark dropped": (
        '<function_calls>\n<invoke name="retrieve">\n<parameter name="query">x</parameter>',
        "deepseek_v32",
    ),
    "LFM2": ('<|tool_call_start|>[retrieve(query="x")]<|tool_call_end|>', "lfm2"),
    "Nemotron": (
        f'<TOOLCALL>[{{"name": "retrieve", "arguments": {QUERY}}}]</TOOLCALL>',
        "nemotron_json",
    ),
    "InternLM": (
        f'<|action_start|><|plugin|>\n{{"name": "retrieve", "parameters": {QUERY}}}<|action_end|>',
        "internlm",
    ),
    "LongCat": (f'<longcat_tool_call>{{"name": "retrieve", "arguments": {QUERY}}}', "longcat"),
    "Step 3": ("<\uff5ctool_calls_begin\uff5c><\uff5ctool_call_begin\uff5c>function", "step3"),
    "xLAM": (f'[{{"name": "retrieve", "arguments": {QUERY}}}]', "xlam"),
    "a fence": (f'```json\n{{"name": "retrieve", "arguments": {QUERY}}}\n```', "NAME"),
    "a text before it": (f'I search.\n{{"name": "retrieve", "parameters": {QUERY}}}', "NAME"),
    "Mistral, the mark dropped": (f"retrieve[ARGS]{QUERY}", "NAME"),
    "GLM-4": (f"retrieve\n{QUERY}", "NAME"),
    "Python": ('retrieve(query="x")', "NAME"),
}


@pytest.mark.parametrize(("text", "parser"), LEFT_CALLS.values(), ids=LEFT_CALLS)
@pytest.mark.parametrize("field", ["content", "reasoning"])
def test_a_call_that_the_server_left_in_the_text_is_told_with_the_option_that_parses_it(
    chat_server: Any,
    answer: Answer,
    caplog: pytest.LogCaptureFixture,
    text: str,
    parser: str,
    field: str,
) -> None:
    chat_messages.warn_once.cache_clear()
    message = {"role": "assistant", "content": None, field: text}
    chat_server.script.append(reply({"index": 0, "message": message, "finish_reason": "stop"}))
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOOL_CALL_UNPARSABLE
    assert f"--tool-call-parser {parser}" in (trajectory.error or "")
    assert f"--tool-call-parser {parser}" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        f"{RAW_CALL}\n<tool_call>\n{{'name'\n</tool_call>",
        '<tool_call>\n{"name": "retrieve"}\n</tool_call>',
        "<tool_call>retrieve x</tool_call>",
        RAW_CALL.removesuffix("</tool_call>"),
    ],
)
def test_a_call_that_no_server_can_read_is_the_models_own_mistake(
    chat_server: Any, answer: Answer, text: str
) -> None:
    chat_server.says(text)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.TOOL_CALL_UNPARSABLE
    assert trajectory.error == "a tool call that the server could not parse"


def test_the_tools_name_in_a_text_is_no_call(chat_server: Any, answer: Answer) -> None:
    chat_server.says('I would retrieve "Silent Harbor" (retrieve: query).')
    assert answer().stop_reason is StopReason.NO_ANSWER_TAG


@pytest.mark.parametrize(
    "name",
    # tilesprivacy/tiles#162
    ["functions.retrieve<|channel|>analysis", "retrieve<|channel|>json", "default_api:retrieve"],
)
def test_what_a_server_leaves_of_a_format_around_the_tools_name_is_not_part_of_it(
    chat_server: Any, searches: Any, answer: Answer, name: str
) -> None:
    chat_server.script.append(searching(function={"name": name}))
    chat_server.says(ANSWER)
    assert answer().answer == "Mary Moss"
    assert searches.queries == ["x"]
    sent = chat_server.requests[1]["messages"][2]["tool_calls"][0]["function"]
    assert sent["name"] == "retrieve"


def test_an_answer_that_quotes_a_call_in_its_thought_is_an_answer(
    chat_server: Any, answer: Answer
) -> None:
    chat_server.says(f"<think>{RAW_CALL}</think>{ANSWER}")
    assert answer().answer == "Mary Moss"


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


SIGNATURE = {"google": {"thought_signature": "c2ln"}}
DETAILS = [{"type": "reasoning.encrypted", "data": "ZW5j", "index": 0}]


def searching(
    *, call: dict[str, Any] | None = None, function: dict[str, Any] | None = None, **message: Any
) -> str:
    """Return the body of a turn that searches once, with some of its fields added or replaced."""
    asked = {"name": "retrieve", "arguments": QUERY, **(function or {})}
    calls = [{"id": "call_1", "type": "function", "function": asked, **(call or {})}]
    whole = {"role": "assistant", "content": "", "tool_calls": calls, **message}
    return reply({"index": 0, "message": whole, "finish_reason": "tool_calls"})


def test_what_only_the_provider_understands_goes_back_to_it_and_into_no_record(
    chat_server: Any, answer: Answer
) -> None:
    # openhuman#3548, langchain-ai/langchain#37347; LiteLLM has fields of the function as well
    chat_server.script.append(
        searching(
            call={"index": 0, "extra_content": SIGNATURE},
            function={"provider_specific_fields": {"a": "\ud83d"}},
            reasoning_details=DETAILS,
            thinking_blocks=[{"type": "thinking", "signature": "s"}],
            annotations=[],
            refusal=None,
        )
    )
    chat_server.says(ANSWER)
    trajectory = answer()
    sent = chat_server.requests[1]["messages"][2]
    [call] = sent["tool_calls"]
    assert call["extra_content"] == SIGNATURE
    assert call["function"]["provider_specific_fields"] == {"a": "?"}
    assert sent["reasoning_details"] == DETAILS
    assert sent["thinking_blocks"] == [{"type": "thinking", "signature": "s"}]
    assert call.keys() == {"id", "type", "function", "extra_content"}
    assert {"annotations", "refusal"}.isdisjoint(sent)
    stored = trajectory.model_dump_json()
    assert "thought_signature" not in stored
    assert Trajectory.model_validate_json(stored) == trajectory


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("agent", {"reasoning_details"}),
        ("omit", set()),
        ("reasoning_content", {"reasoning_details", "reasoning_content"}),
        ("reasoning", {"reasoning_details", "reasoning"}),
    ],
)
def test_reasoning_goes_back_under_the_name_that_the_models_option_gives(
    chat_server: Any, answer: Answer, option: str, fields: set[str]
) -> None:  # agent-framework#2947, crush#2754
    chat_server.script.append(
        searching(reasoning_content="I need a search.", reasoning_details=DETAILS)
    )
    chat_server.says(ANSWER)
    options = RequestOptions.model_validate({"history_reasoning": option})
    answer(endpoint=dataclasses.replace(chat_server.endpoint, options=options))
    sent = chat_server.requests[1]["messages"][2]
    assert {name for name in sent if "reasoning" in name} == fields
    assert all(sent[name] == "I need a search." for name in fields - {"reasoning_details"})


@pytest.mark.parametrize("id_", [None, "", 7, 0, "call_0fypS1hVX", "chatcmpl-tool-" + 32 * "a"])
def test_ids_that_go_back_fit_the_strictest_provider(
    chat_server: Any, answer: Answer, id_: object
) -> None:  # langchain-ai/langchain#24668, opencode#19947
    chat_server.script.append(searching(call={"id": id_}))
    chat_server.says(ANSWER)
    assert answer().answer == "Mary Moss"
    turn, result = chat_server.requests[1]["messages"][2:]
    assert re.fullmatch("[a-zA-Z0-9]{9}", turn["tool_calls"][0]["id"])
    assert result["tool_call_id"] == turn["tool_calls"][0]["id"]


@pytest.mark.parametrize("id_", ["D681PevKs", "functions.retrieve:0", "call_1__thought__CiQBAA=="])
def test_an_id_that_means_something_goes_back_as_it_is(
    chat_server: Any, answer: Answer, id_: str
) -> None:
    chat_server.script.append(searching(call={"id": id_}))
    chat_server.says(ANSWER)
    answer()
    assert chat_server.requests[1]["messages"][2]["tool_calls"][0]["id"] == id_


def test_an_id_that_the_providers_own_fields_name_goes_back_as_it_is(
    chat_server: Any, answer: Answer
) -> None:  # RooCodeInc/Roo-Code#10640
    id_ = "tool_retrieve_mL716LwhunURIXx4ZUZf"
    details = [{"type": "reasoning.encrypted", "data": "ZW5j", "id": id_, "index": 0}]
    chat_server.script.append(searching(call={"id": id_}, reasoning_details=details))
    chat_server.says(ANSWER)
    answer()
    turn, result = chat_server.requests[1]["messages"][2:]
    assert turn["reasoning_details"] == details
    assert turn["tool_calls"][0]["id"] == result["tool_call_id"] == id_


LOOSE_ARGUMENTS: dict[str, tuple[object, str]] = {
    "an object, openai-agents#227": ({"query": "x"}, "x"),
    "a number, colibri#118": ('{"query": 1984}', "1984"),
    "a fraction": ({"query": 9.5}, "9.5"),
    "a list of one text": ('{"query": ["x"]}', "x"),
    "JSON in a text of JSON": (json.dumps(QUERY), "x"),
}


@pytest.mark.parametrize(("arguments", "query"), LOOSE_ARGUMENTS.values(), ids=LOOSE_ARGUMENTS)
def test_arguments_are_read_as_what_they_mean(
    chat_server: Any, searches: Any, answer: Answer, arguments: object, query: str
) -> None:
    chat_server.script.append(searching(function={"arguments": arguments}))
    chat_server.says(ANSWER)
    assert answer().answer == "Mary Moss"
    assert searches.queries == [query]
    sent = chat_server.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(sent, str)


@pytest.mark.parametrize("function", [{"arguments": None}, {"arguments": []}])
def test_a_call_without_arguments_is_the_models_own_mistake(
    chat_server: Any, answer: Answer, function: dict[str, Any]
) -> None:  # autogen#5257
    chat_server.script.append(searching(function=function))
    assert answer().stop_reason is StopReason.TOOL_CALL_UNPARSABLE
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 50.0, "completion_tokens": 7.4}, (50, 7)),  # claudexor#173
        ({"prompt_tokens": "50", "completion_tokens": "7"}, (50, 7)),
        ({"prompt_tokens": [50], "completion_tokens": [7]}, (50, 7)),
        ([{"prompt_tokens": 50, "completion_tokens": 7}], (50, 7)),
        ({"prompt_tokens": "many", "completion_tokens": 7}, (0, 7)),
        ({"prompt_tokens": -1, "completion_tokens": -1}, None),
        ("none", None),
        ([], None),
    ],
)
def test_usage_is_read_as_what_it_means_and_costs_no_answer(
    chat_server: Any, answer: Answer, usage: object, counted: tuple[int, int] | None
) -> None:
    message = {"role": "assistant", "content": ANSWER}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    chat_server.script.append(reply(choice, usage=usage))
    trajectory = answer()
    assert trajectory.answer == "Mary Moss"
    found = [(used.prompt_tokens, used.completion_tokens) for used in trajectory.usage]
    assert found == ([counted] if counted else [])


def test_usage_that_cannot_be_read_is_warned_of(
    chat_server: Any, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    chat_messages.warn_once.cache_clear()
    message = {"role": "assistant", "content": ANSWER}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    chat_server.script.append(reply(choice, usage={"prompt_tokens": "many"}))
    answer()
    assert "usage cannot be read: 'many'" in caplog.text


@pytest.mark.parametrize(
    "ending", ["tool_call", "toolUse", "TOOL_CALLS", "function_call", "", None]
)
def test_a_call_is_carried_out_by_whatever_word_its_turn_ends(
    chat_server: Any, searches: Any, answer: Answer, ending: str | None
) -> None:
    body = json.loads(searching())
    body["choices"][0]["finish_reason"] = ending
    chat_server.script.append(json.dumps(body))
    chat_server.says(ANSWER)
    assert answer().answer == "Mary Moss"
    assert searches.queries == ["x"]


def test_a_call_in_the_older_form_is_carried_out(
    chat_server: Any, searches: Any, answer: Answer
) -> None:
    function = {"name": "retrieve", "arguments": QUERY}
    message = {"role": "assistant", "content": None, "function_call": function}
    chat_server.script.append(
        reply({"index": 0, "message": message, "finish_reason": "function_call"})
    )
    chat_server.says(ANSWER)
    assert answer().answer == "Mary Moss"
    assert searches.queries == ["x"]


def test_a_turn_that_ends_in_a_call_and_has_none_says_so(chat_server: Any, answer: Answer) -> None:
    chat_server.says("I search.", finish_reason="tool_calls")
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert "finish_reason 'tool_calls' without a call" in (trajectory.error or "")


@pytest.mark.parametrize("text", [ANSWER, RAW_CALL])
def test_a_turn_that_ends_in_a_call_and_has_none_is_read_where_it_says_something(
    chat_server: Any, answer: Answer, text: str
) -> None:
    chat_server.says(text, finish_reason="tool_calls")
    expected = StopReason.ANSWERED if text == ANSWER else StopReason.TOOL_CALL_UNPARSABLE
    assert answer().stop_reason is expected
    assert len(chat_server.requests) == 1


THOUGHT = "the prompt is too long, I need to shorten"
ECHOES: dict[str, object] = {
    "FastAPI": {
        "detail": [{"type": "string_type", "msg": "Input should be a list", "input": THOUGHT}]
    },
    "vLLM": {
        "message": repr([{"type": "missing", "msg": "Field required", "input": THOUGHT}]),
        "type": "BadRequestError",
    },
    "a whole message": {"message": f"bad message: {json.dumps({'content': THOUGHT})}"},
    "in part": {"message": f"Invalid content: '{THOUGHT[:-8]}...'"},
    "a query": {"error": {"message": "not valid: {'query': 'context window'}"}},
}


@pytest.mark.parametrize("body", ECHOES.values(), ids=ECHOES)
def test_words_of_the_request_in_a_refusal_mean_nothing(
    chat_server: Any, answer: Answer, body: object
) -> None:
    function = {"arguments": '{"query": "context window"}'}
    chat_server.script.append(searching(content=THOUGHT, function=function))
    chat_server.script.append(response(body, 400))
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert THOUGHT[:20] not in (trajectory.error or "")
    assert len(chat_server.requests) == 2


def test_words_of_the_request_in_a_failure_under_status_200_mean_nothing(
    chat_server: Any, answer: Answer
) -> None:
    raw = json.dumps({"detail": [{"msg": "Input should be a list", "input": THOUGHT}]})
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}
    chat_server.script += [searching(content=THOUGHT), json.dumps({"error": error})]
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert "Input should be a list" in (trajectory.error or "")


def test_the_servers_own_words_count_beside_the_same_words_of_the_request(
    chat_server: Any, answer: Answer
) -> None:
    chat_server.script.append(searching(content=THOUGHT))
    message = "prompt is too long: 903884 tokens > 200000 maximum"
    chat_server.script.append(response({"error": {"message": message, "input": THOUGHT}}, 400))
    chat_server.says(ANSWER)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.messages[-2].content == NO_ROOM_LEFT


@pytest.mark.parametrize("status", [408, 409, 424, 425, 499])
def test_a_status_that_passes_is_asked_again(chat_server: Any, answer: Answer, status: int) -> None:
    chat_server.script.append(response({"error": {"message": "try later"}}, status))
    chat_server.says(ANSWER)
    assert answer().answer == "Mary Moss"


@pytest.mark.parametrize(
    "message",
    [
        # vanna-ai/vanna-flask#11
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.",
        "Request too large: Limit 6,000, Used 12, Requested 13,141, please reduce your message size",
        # google-gemini/gemini-cli#22486
        "Quota exceeded for metric: free_tier_requests, limit: 0, model: gemini-3-pro\nPlease retry in 25.4s.",
    ],
)
def test_a_request_larger_than_a_minutes_limit_is_not_waited_for(
    chat_server: Any, answer: Answer, message: str
) -> None:
    chat_server.script.append(response({"error": {"message": message}}, 429))
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert len(chat_server.requests) == 1
    assert "which one request exceeds" in remedy(trajectory.error or "")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "The response was filtered", "code": "content_filter"}}),
        (400, {"error": {"message": "Content Exists Risk"}}),
        (400, {"code": "data_inspection_failed"}),
        (400, {"error": {"code": "SensitiveContentDetected"}}),
        (403, {"error": {"message": "requires moderation and your input was flagged"}}),
        (200, {"base_resp": {"status_code": 1026, "status_msg": "input new_sensitive"}}),
        (200, {"choices": [{"message": {"content": ""}, "finish_reason": "sensitive"}]}),
        (200, {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}),
    ],
)
def test_a_content_filter_that_passages_hit_says_so_with_their_search(
    chat_server: Any, answer: Answer, status: int, body: object
) -> None:
    chat_server.script += [searching(), response(body, status)]
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert "content filter was hit by the passages of the search 'x'" in (trajectory.error or "")


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
