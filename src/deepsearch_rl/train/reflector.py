"""The model that writes new prompts, asked once for each of GEPA's questions: a killed run reads its log."""

import asyncio
import logging
from typing import Any

import openai
from pydantic import Field

from deepsearch_rl.chat.chat_messages import spoken_reply
from deepsearch_rl.chat.client import complete, open_client
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.request_options import remedy
from deepsearch_rl.core.errors import ArtifactError, EndpointError
from deepsearch_rl.core.files import AppendLog, read_jsonl, sha256_json
from deepsearch_rl.core.records import NonEmpty, Record, Trajectory

_LOG = logging.getLogger(__name__)


class Reflection(Record):
    """The model that writes new prompts, and how it is asked."""

    endpoint: NonEmpty = Field(description="folder of the model's endpoint.json")
    temperature: float = Field(ge=0)
    max_tokens: int = Field(ge=1, description="of an answer, its thoughts counted")
    timeout_s: float = Field(gt=0, description="seconds per answer")


class ReflectionLine(Record):
    """A text of the reflection model, and the digest of the question that it answers."""

    question_sha256: NonEmpty
    text: str


class Reflector:
    """GEPA's reflection model: asks the endpoint, or answers from the log of an earlier run."""

    def __init__(self, config: Reflection, endpoint: Endpoint, log: AppendLog) -> None:
        # GEPA passes over an error of its reflection model, and spends the budget on nothing
        self.failure: Exception | None = None
        self._config = config
        self._endpoint = endpoint
        self._log = log
        self._known = list(read_jsonl(log.path, ReflectionLine))
        self.calls = 0

    def __call__(self, prompt: str | list[dict[str, Any]]) -> str:
        """Return the answer to a question; raise what :attr:`failure` holds from then on.

        That is an ArtifactError where the log has the answer to another question, and an EndpointError
        where the model failed.
        """
        # GEPA asks a second time where the first one raised
        if self.failure is not None:
            raise self.failure

        try:
            return self._answer(prompt)
        except Exception as error:
            self.failure = error
            raise

    def _answer(self, prompt: str | list[dict[str, Any]]) -> str:
        question = sha256_json(prompt)
        number = self.calls
        self.calls = self.calls + 1

        # GEPA draws from one seed: it asks the same questions in the same order each time
        if number < len(self._known):
            if self._known[number].question_sha256 != question:
                raise ArtifactError(
                    f"line {number + 1} of {self._log.path} answers another question than this run "
                    "asks; delete its folder to begin anew."
                )

            return self._known[number].text

        text = asyncio.run(self._ask(prompt))
        self._log.append(ReflectionLine(question_sha256=question, text=text))
        return text

    async def _ask(self, prompt: str | list[dict[str, Any]]) -> str:
        messages: Any = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        config = self._config

        async with open_client(self._endpoint, config.timeout_s) as client:
            try:
                completion = await complete(
                    client,
                    self._endpoint,
                    sample=self.calls,
                    messages=messages,
                    max_tokens=config.max_tokens,
                    temperature=config.temperature,
                )
            except (openai.APIError, EndpointError) as error:
                raise EndpointError(
                    f"the reflection model failed: {self._endpoint.redact(str(error))}; "
                    f"{remedy(str(error))} and run the stage again, which goes on from here."
                ) from error

        if completion.truncated(config.max_tokens):
            _LOG.warning(
                "answer %d of the reflection model was cut off after max_tokens = %d tokens, its thoughts "
                "counted: the prompt in it may be missing or not whole. Raise "
                "optimize_prompt.reflection.max_tokens.",
                self.calls,
                config.max_tokens,
            )

        message = completion.message
        # GEPA looks for the prompt between marks, which a thought may have too
        return spoken_reply(
            message.text, message.thought, begins_in_thought=self._endpoint.begins_in_thought
        )


# Of a message: a search returns thousands
SHOWN_CHARACTERS = 1500


def conversation_text(trajectory: Trajectory) -> str:
    """Return what the model wrote and was shown after the question, long messages cut."""
    lines: list[str] = []
    for message in trajectory.messages:
        if message.role in ("assistant", "tool"):
            parts = list(filter(None, (message.reasoning, message.content)))
            parts += [f"{call.name}({call.arguments})" for call in message.tool_calls]
            text = "\n".join(parts)
            if len(text) > SHOWN_CHARACTERS:
                text = f"{text[:SHOWN_CHARACTERS]} ..."
            lines.append(f"{message.role}: {text}")

    return "\n".join(lines)


def feedback(trajectory: Trajectory, reward: float, full_reward: float) -> str:
    """Return how a rollout ended, in words: reward, correct answers, and the limit or error that stopped it.

    ``full_reward`` is the most that a rollout can earn.
    """
    correct = " or ".join(map(repr, trajectory.golden_answers))
    ending = ""
    if trajectory.failed:
        ending = f"It ended without an answer: {trajectory.error or trajectory.stop_reason}. "
    searches = f"The assistant searched {len(trajectory.retrievals)} times."
    earned = f"The answer {trajectory.answer!r} earns {reward:.2f} of {full_reward:.2f}; correct is {correct}."
    return f"{ending}{earned} {searches}"
