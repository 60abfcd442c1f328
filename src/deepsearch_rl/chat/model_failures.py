"""What an error of a model server means: the prompt did not fit, the model's own call was malformed, or it failed.

Only the last is the server's failure, which a repeated command asks for again. The others are what
the model did, or what its context allows; they are final, so that no repetition can raise a score.

Every provider words these things differently: ``provider_wordings.toml`` holds a pattern for each,
and the report it was taken from. Only the server's own words count: some repeat the request in
their errors, and a conversation may well speak of a prompt that is too long.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import openai
from pydantic import JsonValue

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import StopReason, json_object

WORDINGS = Path(__file__).with_name("provider_wordings.toml")

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


# Escapes of JSON and Python, also of texts inside of others
_ESCAPE = re.compile(r"\\+(?:[nrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})?")
# Letters and digits by which a text of the request is known; a shorter one only where quotes enclose it
_ECHO_LETTERS = 24
_QUOTES = frozenset("'\"`\\")
# Fields of a message that hold no text
_NAMES = frozenset({"id", "name", "role", "tool_call_id", "type"})


def _any_of(wordings: list[dict[str, str]]) -> re.Pattern[str]:
    patterns = [f"(?:{wording['pattern']})" for wording in wordings]
    return re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL)


_KINDS = tomllib.loads(WORDINGS.read_text(encoding="utf-8"))
_TOO_LONG = _any_of(_KINDS["too_long"])
_MALFORMED_CALL = _any_of(_KINDS["malformed_call"])
_FILTERED = _any_of(_KINDS["filtered"])
_LEFT_CALLS = [(_any_of([form]), form) for form in _KINDS["left_call"]]
_HERMES_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z(?P<cut>))", re.DOTALL)
# A call of the search tool in any other form
_ANY_CALL = re.compile(
    r"""["'](name|function)["']\s*:\s*["']retrieve["']|\bretrieve(\s*(\[ARGS\]\s*)?\{\s*"|\((query=|["']))"""
)


def failure_in(text: str) -> StopReason:
    """Return what the text of an error means: a token budget, an unparsable call, or a failure of the server."""
    if _MALFORMED_CALL.search(text):
        return StopReason.TOOL_CALL_UNPARSABLE
    if _TOO_LONG.search(text) and not _RATE_LIMIT.search(text):
        return StopReason.TOKEN_BUDGET
    return StopReason.MODEL_ERROR


def is_filtered(text: str) -> bool:
    """Return whether an error says that a content filter refused the prompt or stopped the answer."""
    return _FILTERED.search(text) is not None


def left_call(text: str) -> str | None:
    """Return what to do about a tool call that a server left in a text, None where there is none.

    Calls in Hermes' form count only if all can be read: others are the model's own mistakes. A form
    that is not in the table counts where it calls the search tool.
    """
    for pattern, form in _LEFT_CALLS:
        if pattern.search(text):
            return _advice(form["form"], form["vllm"], form.get("sglang"))
    calls = list(_HERMES_CALL.finditer(text))
    is_readable = all(
        call["cut"] is None and isinstance((json_object(call[1]) or {}).get("arguments"), dict)
        for call in calls
    )
    if calls:
        return _advice("Hermes", "hermes", "qwen25") if is_readable else None
    return _advice("another family", "NAME, the model's own") if _ANY_CALL.search(text) else None


def _advice(form: str, vllm: str, sglang: str | None = None) -> str:
    others = (f"SGLang: --tool-call-parser {sglang}; " if sglang else "") + "llama.cpp: --jinja"
    return (
        f"a tool call that the server left in the text, in the form of {form}: start vLLM with "
        f"--enable-auto-tool-choice --tool-call-parser {vllm} ({others})"
    )


def server_words(error: Exception) -> str:
    """Return the text of an error without what it repeats of the request."""
    text = str(error)
    if isinstance(error, openai.APIStatusError):
        return own_words(text, json.loads(error.request.content or "{}").get("messages"))
    return text


def own_words(text: str, messages: JsonValue) -> str:
    """Return what a server says about a request without what it repeats of its messages."""
    for sent in _texts(messages):
        text = _without_echo(text, sent)
    return text


def _texts(sent: Any) -> Iterator[str]:
    """Yield the texts of messages, and those inside of arguments, which are JSON themselves."""
    if isinstance(sent, str):
        yield sent
        if sent.startswith("{"):
            yield from _texts(json_object(sent))
    elif isinstance(sent, dict | list):
        parts = sent if isinstance(sent, list) else [sent[key] for key in sent.keys() - _NAMES]
        for part in parts:
            yield from _texts(part)


def _without_echo(text: str, sent: str) -> str:
    ours, _ = _letters(sent)
    said, places = _letters(text)
    head = ours[:_ECHO_LETTERS]
    start = said.find(head) if head else -1
    while start >= 0:
        echo = list(
            takewhile(lambda pair: pair[0] == pair[1], zip(said[start:], ours, strict=False))
        )
        first, end = places[start], places[start + len(echo) - 1] + 1
        is_enclosed = text[first - 1] in _QUOTES and text[end : end + 1] in _QUOTES
        if len(ours) >= _ECHO_LETTERS or is_enclosed:
            return _without_echo(f"{text[:first]}...{text[end:]}", sent)
        start = said.find(head, start + 1)
    return text


def _letters(text: str) -> tuple[str, list[int]]:
    """Return a text's letters and digits of ASCII, which no escape changes, and their places."""
    plain = _ESCAPE.sub(lambda escape: " " * len(escape[0]), text).lower()
    places = [place for place, char in enumerate(plain) if char.isascii() and char.isalnum()]
    return "".join(plain[place] for place in places), places


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
        if error.status_code == _TOO_LARGE and not _RATE_LIMIT.search(server_words(error)):
            return StopReason.TOKEN_BUDGET

    return failure_in(server_words(error))


def failed_generation(error: openai.APIError | EndpointError) -> str:
    """Return the turn that the model wrote and the server refused, where the error quotes it (Groq); else nothing."""
    body = getattr(error, "body", None)
    text = body.get("failed_generation") if isinstance(body, dict) else None
    return text if isinstance(text, str) else ""
