"""Calls of a model behind an endpoint that log every reply under the digest of its request, and count tokens.

No request is paid for twice.
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

# An estimate for servers that count no tokens; few tokenizers need more
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
    text: str = Field(description="unchanged, with thoughts that the server left in it")
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
        """Return the model's replies to prompts, in order, without its thoughts.

        Each prompt comes with the number of its sample, which seeds the reply. Only what is not in
        the log is requested. Raises EndpointError if the model fails; no request starts after the
        first failure, and finished replies are in the log.
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
            # The budget includes replies that an earlier run paid for, each once
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
                async with room:
                    # The failed call was retried, so others would fail too
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
            # Requests that started are paid for, so they end before an error is raised
            results = await asyncio.gather(*tasks, return_exceptions=True)

        for result in (*results, *failures):
            if isinstance(result, BaseException):
                raise result

    async def _ask(self, client: openai.AsyncOpenAI, digest: str, prompt: str, sample: int) -> Call:
        messages: Any = [{"role": "user", "content": prompt}]
        try:
            completion = await complete(
                client,
                self._endpoint,
                sample=sample,
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
            characters = len(prompt) + len(reasoning or "") + len(text)
            tokens = characters // CHARACTERS_PER_TOKEN
        return Call(
            request_sha256=digest,
            text=text,
            reasoning=reasoning,
            tokens=tokens,
            cut=completion.truncated(self._config.max_tokens),
        )
