"""The fields of a chat completion that the agent uses, checked.

They are checked here, because the OpenAI client accepts whatever a server sends. A reply of status
200 can be a failure, too: a generation that an error, a filter or a lost connection ended is no
answer of the model.
"""

import json
from typing import Annotated, Any

from openai.types.chat import ChatCompletion
from pydantic import AfterValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from deepsearch_rl.chat.model_failures import FailedGenerationError, failure_in
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import first_problem
from deepsearch_rl.core.records import ForeignRecord, StopReason, TokenUsage

# Finish reasons, in lower case, of a turn that the model ended: TGI, Anthropic, Cohere and Gemini
# have their own.
ENDED_BY_MODEL = frozenset(
    {
        "stop",
        "tool_calls",
        "function_call",
        "eos",
        "eos_token",
        "stop_sequence",
        "end_turn",
        "tool_use",
        "complete",
    }
)

# Likewise of a turn that the limit of tokens ended
ENDED_BY_LIMIT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})


def replace_lone_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can escape and no file can hold, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


StorableText = Annotated[str, AfterValidator(replace_lone_surrogates)]
TokenNumber = Annotated[int, Field(ge=0)]


class _ServerRecord(ForeignRecord):
    model_config = ConfigDict(strict=True)


class _CalledFunction(_ServerRecord):
    name: StorableText
    arguments: StorableText


class _ToolCall(_ServerRecord):
    id: StorableText | None = None
    function: _CalledFunction


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


class AssistantMessage(_ServerRecord):
    """What a model wrote in one turn."""

    content: StorableText | None = None
    refusal: StorableText | None = None
    reasoning: StorableText | None = None
    reasoning_content: StorableText | None = None
    tool_calls: list[_ToolCall] | None = None

    @model_validator(mode="before")
    @classmethod
    def _join_parts(cls, message: Any) -> Any:
        """Put the parts of a content into one text, and those that are thoughts into the reasoning (Mistral's form)."""
        parts = message.get("content") if isinstance(message, dict) else None
        if not isinstance(parts, list):
            return message

        thought = ""
        others: list[object] = []
        for part in parts:
            if isinstance(part, dict) and part.get("type") == "thinking":
                thought += _text_of(part.get("thinking")) or ""
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
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    error: JsonValue = None
    message: AssistantMessage

    @property
    def ending(self) -> str:
        """The finish reason in lower case, empty where the server gives none."""
        return (self.finish_reason or "").lower()


class _Usage(_ServerRecord):
    prompt_tokens: TokenNumber | None = None
    completion_tokens: TokenNumber | None = None


class Completion(_ServerRecord):
    """A completion with one choice or more, of which the first counts."""

    choices: list[_Choice] = Field(min_length=1)
    reported_usage: _Usage | None = Field(default=None, alias="usage")

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
        if choice.ending and choice.ending not in ENDED_BY_MODEL | ENDED_BY_LIMIT:
            native = choice.native_finish_reason
            return f"finish_reason {choice.finish_reason!r}" + (f", {native}" if native else "")

        message = self.message
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
    return text if code is None else f"{text} (code {code})"


def read_completion(response: ChatCompletion) -> Completion:
    """Return the checked fields of a server's response.

    Raises:
        FailedGenerationError: the response reports that the generation failed, and another attempt
            may succeed.
        EndpointError: it is no chat completion, or it reports an error that another attempt would
            repeat.
    """
    # The client returns a body that is no JSON as text
    if not isinstance(response, ChatCompletion):
        raise FailedGenerationError("the endpoint's response is not JSON")
    fields = response.model_dump(warnings=False)
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

    raise failed_under_200(failure)


def failed_under_200(failure: str) -> EndpointError:
    """Return the error of a failure that a reply of status 200 reports; its kind says whether it may pass."""
    text = f"the provider failed under status 200: {failure}"
    if failure_in(failure) is StopReason.MODEL_ERROR:
        return FailedGenerationError(text)
    return EndpointError(text)
