"""Calls of a model behind an endpoint: every reply is kept, and the tokens of all are counted.

A reply stands in the log under the digest of its request, so that a run that was stopped, or has a
larger budget, pays for no call twice.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import openai
from pydantic import Field

from deepsearch_rl.chat.chat_messages import spoken_reply
from deepsearch_rl.chat.client import complete, open_client
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.chat.request_options import remedy
from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.core.files import AppendLog, read_jsonl, sha256_json
from deepsearch_rl.core.records import NonEmpty, Record

# Where a server counts no tokens; few tokenizers need more for a text
CHARACTERS_PER_TOKEN = 3


class WriterConfig(Record):
    """A model and how it is asked."""

    endpoint: NonEmpty = Field(description="folder of the model's endpoint.json")
    temperature: float = Field(ge=0)
    max_tokens: int = Field(ge=1, description="of a reply, its thoughts counted")
    timeout_s: float = Field(gt=0, description="seconds per reply")
    concurrency: int = Field(ge=1, description="requests at once")


class Call(Record):
    """A reply, its tokens, and the digest of the prompt and the settings that it answers."""

    request_sha256: NonEmpty
    text: str = Field(description="as it came, with the thoughts that the server left in it")
    reasoning: str | None = Field(default=None, description="the thought that the server split off")
    tokens: int = Field(ge=0, description="of prompt and reply together")
    cut: bool = Field(default=False, description="max_tokens ended the reply")


class LoggedModel:
    """A model whose replies are kept in a log."""

    def __init__(self, config: WriterConfig, endpoint: Endpoint, log: AppendLog) -> None:
        self._config = config
        self._endpoint = endpoint
        self._log = log
        self._known = {call.request_sha256: call for call in read_jsonl(log.path, Call)}
        self._counted: set[str] = set()
        self.tokens = 0
        # Replies that max_tokens ended
        self.cut = 0

    def ask_all(self, prompts: Sequence[tuple[str, int]]) -> list[str]:
        """Return what the model says to each of ``prompts``, in their order, without its thoughts.

        A prompt comes with the number of its sample, which seeds the reply: two samples of one text
        are two replies. Replies in the log are not asked for again.

        Raise EndpointError where the model fails; finished replies are in the log. No prompt is
        begun after the first failure.
        """
        missing: dict[str, tuple[str, int]] = {}
        for prompt, sample in prompts:
            digest = self._digest(prompt, sample)
            if digest not in self._known:
                missing[digest] = (prompt, sample)

        if missing:
            asyncio.run(self._ask_missing(missing))

        texts: list[str] = []
        for prompt, sample in prompts:
            call = self._known[self._digest(prompt, sample)]
            texts.append(self._spoken(call))
            # A reply that an earlier run has paid for counts for this one, too; once
            if call.request_sha256 not in self._counted:
                self._counted.add(call.request_sha256)
                self.tokens += call.tokens
                self.cut += call.cut

        return texts

    def _spoken(self, call: Call) -> str:
        begins_in_thought = self._endpoint.begins_in_thought
        return spoken_reply(call.text, call.reasoning, begins_in_thought=begins_in_thought)

    def _digest(self, prompt: str, sample: int) -> str:
        config = self._config
        settings = [self._endpoint.model, config.temperature, config.max_tokens]
        return sha256_json([*settings, self._endpoint.options.of_answers(), prompt, sample])

    async def _ask_missing(self, missing: dict[str, tuple[str, int]]) -> None:
        room = asyncio.Semaphore(self._config.concurrency)
        failures: list[EndpointError] = []
        async with open_client(self._endpoint, self._config.timeout_s) as client:

            async def ask(digest: str, prompt: str, sample: int) -> None:
                """Ask for one reply and log it, unless a call has failed meanwhile."""
                async with room:
                    # That call was repeated: the server fails, and would fail every other one
                    if failures:
                        return
                    try:
                        call = await self._ask(client, digest, prompt, sample)
                    except EndpointError as error:
                        failures.append(error)
                        return
                self._known[digest] = call
                self._log.append(call)

            tasks = [ask(digest, prompt, sample) for digest, (prompt, sample) in missing.items()]
            # All that have begun end before an error is raised: they are paid for
            results = await asyncio.gather(*tasks, return_exceptions=True)

        for result in (*results, *failures):
            if isinstance(result, BaseException):
                raise result

    async def _ask(self, client: openai.AsyncOpenAI, digest: str, prompt: str, sample: int) -> Call:
        messages: Any = [{"role": "user", "content": prompt}]
        try:
            completion = await complete(
                client,
                self._endpoint.options,
                model=self._endpoint.model,
                messages=messages,
                max_tokens=self._config.max_tokens,
                temperature=self._config.temperature,
                seed=sample,
            )
        except (openai.APIError, EndpointError) as error:
            raise EndpointError(
                f"the model that writes questions failed: {self._endpoint.redact(str(error))}; "
                f"{remedy(str(error))} and run the stage again, which goes on from here."
            ) from error

        text = completion.message.text
        reasoning = completion.message.thought
        usage = completion.usage
        if usage:
            tokens = usage.prompt_tokens + usage.completion_tokens
        else:
            # The budget counts also where a server says nothing
            characters = len(prompt) + len(reasoning or "") + len(text)
            tokens = characters // CHARACTERS_PER_TOKEN
        return Call(
            request_sha256=digest,
            text=text,
            reasoning=reasoning,
            tokens=tokens,
            cut=completion.truncated(self._config.max_tokens),
        )
