"""Replies of model servers that public reports quote, each with its source (repository#number)."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.agent.steps import NO_ROOM_LEFT
from deepsearch_rl.chat.chat_messages import OTHER_THOUGHTS
from deepsearch_rl.chat.model_failures import WORDINGS, failure_in
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.records import StopReason
from deepsearch_rl.environment.exchange import export_rows
from deepsearch_rl.evaluate.ifeval import (
    IfevalConfig,
    IfevalResponse,
    evaluate_ifeval,
    generated_prompts,
)
from deepsearch_rl.train.rewards import PolicyText, ThinkLength, reward_parts
from tests.agent.conftest import ANSWER, QUESTION, Answer, response

POLICY = PolicyText(len, ThinkLength(min_tokens=1, full_score_tokens=10, max_tokens=100))


def reply(choice: object, **fields: object) -> str:
    """Return the body of a completion with one choice."""
    whole = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
    }
    return json.dumps(whole | fields)


def said(content: str | None, finish_reason: str | None, **fields: object) -> dict[str, object]:
    """Return a choice with a text."""
    message = {"role": "assistant", "content": content}
    return {"index": 0, "message": message, "finish_reason": finish_reason, **fields}


USAGE = {"prompt_tokens": 50, "completion_tokens": 0, "total_tokens": 50}
DISCONNECTED = {"code": 502, "message": "Upstream disconnected"}
FAILED_GENERATIONS = {
    # maximhq/bifrost#5425
    "an error object": (
        reply(said("", "error", error=DISCONNECTED)),
        "Upstream disconnected (code 502)",
    ),
    "a partial text": (
        reply(
            said('{"events": [', "error"), usage={"prompt_tokens": None, "completion_tokens": None}
        ),
        "finish_reason 'error'",
    ),
    "an answer that an error cut": (reply(said(ANSWER, "error")), "finish_reason 'error'"),
    "an error beside a good ending": (
        reply(said(ANSWER, "stop", error="overloaded")),
        "overloaded",
    ),
    "an error in place of choices": (
        json.dumps({"error": DISCONNECTED}),
        "Upstream disconnected (code 502)",
    ),
    # firebase/genkit#6259
    "a filter": (reply(said("<answer>Ma", "content_filter")), "finish_reason 'content_filter'"),
    "Gemini's own word": (
        reply(said(None, "MALFORMED_FUNCTION_CALL"), usage=USAGE),
        "finish_reason 'MALFORMED_FUNCTION_CALL'",
    ),
    "Gemini's word behind a hub": (
        reply(said("", "error", native_finish_reason="MALFORMED_FUNCTION_CALL")),
        "finish_reason 'error', MALFORMED_FUNCTION_CALL",
    ),
    "DeepSeek's word": (
        reply(said("<answer>Ma", "insufficient_system_resource")),
        "finish_reason 'insufficient_system_resource'",
    ),
    "a word that nobody knows": (reply(said(ANSWER, "tired")), "finish_reason 'tired'"),
    "vLLM's abort": (reply(said("<answer>Ma", "abort")), "finish_reason 'abort'"),
    # langchain-ai/deepagents#417
    "nothing at all": (reply(said("", "stop"), usage=USAGE), "nothing was generated"),
    "nothing, and no count": (reply(said(None, "stop")), "nothing was generated"),
    "nothing, and no ending": (reply(said("", None)), "nothing was generated"),
    # MiniMax-AI/MiniMax-01#15: the error stands in base_resp, choices are null
    "MiniMax's own place": (
        json.dumps(
            {"choices": None, "base_resp": {"status_code": 1000, "status_msg": "unknown error"}}
        ),
        "unknown error (code 1000)",
    ),
    "an error without an object around it": (
        json.dumps({"code": "InternalError", "message": "The model is down.", "request_id": "r"}),
        "The model is down. (code InternalError)",
    ),
    "no choices": (
        json.dumps({"choices": []}),
        "nothing was generated, the response has no choices",
    ),
    "choices that are null": (
        json.dumps({"choices": None}),
        "nothing was generated, the response has no choices",
    ),
    "a detail": (json.dumps({"detail": "worker died"}), "worker died"),
    "a detail in a stream": ('data: {"detail": "worker died"}\n\n', "worker died"),
    # NousResearch/hermes-agent#94199
    "the words of a provider behind a hub": (
        json.dumps({"error": {"message": "Provider returned error", "metadata": {"raw": "busy"}}}),
        "Provider returned error: busy",
    ),
}


@pytest.mark.parametrize(("body", "reason"), FAILED_GENERATIONS.values(), ids=FAILED_GENERATIONS)
def test_a_generation_that_keeps_failing_is_the_servers_failure_with_its_reason(
    chat_server: Any, answer: Answer, body: str, reason: str
) -> None:
    chat_server.script.append(body)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.MODEL_ERROR
    assert trajectory.error == f"the provider failed under status 200: {reason}"
    assert len(chat_server.requests) == 4


def test_a_generation_that_failed_once_under_status_200_is_asked_for_again(
    chat_server: Any, answer: Answer
) -> None:
    chat_server.script.append(reply(said("", "stop"), usage=USAGE))
    chat_server.says(ANSWER)
    trajectory = answer()
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWERED, "Mary Moss")
    assert len(chat_server.requests) == 2


@pytest.mark.parametrize("ending", ["stop", "eos_token", "stop_sequence", "end_turn", "STOP", None])
def test_an_answer_that_the_model_ended_is_one_by_whatever_word(
    chat_server: Any, answer: Answer, ending: str | None
) -> None:
    chat_server.script.append(reply(said(ANSWER, ending)))
    assert answer().answer == "Mary Moss"


@pytest.mark.parametrize("nothing", ["", {}, False, None], ids=repr)
def test_an_empty_error_is_none(chat_server: Any, answer: Answer, nothing: object) -> None:
    chat_server.script.append(reply(said(ANSWER, "stop", error=nothing), error=nothing))
    assert answer().answer == "Mary Moss"
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize("ending", ["length", "MAX_TOKENS", "model_length"])
def test_a_turn_that_the_limit_ended_is_cut_by_whatever_word(
    chat_server: Any, answer: Answer, ending: str
) -> None:
    chat_server.script.append(reply(said("", ending)))
    assert answer().stop_reason is StopReason.TOKEN_BUDGET


def test_a_turn_of_a_single_end_token_is_the_models_own(chat_server: Any, answer: Answer) -> None:
    usage = {"prompt_tokens": 50, "completion_tokens": 1, "total_tokens": 51}
    chat_server.script.append(reply(said("", "stop"), usage=usage))
    assert answer().stop_reason is StopReason.NO_ANSWER_TAG
    assert len(chat_server.requests) == 1


WRITTEN = 'web_search{"query": "SPFMV"}</function>'
GROQ = {
    "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
    "type": "invalid_request_error",
    "code": "tool_use_failed",
    "failed_generation": WRITTEN,
}
OLLAMA = "error parsing tool call: raw='{\"query\":\"a\"}]', err=invalid character ']' after top-level value"
MALFORMED_CALLS = {
    "Groq, smolagents#1119": (400, {"error": GROQ}),
    "Groq without a code": (400, {"error": {"message": GROQ["message"]}}),
    "Groq under status 200": (200, {"error": GROQ}),
    "Ollama, ollama#17638": (500, {"error": OLLAMA}),
    "llama.cpp, llama.cpp#20761": (
        500,
        {
            "error": {
                "code": 500,
                "message": "Failed to parse input at pos 12: </tool_call>",
                "type": "server_error",
            }
        },
    ),
    "llama.cpp, club-3090#1195": (
        500,
        {
            "error": {
                "code": 500,
                "message": "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error "
                "at line 1, column 74: syntax error while parsing value",
            }
        },
    ),
    "Groq's parser": (
        400,
        {
            "error": {
                "message": "Parsing failed. The model generated output that could not be parsed. Please adjust your "
                "prompt. See 'failed_generation' for more details.",
                "type": "invalid_request_error",
                "code": "output_parse_failed",
                "failed_generation": "<|channel|>commentary to=retrieve",
            }
        },
    ),
    "Groq, another tool": (
        400,
        {
            "error": {
                "message": "tool call validation failed: attempted to call tool 'x' which was not in request"
            }
        },
    ),
    "Ollama with Qwen, ollama#16810": (
        500,
        {
            "error": {
                "message": "XML syntax error on line 8: element <function> closed by </parameter>"
            }
        },
    ),
    "Ollama with Qwen, continue#10896": (
        500,
        {"error": "expected element type <function> but have <parameter>"},
    ),
    "vLLM with gpt-oss, vllm#23567": (
        500,
        {
            "error": {
                "message": 'unexpected tokens remaining in message header: Some("to=functions.retrieve")'
            }
        },
    ),
    "vLLM with gpt-oss, vllm#22519": (
        500,
        {
            "error": {
                "message": "Unexpected token 12606 while expecting start token 200006",
                "code": 500,
            }
        },
    ),
}


@pytest.mark.parametrize(("status", "body"), MALFORMED_CALLS.values(), ids=MALFORMED_CALLS)
def test_a_malformed_call_that_the_provider_refuses_is_the_models_own_and_final(
    chat_server: Any, answer: Answer, status: int, body: object
) -> None:
    chat_server.script.append(response(body, status))
    chat_server.says(ANSWER)  # what another attempt would draw
    trajectory = answer()
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.TOOL_CALL_UNPARSABLE, "")
    assert len(chat_server.requests) == 1


def test_a_refused_call_is_kept_where_the_provider_quotes_it(
    chat_server: Any, answer: Answer
) -> None:
    chat_server.script.append(response({"error": GROQ}, 400))
    trajectory = answer()
    assert (trajectory.messages[-1].role, trajectory.messages[-1].content) == ("assistant", WRITTEN)
    assert trajectory.rounds == 1


def error(message: str, **fields: object) -> dict[str, object]:
    """Return the usual body of an error."""
    return {"error": {"message": message, **fields}}


GEMINI = "The input token count (1054016) exceeds the maximum number of tokens allowed (1048576)."
TOO_LONG_REPLIES = {
    "DashScope, ragflow#589": (400, error("Range of input length should be [1, 129024]")),
    "llama.cpp, llama.cpp#15780": (
        500,
        error(
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            code=500,
            type="exceed_context_size_error",
        ),
    ),
    "llama.cpp, openwiki#648": (
        400,
        error(
            "request (131168 tokens) exceeds the available context size (131072 tokens), try increasing it"
        ),
    ),
    "llama.cpp, llama.cpp#19774": (
        500,
        error("Context size has been exceeded.", code=500, type="server_error"),
    ),
    "Volcengine, dify#32221": (
        400,
        error("Total tokens of image and text exceed max message tokens"),
    ),
    "TGI, text-generation-inference#628": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. "
            "Given: 1244 `inputs` tokens and 1000 `max_new_tokens`",
            "error_type": "validation",
        },
    ),
    "Gemini, gemini-cli#13006": (
        400,
        [{"error": {"code": 400, "message": GEMINI, "status": "INVALID_ARGUMENT"}}],
    ),
    "xAI, pi#129": (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
    ),
    "Moonshot, pi#129": (
        400,
        error(
            "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)"
        ),
    ),
    "z.ai, hermes-agent#2600": (400, error("Prompt exceeds max length", code="1261")),
    "z.ai, hermes-agent#61728": (
        400,
        error("tokens in request more than max tokens allowed", code="1210"),
    ),
    "Anthropic, continue#6080": (
        400,
        error(
            "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, "
            "decrease input length or `max_tokens` and try again"
        ),
    ),
    "Anthropic, harness-sdk#1663": (
        400,
        error("prompt is too long: 903884 tokens > 200000 maximum"),
    ),
    "SiliconFlow, ragflow#7060": (
        400,
        {
            "code": 20015,
            "message": "length of prompt_tokens (48322) must be less than max_seq_len (32768).",
            "data": None,
        },
    ),
    "Poolside, pi#4943": (
        400,
        error("Input length 131393 exceeds the maximum allowed input length of 131040 tokens."),
    ),
    "vLLM, pi#5929": (
        400,
        error(
            "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your "
            "prompt contains at least 262145 input tokens, for a total of at least 262145 tokens."
        ),
    ),
    "a hub, pi#5677": (
        400,
        error("Input length (265330) exceeds model's maximum context length (262144)."),
    ),
    "OpenAI, senpi#1466": (400, error("Your input exceeds the model's context window")),
    "OpenAI's code alone, zed#60525": (400, error("Bad request.", code="context_length_exceeded")),
    "Bedrock, pi#129": (400, error("Input is too long for requested model.")),
    "Cohere, pydantic-ai#4221": (
        400,
        {
            "message": "too many tokens: size limit exceeded by 19296 tokens. Try using shorter or fewer inputs."
        },
    ),
    "MiniMax, pi#129": (400, error("invalid params, context window exceeds limit")),
    "LM Studio, pi#129": (
        400,
        error("The number of tokens is greater than the context length (4096)."),
    ),
    "Groq, pi#129": (400, error("Please reduce the length of the messages or completion.")),
    "GitHub Copilot, pi#129": (
        400,
        error(
            "prompt token count of 5000 exceeds the limit of 4096",
            code="model_max_prompt_tokens_exceeded",
        ),
    ),
    "GitHub Models": (
        413,
        error("Request body too large for gpt-4o. Max size: 8000", code="tokens_limit_reached"),
    ),
    "z.ai's code, pi#129": (400, error("Failed.", code="model_context_window_exceeded")),
    "vLLM, vllm#12165": (
        400,
        error(
            "The prompt (total length 25938) is too long to fit into the model (context length 4096)."
        ),
    ),
    "vLLM, vllm#5700": (400, error("max_tokens must be at least 1, got -160.")),
    "TensorRT-LLM, TensorRT-LLM#9277": (
        500,
        error(
            "The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)"
        ),
    ),
    "Triton, tensorrtllm_backend#565": (
        400,
        error("Prompt length (200) exceeds maximum input length (1)."),
    ),
    "Vertex AI, hermes-agent#99701": (
        400,
        error(
            "Unable to submit request because the input token count is 32825 but model only supports up to 32768.",
            status="INVALID_ARGUMENT",
        ),
    ),
    "MiniMax under status 200, MiniMax-01#15": (
        200,
        {"choices": None, "base_resp": {"status_code": 1039, "status_msg": "token limit"}},
    ),
    "LiteLLM": (400, error("litellm.ContextWindowExceededError: litellm.BadRequestError")),
    "vLLM's setting": (400, error("max_tokens 9000 is more than max_model_len 8192")),
    "our own server": (
        400,
        {
            "detail": "the prompt has 1000 tokens and max_tokens is 96, which does not fit the context of 1024 tokens"
        },
    ),
    "under status 200, opencode#38108": (
        200,
        error(
            "This model's maximum context length is 163840 tokens. However, you requested 32000 output tokens"
        ),
    ),
}


@pytest.mark.parametrize(("status", "body"), TOO_LONG_REPLIES.values(), ids=TOO_LONG_REPLIES)
def test_a_prompt_that_does_not_fit_gives_way_to_a_shorter_one_by_whatever_wording(
    chat_server: Any, answer: Answer, status: int, body: object
) -> None:
    chat_server.says("", "one")
    chat_server.script.append(response(body, status))
    chat_server.says(ANSWER)
    trajectory = answer()
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert trajectory.messages[-2].content == NO_ROOM_LEFT
    assert trajectory.retrievals[0].chunk_ids == ()


@pytest.mark.parametrize(
    "of",
    ["our own server", "OpenAI's code alone, zed#60525", "MiniMax under status 200, MiniMax-01#15"],
)
def test_a_prompt_that_never_fits_ends_in_the_token_budget(
    chat_server: Any, answer: Answer, of: str
) -> None:
    status, body = TOO_LONG_REPLIES[of]
    chat_server.script.append(response(body, status))
    assert answer().stop_reason is StopReason.TOKEN_BUDGET
    assert len(chat_server.requests) == 2


@pytest.mark.parametrize("kind", ["too_long", "malformed_call"])
def test_every_wording_is_one_of_these_replies(kind: str) -> None:
    replies = [*TOO_LONG_REPLIES.values(), *MALFORMED_CALLS.values()]
    texts = [json.dumps(body, ensure_ascii=False) for _, body in replies]
    for wording in tomllib.loads(WORDINGS.read_text(encoding="utf-8"))[kind]:
        assert any(re.search(wording["pattern"], text, re.IGNORECASE) for text in texts), wording


@pytest.mark.parametrize(
    "text",
    [
        # RooCodeInc/Roo-Code#5729: a limit of tokens in a minute, under the status of a long prompt
        "Request too large for model moonshotai/kimi-k2-instruct on tokens per minute (TPM): Limit 10000, "
        "Requested 21247, please reduce your message size and try again.",
        "Too many tokens per minute",  # code-yeongyu/senpi#1466
        # Bedrock's limit of tokens in time
        "Too many tokens, please wait before trying again.",
        # RooCodeInc/Roo-Code#5729: the request's own max_tokens
        "max_tokens must be less than or equal to 16384, the maximum value for max_tokens is less than the "
        "context_window for this model",
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64.",
        "Unsupported parameter: 'max_tokens' is not supported with this model.",
        "The server is overloaded",
    ],
)
def test_other_refusals_are_no_prompt_that_does_not_fit(text: str) -> None:
    assert failure_in(text) is StopReason.MODEL_ERROR


HALF = "The format is <answer>your answer</answer>. Perhaps <answer>Mary Moss</answer>, or"
# allenai/olmo-eval#389, huggingface/lighteval#790, open-compass/opencompass#1949
UNCLOSED = {
    "a tag in the text": said(f"<think>{HALF}", "length"),
    "a tag, and a good ending": said(f"<think>\n{HALF}", "stop"),
    "a tag after white space": said(f"\n <think>{HALF}", "length"),
    "a thought after a text": said(f"Well. <think>{HALF}", "stop"),
    "a second thought": said(f"<think>One.</think>Two. <think>{HALF}", "length"),
    "a nested thought": said(f"<think>One <think>two</think> {HALF}</think>", "stop"),
    "a thought apart, and another in the text": {
        "index": 0,
        "message": {"role": "assistant", "content": f"<think>{HALF}", "reasoning_content": "One."},
        "finish_reason": "stop",
    },
    "a parser that took all": {
        "index": 0,
        "message": {"role": "assistant", "content": None, "reasoning": HALF},
        "finish_reason": "length",
    },
}


@pytest.mark.parametrize("choice", UNCLOSED.values(), ids=UNCLOSED)
def test_an_answer_inside_a_thought_that_was_never_closed_is_none(
    chat_server: Any, answer: Answer, choice: dict[str, object], tmp_path: Path
) -> None:
    chat_server.script.append(reply(choice))
    trajectory = answer()
    limit = choice["finish_reason"] == "length"
    assert trajectory.stop_reason is (
        StopReason.TOKEN_BUDGET if limit else StopReason.NO_ANSWER_TAG
    )
    assert trajectory.answer == ""
    assert (
        sum(reward_parts({"f1": 1, "answer_format": 1}, trajectory, QUESTION, POLICY).values()) == 0
    )
    write_jsonl(tmp_path / "rollouts.jsonl", [trajectory])
    with pytest.raises(CheckFailedError, match="gives no rows"):
        export_rows(
            tmp_path / "rollouts.jsonl", tmp_path / "rows.jsonl", "ms-swift", "d", "train", None
        )


def test_where_the_prompt_opens_the_thought_a_text_without_its_end_is_all_thought(
    chat_server: Any, answer: Answer
) -> None:
    endpoint = replace(chat_server.endpoint, begins_in_thought=True)
    chat_server.says(HALF, finish_reason="length")
    cut = answer(endpoint=endpoint)
    assert (cut.stop_reason, cut.answer) == (StopReason.TOKEN_BUDGET, "")
    chat_server.script[:] = []
    chat_server.says(f"{HALF}</think>{ANSWER}")
    assert answer(endpoint=endpoint).answer == "Mary Moss"


@pytest.mark.parametrize(("opening", "closing", "source"), OTHER_THOUGHTS)
def test_thoughts_in_other_tags_are_thoughts_too(
    chat_server: Any, answer: Answer, opening: str, closing: str, source: str
) -> None:
    chat_server.says(f"{opening}The format is <answer>your answer</answer>. Perhaps {ANSWER}")
    unclosed = answer()
    assert (unclosed.stop_reason, unclosed.answer) == (StopReason.NO_ANSWER_TAG, ""), source
    chat_server.script[:] = []
    # The prompt opened it
    chat_server.says(f"Perhaps {ANSWER}{closing}I cannot tell.")
    assert answer().stop_reason is StopReason.NO_ANSWER_TAG, source
    chat_server.script[:] = []
    chat_server.says(f"{opening}Perhaps <answer>no</answer>{closing}{ANSWER}")
    assert answer().answer == "Mary Moss"


def test_a_channel_of_gemma_is_no_answer(chat_server: Any, answer: Answer) -> None:
    # lmstudio-ai/lmstudio-bug-tracker#2013
    chat_server.says("<|channel>thought\nMaybe <answer>GOLD</answer><channel|>I cannot tell.")
    trajectory = answer()
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.NO_ANSWER_TAG, "")


@pytest.mark.parametrize(
    "thoughts",
    [
        # Mistral
        [
            {
                "type": "thinking",
                "thinking": [{"type": "text", "text": "Perhaps <answer>no</answer>"}],
            }
        ],
        # BerriAI/litellm#9700: Databricks
        [{"type": "reasoning", "summary": [{"text": "Perhaps <answer>no</answer>"}]}],
        [{"type": "reasoning", "text": "Perhaps <answer>no</answer>"}],
        # Anthropic
        [
            {"type": "thinking", "thinking": "Perhaps <answer>no</answer>", "signature": "s"},
            {"type": "redacted_thinking", "data": "ZW5j"},
        ],
    ],
)
def test_the_parts_of_a_content_are_its_text_and_its_thought(
    chat_server: Any, answer: Answer, thoughts: list[dict[str, object]]
) -> None:
    message = {"role": "assistant", "content": [*thoughts, {"type": "text", "text": ANSWER}]}
    chat_server.script.append(reply({"index": 0, "message": message, "finish_reason": "stop"}))
    trajectory = answer()
    assert trajectory.answer == "Mary Moss"
    assert trajectory.messages[-1].reasoning == "Perhaps <answer>no</answer>"


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_an_answer_after_a_closed_thought_counts_also_where_the_limit_cut_what_follows(
    chat_server: Any, answer: Answer, finish_reason: str
) -> None:
    chat_server.says(f"<think>{HALF}</think>{ANSWER} and", finish_reason=finish_reason)
    assert answer().answer == "Mary Moss"


def score_ifeval(chat_server: Any, count: int, out: Path) -> None:
    """Have so many generated prompts answered and scored."""
    config = IfevalConfig(
        prompts="generated",
        count=count,
        path=Path("src/deepsearch_rl/evaluate/ifeval_prompts.yaml"),
        max_tokens=64,
        concurrency=1,
        timeout_s=10,
        retries=1,
    )
    evaluate_ifeval("m", [chat_server.endpoint], config, generated_prompts(count), 1, out)


@pytest.mark.parametrize(
    ("content", "response"),
    [
        # EleutherAI/lm-evaluation-harness#3240
        ("<think>We should be careful not to be cut", ""),
        ("Let me think of a river.</think>\n\nA calm river flows", "A calm river flows"),
        ("<think>Let me think.</think>\n\nA calm river flows", "A calm river flows"),
        ("A calm river flows\n", "A calm river flows\n"),
    ],
)
def test_ifeval_scores_what_was_said_as_the_agent_reads_it(
    chat_server: Any, tmp_path: Path, content: str, response: str
) -> None:
    chat_server.says(content)
    score_ifeval(chat_server, 1, tmp_path / "ifeval")
    [row] = read_jsonl(tmp_path / "ifeval/responses.jsonl", IfevalResponse)
    assert row.response == response


@pytest.mark.parametrize(
    "message",
    [{"content": None, "reasoning": "A calm river flows"}, {"content": "<think>A calm river"}],
    ids=["the field alone", "cut"],
)
def test_ifeval_warns_of_responses_that_are_thoughts_alone(
    chat_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, message: dict[str, object]
) -> None:  # vllm-project/vllm#17349
    chat_server.script.append(
        reply({"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"})
    )
    score_ifeval(chat_server, 2, tmp_path / "ifeval")
    assert "2 of 2 responses are a thought without a text" in caplog.text
    assert "--reasoning-parser" in caplog.text


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_an_answer_in_the_reasoning_field_alone_is_told_with_the_servers_option(
    chat_server: Any, answer: Answer, content: str | None, field: str
) -> None:  # vllm-project/vllm#17349, vllm-project/vllm#17609
    message = {"role": "assistant", "content": content, field: ANSWER}
    chat_server.script.append(reply({"index": 0, "message": message, "finish_reason": "stop"}))
    trajectory = answer()
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.NO_ANSWER_TAG, "")
    assert "the answer stands in the reasoning field" in (trajectory.error or "")
    assert "--reasoning-parser" in (trajectory.error or "")


def test_a_thought_alone_is_told_as_one(chat_server: Any, answer: Answer) -> None:
    chat_server.says(None, reasoning="Which fact is missing?")
    assert answer().error == "a turn without a text: all 22 characters are in the reasoning field"
