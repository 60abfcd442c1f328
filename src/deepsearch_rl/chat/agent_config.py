"""The agent's settings, one section of params."""

from typing import Final, Self

from pydantic import Field, model_validator

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompt_digests import PromptDigests, tools_text
from deepsearch_rl.chat.prompts import load_prompt, prompt_path, prompt_title
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import sha256_json
from deepsearch_rl.core.records import ProtocolName, Record

FUNCTION_CALLING: Final = "function_calling"
SEARCH_TAGS: Final = "search_tags"
_SEARCH_TAG = "<search>"


def prompt_option(prompt: str | None, protocol: str | None) -> str | None:
    """Return the prompt that a command's options name: where they name a protocol in tags alone, the one for it."""
    return SEARCH_TAGS if prompt is None and protocol == SEARCH_TAGS else prompt


class AgentConfig(Record):
    """Section ``agent``; an unknown prompt raises UnknownNameError."""

    protocol: ProtocolName = Field(
        description="how the model asks for searches: function_calling | search_tags"
    )
    prompt: str = Field(
        description="path of a text file or of a folder that a stage made; in commands, also a name"
    )
    history_reasoning: bool = Field(
        description="send a turn's reasoning back with the conversation"
    )
    max_searches: int = Field(
        ge=0, description="searches per question; one more is answered with a notice"
    )
    max_turns: int = Field(ge=1, description="model calls per question")
    max_tokens: int = Field(ge=1, description="completion tokens per model call")
    answer_tokens: int = Field(
        ge=1,
        description="if fewer than max_tokens fit, but at least these, the model is asked to answer now",
    )
    max_observation_tokens: int | None = Field(
        ge=1,
        description="tokens of one search's passages; the last that do not fit are left out; null: no limit",
    )
    context_tokens: int = Field(
        ge=1, description="prompt and completion tokens of one model call together"
    )
    timeout_s: float = Field(gt=0, description="seconds per question")
    call_timeout_s: float = Field(
        gt=0, description="seconds per model call or search; one that takes longer is retried"
    )
    concurrency: int = Field(ge=1, description="questions answered at once")

    def rollout_fingerprint(self) -> str:
        """Return the SHA-256 of all that decides an answer: settings but ``concurrency``, prompt and tool schema."""
        settings = self.model_dump(mode="json", exclude={"concurrency"})
        return sha256_json([settings, self.load_instruction(), RETRIEVE_TOOL])

    def load_instruction(self) -> str:
        """Return the text of the prompt; raise ConfigError where it asks for searches in the other protocol's form."""
        text = load_prompt(self.prompt)
        has_tags = _SEARCH_TAG in text
        if has_tags == (self.protocol == SEARCH_TAGS):
            return text

        problem = "asks" if has_tags else "does not ask"
        fitting = SEARCH_TAGS if has_tags else FUNCTION_CALLING
        raise ConfigError(
            f"the prompt {self.prompt} {problem} the model to write its searches as {_SEARCH_TAG} "
            f"query </search>, which does not fit agent.protocol: {self.protocol}. Set "
            f"agent.protocol: {fitting}, or agent.prompt to a prompt of this protocol (Search-R1's "
            "tags: search_tags)."
        )

    @property
    def prompt_title(self) -> str:
        """How tables and trajectories call the prompt."""
        return prompt_title(self.prompt)

    def prompt_digests(self) -> PromptDigests:
        """Return the digests of the prompt as it is now and of the tools that are offered; raises as load_prompt."""
        tools = [RETRIEVE_TOOL] if self.protocol == FUNCTION_CALLING else []
        return PromptDigests.of(self.load_instruction(), tools_text(*tools))

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        # Refuses an unknown name.
        prompt_path(self.prompt)
        if self.max_tokens >= self.context_tokens:
            raise ValueError(
                f"max_tokens {self.max_tokens} leaves no room for a prompt in {self.context_tokens}"
            )

        if self.call_timeout_s > self.timeout_s:
            raise ValueError(
                f"call_timeout_s {self.call_timeout_s:g} is more than timeout_s {self.timeout_s:g}"
            )

        if self.answer_tokens > self.max_tokens:
            raise ValueError(
                f"answer_tokens {self.answer_tokens} is more than max_tokens {self.max_tokens}"
            )

        if self.history_reasoning and self.protocol == SEARCH_TAGS:
            raise ValueError(
                "history_reasoning is for function_calling: search_tags always sends all text back"
            )

        return self
