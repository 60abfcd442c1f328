"""What an error of a model server means: the prompt did not fit, the model's own call was malformed, or it failed.

Only the last is the server's failure, which a repeated command asks for again. The others are what
the model did, or what its context allows; they are final, so that no repetition can raise a score.

Providers word the same thing in their own ways. Both lists hold a pattern for each, and the report
it was taken from.
"""

import re
from typing import NamedTuple

import openai

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import StopReason

# Statuses with which a server judges a request; llama.cpp and Ollama do it with 500 as well
_STATUSES = frozenset({400, 413, 422, 500})
# A limit of tokens in time, which some servers report with the words and the status of a long
# prompt
_RATE_LIMIT = re.compile(
    r"per[ -](minute|day|hour)|rate.?limit|\b[TR]P[MD]\b|quota|please wait", re.IGNORECASE
)
# Cerebras answers a prompt that does not fit with it and no body (openclaw/openclaw#119596)
_TOO_LARGE = 413
# A body that says nothing, also where a proxy wraps it (can1357/oh-my-pi#1251)
_WORDLESS = re.compile(r"\A[\s{}\[\]\"]*\Z|\Anull\Z|status code \(no body\)")


class Wording(NamedTuple):
    """How some servers say it: a regular expression, the servers, and a report (repository#number) that quotes it."""

    pattern: str
    servers: str
    source: str


# How servers say that prompt and answer do not fit the model's context
TOO_LONG = (
    Wording(
        r"(maximum|max|model'?s) context (length|size)|context[_ ]length[_ ](is|exceeded)",
        "OpenAI, vLLM, DeepSeek, Mistral, OpenRouter, SGLang, Groq",
        "earendil-works/pi#5929",
    ),
    Wording(
        r"context ?window", "OpenAI, MiniMax, llama-cpp-python, LiteLLM", "code-yeongyu/senpi#1466"
    ),
    Wording(r"context_window_exceeded", "z.ai", "earendil-works/pi#129"),
    Wording(r"context of \d+ tokens", "the cpu server of this project", "serve/engine.py"),
    Wording(
        r"max_model_len|maximum model length|too long to fit into the model|max_tokens must be at least 1, got -\d",
        "vLLM",
        "0xBakeer/inference-atlas#186, vllm-project/vllm#12165, vllm-project/vllm#5700",
    ),
    Wording(
        r"prompt length.{0,40}(should not exceed max_num_tokens|exceeds maximum input length)",
        "TensorRT-LLM, Triton",
        "NVIDIA/TensorRT-LLM#9277, triton-inference-server/tensorrtllm_backend#565",
    ),
    Wording(r"exceeds? (the )?context limit", "Anthropic, Bedrock", "continuedev/continue#6080"),
    Wording(
        r"prompt( is)? too long", "Anthropic, Fireworks, Ollama", "strands-agents/harness-sdk#1663"
    ),
    Wording(r"input is too long", "Bedrock, Azure", "earendil-works/pi#129"),
    Wording(r"too many (input )?tokens", "Cohere, proxies", "pydantic/pydantic-ai#4221"),
    Wording(
        r"range of input length should be",
        "DashScope",
        "infiniflow/ragflow#589, anomalyco/opencode#45834",
    ),
    Wording(
        r"available context size|exceed_context_size|context size has been exceeded",
        "llama.cpp",
        "ggml-org/llama.cpp#15780, ggml-org/llama.cpp#19774",
    ),
    Wording(
        r"greater than the context length|context the overflows",
        "LM Studio",
        "earendil-works/pi#129",
    ),
    Wording(r"exceeds? max(imum)? message tokens", "Volcengine Ark", "langgenius/dify#32221"),
    Wording(
        r"`?inputs`? tokens \+ `?max_new_tokens`? must be|`inputs` must have less than",
        "TGI, Together",
        "huggingface/text-generation-inference#628, h2oai/h2ogpt#373",
    ),
    Wording(
        r"input token count.{0,40}(exceeds? the maximum number of tokens|model only supports up to)",
        "Gemini, Vertex AI",
        "google-gemini/gemini-cli#13006, NousResearch/hermes-agent#99701",
    ),
    Wording(r"maximum prompt length", "xAI", "earendil-works/pi#129"),
    Wording(r"exceeded model token limit", "Moonshot", "earendil-works/pi#129"),
    Wording(
        r"prompt exceeds max(imum)? length|tokens in request more than max tokens|\bPrompt 超长",
        "z.ai, Zhipu",
        "NousResearch/hermes-agent#61728, NousResearch/hermes-agent#2600",
    ),
    Wording(
        r"input length.{0,40}exceeds?.{0,30}(maximum|context)",
        "Poolside, hubs",
        "earendil-works/pi#4943",
    ),
    Wording(
        r"prompt_tokens.{0,20}must be less than max_seq_len",
        "SiliconFlow",
        "infiniflow/ragflow#7060",
    ),
    Wording(
        r"reduce the length of the (messages|input|prompt)",
        "Groq, Cerebras",
        "earendil-works/pi#129",
    ),
    Wording(
        r"max_prompt_tokens|prompt token count.{0,40}exceeds the limit",
        "GitHub Copilot",
        "earendil-works/pi#129",
    ),
    Wording(r"tokens_limit_reached", "GitHub Models", "earendil-works/pi#129"),
    Wording(
        r"token limit \(code 1039\)|1039.{0,20}token limit", "MiniMax", "MiniMax-AI/MiniMax-01#15"
    ),
)
# How servers say that the model wrote a tool call which they could not read
MALFORMED_CALL = (
    Wording(
        r"tool_use_failed|failed to call a function|failed_generation",
        "Groq, which quotes what the model wrote in the field failed_generation",
        "groq/groq-typescript#28, huggingface/smolagents#1119",
    ),
    Wording(
        r"tool call validation failed",
        "Groq",
        "mastra-ai/mastra#9688, HunorLaczko/ha-groq-cloud-api#20",
    ),
    Wording(r"error parsing tool call", "Ollama", "ollama/ollama#17638"),
    Wording(
        r"XML syntax error on line \d+|expected element type <function> but have",
        "Ollama's parser of Qwen's calls",
        "ollama/ollama#12380, ollama/ollama#16810, continuedev/continue#10896",
    ),
    Wording(
        r"failed to parse input at pos \d+",
        "llama.cpp",
        "ggml-org/llama.cpp#24644, ggml-org/llama.cpp#20761",
    ),
    Wording(
        r"failed to parse tool call arguments as JSON",
        "llama.cpp",
        "vxcontrol/pentagi#313, noonghunna/club-3090#1195",
    ),
    Wording(
        r"unexpected tokens remaining in message header|unexpected token \d+ while expecting start token",
        "vLLM and SGLang with gpt-oss",
        "vllm-project/vllm#23567, vllm-project/vllm#22519, openai/harmony#60",
    ),
)


def _any_of(wordings: tuple[Wording, ...]) -> re.Pattern[str]:
    return re.compile(
        "|".join(f"(?:{wording.pattern})" for wording in wordings), re.IGNORECASE | re.DOTALL
    )


_TOO_LONG = _any_of(TOO_LONG)
_MALFORMED_CALL = _any_of(MALFORMED_CALL)


def failure_in(text: str) -> StopReason:
    """Return what the text of an error means: a token budget, an unparsable call, or a failure of the server."""
    if _MALFORMED_CALL.search(text):
        return StopReason.TOOL_CALL_UNPARSABLE
    if _TOO_LONG.search(text) and not _RATE_LIMIT.search(text):
        return StopReason.TOKEN_BUDGET
    return StopReason.MODEL_ERROR


class FailedGenerationError(EndpointError):
    """A reply in which the provider reports, or shows, that it generated no whole turn."""


class WordlessRefusalError(FailedGenerationError):
    """Status 400 without a word: Cerebras answers a prompt that does not fit so, and gateways a fault that passes."""


def is_wordless(text: str) -> bool:
    """Return whether the body of a refusal says nothing, or that another server's said nothing."""
    return _WORDLESS.search(text) is not None


def model_failure(
    error: openai.APIError | EndpointError, *, answered_before: bool = False
) -> StopReason:
    """Return what an error of a model call means; of statuses, only those that judge a request are read.

    ``answered_before``: a shorter prompt of the same conversation was answered. A refusal without a
    word that came in all attempts is then about the prompt's length.
    """
    if isinstance(error, WordlessRefusalError):
        return StopReason.TOKEN_BUDGET if answered_before else StopReason.MODEL_ERROR
    if isinstance(error, openai.APIError):
        if not isinstance(error, openai.APIStatusError) or error.status_code not in _STATUSES:
            return StopReason.MODEL_ERROR
        # The status means it, also in a proxy's page of HTML or without a body
        if error.status_code == _TOO_LARGE and not _RATE_LIMIT.search(str(error)):
            return StopReason.TOKEN_BUDGET

    return failure_in(str(error))


def failed_generation(error: openai.APIError | EndpointError) -> str:
    """Return the turn that the model wrote and the server refused, where the error quotes it (Groq); else nothing."""
    body = getattr(error, "body", None)
    text = body.get("failed_generation") if isinstance(body, dict) else None
    return text if isinstance(text, str) else ""
