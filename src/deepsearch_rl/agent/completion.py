"""The part of a chat completion that is read, checked: the client itself takes whatever a server sends."""

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

    id: str
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
    message: Said


class _Usage(_Read):
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)


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
        usage = self.usage
        if usage is None or not usage.prompt_tokens + usage.completion_tokens:
            return None
        return TokenUsage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)

    def cut(self, max_tokens: int) -> bool:
        """Whether the limit of tokens ended the turn."""
        written = self.usage.completion_tokens if self.usage else 0
        return self.choices[0].finish_reason == "length" or written >= max_tokens


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
