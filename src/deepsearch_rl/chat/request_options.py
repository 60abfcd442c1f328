"""How one model wants to be asked: names of fields, fields of its own, streaming, and how many requests it takes.

The options stand beside a model's address: in ``endpoint.json``, and in
``--request`` of ``deepsearch evaluate``. Without any, a request has ``max_tokens``, ``temperature``
and ``seed`` and is answered whole, as most servers take it.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import first_problem
from deepsearch_rl.core.records import Record
from deepsearch_rl.core.retries import is_larger_than_limit, is_out_of_money

# Fields that the agent writes itself, or that have an option of their own
_OWN_FIELDS = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "seed",
        "stop",
        "stream",
        "temperature",
        "tools",
    }
)

_REMEDIES = (
    (r"max_completion_tokens", "set token_limit: max_completion_tokens"),
    (r"temperature", "set temperature: omit"),
    (r"\bseed\b", "set seed: omit"),
    (r"\bstream", "set stream: true"),
    (
        r"reasoning_content|thought.?signature|reasoning.{0,60}(passed|sent) back",
        "set history_reasoning to the field in which it wants a turn's reasoning back",
    ),
    (
        r"(?i)content.?(filter|management|policy)|inspection|content exists risk|prohibited_content|high risk",
        "leave out the documents or questions that its content filter refuses, or ask another provider",
    ),
    (r"enable_thinking|reasoning_effort|extra_body", "give the field in extra_body"),
    (
        r"max_tokens.{0,40}(too large|at most|less than or equal)",
        "lower agent.max_tokens (ifeval.max_tokens)",
    ),
    (
        r"tool.choice requires|not support tools|support tool use|requires --jinja",
        "let the server take tool calls (vLLM: --enable-auto-tool-choice and --tool-call-parser; llama.cpp: "
        "--jinja), or set agent.protocol: search_tags",
    ),
    (r"[Cc]ode:? ?404\b", "correct the model's name, or the address up to and including /v1"),
)
_REFUSED = re.compile(r"\b(status|code:?) ?(400|404|405|413|415|422)\b", re.IGNORECASE)
_REFUSED_KEY = re.compile(r"\b(status|code:?) ?(401|403)\b", re.IGNORECASE)
_FULL = re.compile(r"\b(status|code:?) ?429\b", re.IGNORECASE)
_UNPAID = re.compile(r"\b(status|code:?) ?402\b", re.IGNORECASE)
_SLOW = re.compile(r"timed out", re.IGNORECASE)
START_AGAIN = "start the server again"


class RequestOptions(Record):
    """Options of the requests to one model; each has a value that most servers take."""

    token_limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens",
        description="name of the limit of tokens; OpenAI's GPT-5 and o-series take the longer one",
    )
    temperature: Literal["send", "omit"] = Field(
        default="send",
        description="omit: the provider's own temperature, for models that take no other",
    )
    seed: Literal["send", "omit"] = Field(
        default="send", description="omit: for servers that refuse a seed"
    )
    extra_body: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="further fields, e.g. {enable_thinking: false} or {reasoning_effort: low}",
    )
    stream: bool = Field(
        default=False, description="receive the answer in pieces, for servers that do nothing else"
    )
    history_reasoning: Literal["agent", "omit", "reasoning", "reasoning_content"] = Field(
        default="agent",
        description="how a turn's reasoning goes back with the conversation. agent: under both names, if "
        "agent.history_reasoning says so; a name: always, under this one; omit: never, nor reasoning_details",
    )
    begins_in_thought: bool = Field(
        default=False,
        description="true: its prompts open a thought, and the server leaves thoughts in the text; a text without "
        "a closing tag is then a thought that was cut",
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="of this process, all rollouts together; null: no limit"
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="prompt and answer together, estimated until the reply counts them; null: no limit",
    )
    rate_limit_wait_s: float = Field(
        default=600.0,
        ge=0,
        description="how long a call may wait in all while the server answers 429",
    )

    @field_validator("extra_body")
    @classmethod
    def _has_no_own_fields(cls, extra_body: dict[str, JsonValue]) -> dict[str, JsonValue]:
        taken = sorted(_OWN_FIELDS & extra_body.keys())
        if taken:
            raise ValueError(
                f"{', '.join(taken)}: the agent writes it; extra_body holds fields that it does not know"
            )

        return extra_body

    def changed(self, values: Mapping[str, object]) -> Self:
        """Return the options with others in place of some; raise ConfigError for one that does not fit."""
        try:
            return type(self).model_validate({**self.model_dump(), **values})
        except ValidationError as error:
            field, problem = first_problem(error)
            raise ConfigError(f"--request {field}: {problem}.") from error

    def arguments(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a chat completion as this model takes them."""
        arguments = dict(request)
        limit = arguments.pop("max_tokens", None)
        if limit is not None:
            arguments[self.token_limit] = limit
        for field in ("temperature", "seed"):
            if getattr(self, field) == "omit":
                arguments.pop(field, None)

        if self.extra_body:
            arguments["extra_body"] = self.extra_body | (arguments.get("extra_body") or {})
        if self.stream:
            arguments |= {"stream": True, "stream_options": {"include_usage": True}}
        return arguments

    def of_answers(self) -> dict[str, JsonValue]:
        """Return the options that are not the usual ones and can change an answer."""
        paces = {"requests_per_minute", "tokens_per_minute", "rate_limit_wait_s"}
        return self.model_dump(mode="json", exclude=paces, exclude_defaults=True)


USUAL = RequestOptions()


def remedy(error: str) -> str:
    """Return what to do about the error of a model call: change the request where the server refused it."""
    if _REFUSED_KEY.search(error):
        return "correct the key, or what it may use"
    if _UNPAID.search(error) or is_out_of_money(error):
        return "raise the account's balance or quota"
    if is_larger_than_limit(error):
        return (
            "raise the account's limit of tokens per minute, which one request exceeds, or lower "
            "agent.context_tokens and agent.max_tokens"
        )
    if _FULL.search(error):
        return "wait until its limit allows more, or send less (requests_per_minute, a longer rate_limit_wait_s)"
    if _SLOW.search(error):
        return (
            "start the server again if it hangs, or give a call more time (agent.call_timeout_s; timeout_s of "
            "make_questions.writer, optimize_prompt.reflection or ifeval)"
        )
    if not _REFUSED.search(error):
        return START_AGAIN
    changes = [change for pattern, change in _REMEDIES if re.search(pattern, error)]
    change = " or ".join(changes) or "see what it complains about"
    return f"the server refuses the request as it is: {change} (options of the model's request, docs/contracts.md 5)"
