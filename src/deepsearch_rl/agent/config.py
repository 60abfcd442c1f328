"""The settings of an agent, and the manifest that says which prompt and tool trajectories were made with.

The scripted teacher's error rates stand here too, so that commands read them without its code.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import (
    PromptDigests,
    load_prompt,
    parts_text,
    prompt_path,
    prompt_title,
    text_digest,
    tools_text,
)
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_record, sha256_json, write_json
from deepsearch_rl.core.records import ProtocolName, Record, Trajectory

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
    out_of_context: Literal["answer", "fail"] = Field(
        default="answer",
        description="where max_tokens do not fit: the model is asked to answer now, or the rollout fails",
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


# The value of `synthesize.teacher` that names the scripted teacher: the folder of its code.
SCRIPTED = "src/deepsearch_rl/toy"
# The one that names the teacher from gold evidence: the module of its code.
GOLD = "src/deepsearch_rl/agent/gold_teacher.py"


def is_script(teacher: str, script: str) -> bool:
    """Return whether `synthesize.teacher` names a script, SCRIPTED or GOLD, from any working directory."""
    return teacher.rstrip("/").endswith(script)


class GoldConfig(Record):
    """How the teacher from gold evidence searches."""

    min_searches: int = Field(
        ge=1,
        description="searches before it answers; 1: it stops as soon as all evidence is shown",
    )


class ScriptedConfig(Record):
    """How often the scripted teacher errs, and when it stops."""

    partial_query: float = Field(
        ge=0, le=1, description="a first query has one word of a two-word name"
    )
    misspelt_query: float = Field(
        ge=0, le=1, description="a first query has two letters of the name swapped"
    )
    wrong_relation: float = Field(ge=0, le=1, description="a first query asks for another relation")
    misread: float = Field(
        ge=0, le=1, description="some other name in the passages is read as the object"
    )
    max_facts: int = Field(
        ge=1, description="facts after which it gives up, and answers with the last"
    )
    gives_up: float = Field(
        ge=0, le=1, description="probability that it does so where more are asked for"
    )


MANIFEST = "manifest.json"


class TrajectoriesManifest(Record):
    """``manifest.json``."""

    made_with: PromptDigests


def write_manifest(trajectories: Path, agent: AgentConfig) -> None:
    """Write the manifest of a file of trajectories that this agent has just made."""
    manifest = TrajectoriesManifest(made_with=agent.prompt_digests())
    write_json(trajectories.with_name(MANIFEST), manifest.model_dump())


def require_made_with(trajectories: Path, agent: AgentConfig) -> None:
    """Raise ConfigError where trajectories were made with another prompt or tool than this agent's.

    Raise ArtifactError where there is no manifest.
    """
    manifest = read_record(trajectories.with_name(MANIFEST), TrajectoriesManifest)
    other = manifest.made_with.other_parts(agent.prompt_digests())
    if other:
        raise ConfigError(_refusal(f"{trajectories} was made", parts_text(other), agent))


def require_prompts(trajectories: Iterable[Trajectory], agent: AgentConfig) -> None:
    """Raise ConfigError where a trajectory does not begin with the agent's own system prompt."""
    expected = agent.prompt_digests().prompt
    for trajectory in trajectories:
        opening = trajectory.messages[0] if trajectory.messages else None
        system = opening.content if opening and opening.role == "system" else ""
        if text_digest(system) != expected:
            raise ConfigError(
                _refusal(f"trajectory {trajectory.id} was made", "system prompt", agent)
            )


def _refusal(what: str, parts: str, agent: AgentConfig) -> str:
    return (
        f"{what} with another {parts} than the agent's (agent.prompt {agent.prompt!r}), so that "
        "rows of it would train what is never served; run the stage synthesize again, or set the "
        "old text back."
    )
