"""The part of a chat completion that is read, checked: the client itself takes whatever a server sends."""

from typing import Annotated

from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.files import first_problem
from deepsearch_rl.records import TokenUsage


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Function(_Read):
    name: str
    arguments: str


class CalledFunction(_Read):
    """A tool call as the server names it."""

    id: str | None = None
    function: _Function


class Said(_Read):
    """What a model said in one turn."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledFunction] | None = None

    @property
    def thought(self) -> str | None:
        """The reasoning that the server tells apart from the text; there are two names for it."""
        return self.reasoning or self.reasoning_content or None


class _Choice(_Read):
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    message: Said


class _Usage(_Read):
    prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    completion_tokens: Annotated[int, Field(ge=0)] | None = None


class Completion(_Read):
    """A completion with one choice or more, of which the first counts."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None

    @property
    def said(self) -> Said:
        """The message of the first choice."""
        return self.choices[0].message

    @property
    def counted(self) -> TokenUsage | None:
        """Tokens of the call; None where the server counts none, which some say by zeros."""
        read, written = self._tokens
        return TokenUsage(prompt_tokens=read, completion_tokens=written) if read + written else None

    @property
    def stopped_at(self) -> str | None:
        """The stop string that ended the turn, where the server names it (vLLM: stop_reason, SGLang: matched_stop)."""
        choice = self.choices[0]
        return next((one for one in (choice.stop_reason, choice.matched_stop) if isinstance(one, str)), None)

    def cut(self, max_tokens: int) -> bool:
        """Whether the limit of tokens ended the turn.

        A server that parses tool calls may say ``tool_calls`` of a turn that was cut, some say nothing: their count
        decides. Of a turn that ended by itself it says nothing: some count hidden reasoning.
        """
        reason = self.choices[0].finish_reason
        return reason == "length" or (reason in {None, "tool_calls"} and self._tokens[1] >= max_tokens)

    @property
    def _tokens(self) -> tuple[int, int]:
        usage = self.usage
        return (0, 0) if usage is None else (usage.prompt_tokens or 0, usage.completion_tokens or 0)


def read_completion(answered: ChatCompletion) -> Completion:
    """The part of a server's answer that counts.

    Raises:
        EndpointError: it is something else than a chat completion; names the field.
    """
    if not isinstance(answered, ChatCompletion):  # the client hands a body that is no JSON on as text
        raise EndpointError("the endpoint answered with something else than JSON")
    try:
        return Completion.model_validate(answered.model_dump(warnings=False))
    except ValidationError as error:
        field, problem = first_problem(error)
        raise EndpointError(
            f"the endpoint answered with something else than a completion ({field}: {problem})"
        ) from error
