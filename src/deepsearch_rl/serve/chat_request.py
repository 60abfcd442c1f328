"""What a Chat Completions request may ask of our server, and the refusal of everything else.

A server that ignores a field answers another question than it was asked. So each field is read, or
has no effect on an answer, or is refused by its name. ``null`` is the same as a missing field
everywhere.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

# Between the text parts of a message, as vLLM joins them
PART_SEPARATOR = "\n"

# Every token is compared with each of them.
MAX_STOPS = 16

# Fields that name the caller, or how a provider stores and bills a request: no answer depends on
# them
WITHOUT_EFFECT: Final = frozenset(
    {
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

# Values that ask for what the server does anyway, by field
ACCEPTED_VALUES: Final[dict[str, tuple[JsonValue, ...]]] = {
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "frequency_penalty": (0,),
    "functions": ([],),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "top_k": (-1, 0),
    "top_logprobs": (0,),
    "top_p": (1,),
}


class RequestError(ValueError):
    """A request asks for what this server does not do; ``field`` is the request's field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class _Part(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(strict=True)

    type: str
    text: str | None = None
    refusal: str | None = None


def _join_parts(content: Any) -> Any:
    """Return the text of a list of parts; everything else stays for the field's own check."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []

    for number, value in enumerate(content):
        part = _Part.model_validate(value)
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)

        if text is None:
            raise ValueError(
                f"part {number} is {part.type!r}: this server reads parts of type 'text' with a text"
            )

        texts.append(text)

    return PART_SEPARATOR.join(texts)


class _Wire(BaseModel):
    """A part of a request; fields that it does not know are kept, to be refused by their names."""

    model_config = ConfigDict(strict=True, extra="allow")


class _MessageFunction(_Wire):
    name: str
    arguments: str | dict[str, JsonValue]


class _MessageCall(_Wire):
    type: Literal["function"] = "function"
    function: _MessageFunction


class ChatMessage(_Wire):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_join_parts)] = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_MessageCall] | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates read it: a text may be empty, but is never null."""
        # ``developer`` is the newer name of ``system``, and no template knows it
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content or self.refusal or ""}
        optional = {
            "name": self.name,
            "reasoning": self.reasoning,
            "reasoning_content": self.reasoning_content,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [call.model_dump() for call in self.tool_calls or ()] or None,
        }
        for field, value in optional.items():
            if value is not None:
                message[field] = value

        return message


class _ToolFunction(_Wire):
    name: str
    strict: bool | None = None


class _Tool(_Wire):
    type: Literal["function"]
    function: _ToolFunction


def _check_tool(tool: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Check a tool and return it as it came: the prompt shows its keys in the client's order."""
    if _Tool.model_validate(tool).function.strict:
        raise ValueError("function.strict: this server cannot force a schema; leave it out")
    return tool


class _StreamOptions(_Wire):
    include_usage: bool | None = None


Stops: TypeAlias = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)]


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class ChatCompletionRequest(_Wire):
    """The fields of a Chat Completions request that decide an answer; :func:`check_support` judges the others."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Annotated[dict[str, JsonValue], AfterValidator(_check_tool)]] | None = None
    tool_choice: JsonValue = None
    temperature: float | None = Field(default=None, ge=0.0, le=2.0, description="1 if not given")
    max_tokens: int | None = Field(
        default=None, ge=1, description="all that the context has left if not given"
    )
    max_completion_tokens: int | None = Field(
        default=None, ge=1, description="the newer name of max_tokens"
    )
    seed: int | None = Field(default=None, ge=0, description="drawn at random if not given")
    stop: Annotated[Stops | None, BeforeValidator(_listed)] = None
    include_stop_str_in_output: bool | None = Field(
        default=None, description="vLLM's: the text keeps the stop string"
    )
    continue_final_message: bool | None = Field(
        default=None, description="the answer continues the last message"
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="the opposite of continue_final_message"
    )
    logprobs: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    @property
    def token_limit(self) -> int | None:
        """The most tokens of the answer, under either of its two names."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def may_call(self) -> bool:
        """Whether a call in the answer is taken for a call: where tools are offered and allowed, as in vLLM."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(_Wire):
    """A request to continue tokens, in vLLM's form of the Completions API: the prompt is token ids."""

    model: str
    prompt: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    max_tokens: int = Field(ge=1)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0, description="1 if not given")
    seed: int | None = Field(default=None, ge=0, description="drawn at random if not given")
    stop: Annotated[Stops | None, BeforeValidator(_listed)] = None
    include_stop_str_in_output: bool | None = Field(
        default=None, description="vLLM's: the text keeps the stop string"
    )
    logprobs: Literal[0] | None = Field(
        default=None, description="0: of the sampled tokens alone, no alternatives"
    )
    return_tokens_as_token_ids: Literal[True] | None = Field(
        default=None, description="vLLM's: tokens are named token_id:N, as they always are here"
    )

    def check(self, vocabulary: int) -> None:
        """Raise RequestError for what this server does not do, and for ids beyond the vocabulary."""
        _check_texts(self.model_dump(exclude={"prompt"}))
        for name, value in (self.model_extra or {}).items():
            _check_extra(name, value)
        if (largest := max(self.prompt)) >= vocabulary:
            raise RequestError(
                "prompt", f"{largest} is no token of this model, which has {vocabulary} of them"
            )


def check_support(request: ChatCompletionRequest) -> None:
    """Raise RequestError for the first thing that a request asks for and this server does not do."""
    _check_texts(request.model_dump())
    for name, value in (request.model_extra or {}).items():
        _check_extra(name, value)
    for number, message in enumerate(request.messages):
        _check_message(message, f"messages.{number}")
    if request.tool_choice not in (None, "auto", "none"):
        raise RequestError(
            "tool_choice", "this server cannot force a call; give 'auto' or 'none', or leave it out"
        )

    # Equal ones are fine: some clients send both names
    limits = {request.max_tokens, request.max_completion_tokens} - {None}

    if len(limits) > 1:
        raise RequestError(
            "max_completion_tokens", "it differs from max_tokens; give one of the two"
        )

    if request.add_generation_prompt not in (None, not request.continue_final_message):
        raise RequestError(
            "add_generation_prompt",
            "it is the opposite of continue_final_message here; leave it out",
        )

    if request.stream_options and not request.stream:
        raise RequestError("stream_options", "it is for stream: true; leave it out")


def _check_texts(request: dict[str, Any]) -> None:
    """Refuse half of a surrogate pair in any text or name: JSON can escape it, and no tokenizer reads it.

    It goes first: an error that quotes such a name could not be sent.
    """
    problem = "it holds half of a surrogate pair, which is no character; remove it"
    waiting: list[tuple[str, object]] = [("", request)]

    while waiting:
        place, value = waiting.pop()
        items: list[tuple[str, object]] = []
        if isinstance(value, str):
            if not _is_unicode(value):
                raise RequestError(place, problem)
        elif isinstance(value, dict):
            if not all(map(_is_unicode, value)):
                raise RequestError(place or "body", f"the name of a field: {problem}")
            items = list(value.items())
        elif isinstance(value, list):
            items = [(str(number), item) for number, item in enumerate(value)]

        for name, item in items:
            waiting.append((f"{place}.{name}" if place else name, item))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_extra(name: str, value: JsonValue) -> None:
    """Refuse a field that the request's model does not have, unless it changes no answer."""
    values = ACCEPTED_VALUES.get(name, ())
    if value is None or name in WITHOUT_EFFECT or value in values:
        return
    remedy = f"leave it out or set it to {_either(values)}" if values else "leave it out"
    raise RequestError(name, f"this server does not support it; {remedy}")


def _either(values: Sequence[JsonValue]) -> str:
    return " or ".join(map(str, values))


def _check_message(message: ChatMessage, place: str) -> None:
    """Refuse a message without a text where its role needs one, and fields that no chat template of ours reads."""
    for name, value in (message.model_extra or {}).items():
        if value not in (None, [], {}):
            raise RequestError(f"{place}.{name}", "this server does not read it; leave it out")

    if message.content is None and message.role != "assistant":
        raise RequestError(f"{place}.content", f"a message of role {message.role!r} needs a text")
