"""What an error of a model server means: the prompt did not fit, the model's own call was malformed, or it failed.

Only the last is the server's failure, which a repeated command asks for again. The others are what
the model did, or what its context allows; they are final, so that no repetition can raise a score.

Every provider words these things differently: ``provider_wordings.toml`` holds a pattern for each,
and the report it was taken from.
"""

import re
import tomllib
from pathlib import Path

import openai

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.records import StopReason

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


def _any_of(wordings: list[dict[str, str]]) -> re.Pattern[str]:
    patterns = [f"(?:{wording['pattern']})" for wording in wordings]
    return re.compile("|".join(patterns), re.IGNORECASE | re.DOTALL)


_KINDS = tomllib.loads(WORDINGS.read_text(encoding="utf-8"))
_TOO_LONG = _any_of(_KINDS["too_long"])
_MALFORMED_CALL = _any_of(_KINDS["malformed_call"])


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
