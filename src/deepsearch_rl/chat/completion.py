"""The fields of a chat completion that the agent uses, checked.

Servers differ in their types, and what can mean one thing only is read as that: a numeric id,
arguments as an object, a number of tokens as text. What a server alone understands (thought
signatures, for example) is kept for it as ``provider_fields``.

A reply of status 200 can be a failure, too: a generation that an error, a filter or a lost
connection ended is no answer of the model.
"""

import json
import math
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from deepsearch_rl.chat.chat_messages import warn_once
from deepsearch_rl.chat.model_failures import (
    FailedGenerationError,
    failure_in,
    left_call,
    own_words,
)
from deepsearch_rl.core.answers import has_answer_tags
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import first_problem
from deepsearch_rl.core.records import ForeignRecord, StopReason, TokenUsage

# Finish reasons, in lower case, of a turn that the model ended: TGI, Anthropic, Cohere and Gemini
# have their own.
ENDED_BY_MODEL = frozenset(
    {
        "stop",
        "eos",
        "eos_token",
        "stop_sequence",
        "end_turn",
        "complete",
    }
)
# Likewise of a turn that calls a tool: tool_calls, function_call, toolUse and others
_ENDED_BY_CALL = re.compile(r"(tool|function)[_-]?(call|use)s?")

# Likewise of a turn that the limit of tokens ended
ENDED_BY_LIMIT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})


def replace_lone_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can escape and no file can hold, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def number_text(value: object) -> object:
    """Return a number as the text that it means, anything else as it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def _arguments_text(value: object) -> object:
    # A call without arguments; an empty text is what the model wrote
    if value is None:
        return "{}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _thought_text(value: object) -> object:
    if isinstance(value, str) or not value:
        return value or None
    return _text_of(value) or json.dumps(value, ensure_ascii=False)


def _token_number(value: Any) -> int | None:
    """Return a number of tokens as servers write it, a fraction, text or list; None where it cannot be read."""
    if value is None:
        return None
    parts = value if isinstance(value, list) else [value]
    try:
        total = sum(float(part) for part in parts if not isinstance(part, bool))
    except (TypeError, ValueError):
        total = math.nan
    if parts and math.isfinite(total) and total >= 0:
        return round(total)
    warn_once(
        f"the server's usage cannot be read: {value!r} is no number of tokens, none is counted"
    )
    return None


def _usage_fields(value: object) -> object:
    usage = value[0] if isinstance(value, list) and value else value
    if usage and not isinstance(usage, dict):
        warn_once(f"the server's usage cannot be read: {value!r} has no numbers of tokens")
    return usage if isinstance(usage, dict) else None


StorableText = Annotated[str, AfterValidator(replace_lone_surrogates)]
Reasoning = Annotated[StorableText | None, BeforeValidator(_thought_text)]
TokenNumber = Annotated[int | None, BeforeValidator(_token_number)]


class _ServerRecord(ForeignRecord):
    model_config = ConfigDict(strict=True)


# Fields of an answer that no request has
_NOT_SENT_BACK = frozenset({"annotations", "audio", "function_call", "index", "role", "type"})


class _ReturnedRecord(_ServerRecord):
    """What goes back to the server with the conversation; ``provider_fields`` are those that only it understands."""

    provider_fields: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _keep_unknown(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        known = cls.model_fields.keys() | _NOT_SENT_BACK
        unknown: dict[str, JsonValue] = {}
        for name, value in fields.items():
            if name not in known and value not in (None, "", [], {}):
                unknown[name] = value
        if not unknown:
            return fields
        text = replace_lone_surrogates(json.dumps(unknown, ensure_ascii=False))
        return fields | {"provider_fields": json.loads(text)}


class _CalledFunction(_ReturnedRecord):
    name: StorableText
    arguments: Annotated[StorableText, BeforeValidator(_arguments_text)] = "{}"


class _ToolCall(_ReturnedRecord):
    id: Annotated[StorableText | None, BeforeValidator(number_text)] = None
    function: _CalledFunction

    @property
    def returned_fields(self) -> dict[str, JsonValue]:
        """The fields of the call, and below ``function`` those of its function, that only the server understands."""
        fields: dict[str, JsonValue] = dict(self.provider_fields)
        if self.function.provider_fields:
            fields["function"] = self.function.provider_fields
        return fields


def _text_of(content: object) -> str | None:
    """Return a text, or the text of a list of parts that are all texts; None for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts: list[str] = []

    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            return None
        texts.append(text)

    return "".join(texts)


def _call_list(value: object) -> object:
    if isinstance(value, dict) and value:
        return [value]
    return value or None


class AssistantMessage(_ReturnedRecord):
    """What a model wrote in one turn."""

    content: StorableText | None = None
    refusal: Reasoning = None
    reasoning: Reasoning = None
    reasoning_content: Reasoning = None
    tool_calls: Annotated[list[_ToolCall] | None, BeforeValidator(_call_list)] = None

    @model_validator(mode="before")
    @classmethod
    def _in_usual_form(cls, message: Any) -> Any:
        """Put the parts of a content into one text, and those that are thoughts into the reasoning.

        Mistral's parts are called thinking, Databricks' reasoning (litellm#9700); Anthropic's can be
        redacted.
        """
        if not isinstance(message, dict):
            return message
        if isinstance(message.get("function_call"), dict) and not message.get("tool_calls"):
            # The older form of a call
            message = message | {"tool_calls": [{"function": message["function_call"]}]}
        parts = message.get("content")
        if not isinstance(parts, list):
            return message

        thought = ""
        others: list[object] = []
        for part in parts:
            kind = str(part.get("type")) if isinstance(part, dict) else ""
            if "thinking" in kind or "reasoning" in kind:
                told = (_text_of(part.get(name)) for name in ("thinking", "summary", "text"))
                thought += next(filter(None, told), "")
            else:
                others.append(part)

        # What holds anything else stays as it is: the field's own check says what should stand
        # there.
        text = _text_of(others)
        if text is None:
            return message
        return message | {"content": text, "reasoning": message.get("reasoning") or thought}

    @property
    def text(self) -> str:
        """The content, or the refusal where there is no content."""
        return self.content or self.refusal or ""

    @property
    def thought(self) -> str | None:
        """The reasoning that the server split from the text, under either of its two names."""
        return self.reasoning or self.reasoning_content or None


class _Choice(_ServerRecord):
    finish_reason: Annotated[str | None, BeforeValidator(number_text)] = None
    native_finish_reason: JsonValue = None
    stop_reason: JsonValue = None
    matched_stop: JsonValue = None
    error: JsonValue = None
    message: AssistantMessage

    @property
    def ending(self) -> str:
        """The finish reason in lower case, empty where the server gives none."""
        return (self.finish_reason or "").lower()


class _Usage(_ServerRecord):
    prompt_tokens: TokenNumber = None
    completion_tokens: TokenNumber = None


class Completion(_ServerRecord):
    """A completion with one choice or more, of which the first counts."""

    choices: list[_Choice] = Field(min_length=1)
    reported_usage: Annotated[_Usage | None, BeforeValidator(_usage_fields)] = Field(
        default=None, alias="usage"
    )

    @property
    def message(self) -> AssistantMessage:
        """The message of the first choice."""
        return self.choices[0].message

    @property
    def usage(self) -> TokenUsage | None:
        """Tokens of the call; None where the server counts none, which some report as zeros."""
        usage = self.reported_usage
        if not usage or not (usage.prompt_tokens or usage.completion_tokens):
            return None
        return TokenUsage(
            prompt_tokens=usage.prompt_tokens or 0, completion_tokens=usage.completion_tokens or 0
        )

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the turn, where the server names it (vLLM: stop_reason, SGLang: matched_stop)."""
        # A number is the token that ended the turn.
        for reason in (self.choices[0].stop_reason, self.choices[0].matched_stop):
            if isinstance(reason, str):
                return reason

        return None

    def truncated(self, max_tokens: int) -> bool:
        """Return whether the limit of tokens ended the turn.

        A server that parses tool calls may report ``tool_calls`` for a truncated turn, and some
        report nothing; the token count then decides. It does not for a turn that ended by itself:
        some servers count hidden reasoning.
        """
        ending = self.choices[0].ending
        completion_tokens = self.usage.completion_tokens if self.usage else 0
        return ending in ENDED_BY_LIMIT or (
            ending in {"", "tool_calls"} and completion_tokens >= max_tokens
        )

    @property
    def failure(self) -> str | None:
        """Why the provider generated no whole turn, in its own words; None for a turn that the model wrote.

        A turn without a character is one that the model wrote only where the server counted a token
        of it.
        """
        choice = self.choices[0]
        if choice.error:
            return error_text(choice.error)
        message = self.message
        ended_by_call = _ENDED_BY_CALL.fullmatch(choice.ending) is not None
        if choice.ending not in {"", *ENDED_BY_MODEL, *ENDED_BY_LIMIT} and not ended_by_call:
            native = choice.native_finish_reason
            return f"finish_reason {choice.finish_reason!r}" + (f", {native}" if native else "")
        if ended_by_call and not message.tool_calls:
            says_enough = has_answer_tags(message.text) or left_call(message.text)
            return None if says_enough else f"finish_reason {choice.finish_reason!r} without a call"

        is_empty = not (message.text or message.thought or message.tool_calls)
        has_tokens = self.usage is not None and self.usage.completion_tokens > 0
        if is_empty and not has_tokens and choice.ending not in ENDED_BY_LIMIT:
            return "nothing was generated"
        return None


def _error_beside(fields: dict[str, Any]) -> JsonValue:
    """Return the error that stands in a response in place of choices, or beside them; None where there is none.

    MiniMax reports one in ``base_resp``, DashScope and FastChat report it without an object around
    it.
    """
    # Some write an empty text or object where there is none
    error = fields.get("error") or None
    if error is not None or fields.get("choices"):
        return error
    base = fields.get("base_resp")
    if isinstance(base, dict) and base.get("status_code"):
        return {"message": base.get("status_msg"), "code": base["status_code"]}
    message = fields.get("message") or fields.get("detail")
    return {"message": message, "code": fields.get("code")} if isinstance(message, str) else None


def error_text(error: object) -> str:
    """Return an error object in one line: the message, and the code where there is one."""
    if not isinstance(error, dict):
        return str(error)
    text = error.get("message")
    code = error.get("code")
    if not isinstance(text, str) or not text:
        text = json.dumps(error, ensure_ascii=False)
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        # OpenRouter: what the provider behind it says
        text += f": {metadata['raw']}"
    return text if code is None else f"{text} (code {code})"


def read_completion(fields: dict[str, Any], messages: JsonValue = None) -> Completion:
    """Return the checked fields of a server's response to ``messages``.

    Raises:
        FailedGenerationError: the response reports that the generation failed, and another attempt
            may succeed.
        EndpointError: it is no chat completion, or it reports an error that another attempt would
            repeat.
    """
    error = _error_beside(fields)
    if error is None and fields.get("choices") in (None, []):
        error = "nothing was generated, the response has no choices"
    if error is None:
        try:
            completion = Completion.model_validate(fields)
        except ValidationError as invalid:
            field, problem = first_problem(invalid)
            raise EndpointError(
                f"the endpoint's response is not a chat completion ({field}: {problem})"
            ) from invalid

        failure = completion.failure
        if failure is None:
            return completion
    else:
        failure = error_text(error)

    raise failed_under_200(own_words(failure, messages))


def failed_under_200(failure: str) -> EndpointError:
    """Return the error of a failure that a reply of status 200 reports; its kind says whether it may pass."""
    text = f"the provider failed under status 200: {failure}"
    if failure_in(failure) is StopReason.MODEL_ERROR:
        return FailedGenerationError(text)
    return EndpointError(text)
