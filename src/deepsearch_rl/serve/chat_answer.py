"""An answer of the chat server: its text while tokens are drawn, and the reply, whole or as server-sent events."""

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from deepsearch_rl.chat.chat_format import assistant_message, settled_content, without_begun
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.serve.chat_request import (
    ChatCompletionRequest,
    CompletionRequest,
)
from deepsearch_rl.serve.engine import (
    Engine,
    Generation,
    SamplingParams,
)


@dataclass(slots=True)
class AnswerText:
    """One answer's text, decoded token by token.

    Args:
        tokenizer: of the model that draws the tokens.
        stops: strings that end the answer.
        keep_stop: whether the text keeps the stop string that ended it.
        in_thought: whether the prompt opened a thought.
        may_call: whether tool calls are looked for.
    """

    tokenizer: PreTrainedTokenizerBase
    stops: Sequence[str] = ()
    keep_stop: bool = False
    in_thought: bool = False
    may_call: bool = True
    # The stop string that ended the answer
    stop_string: str | None = field(default=None, init=False)
    text: str = field(default="", init=False)
    _sent: int = field(default=0, init=False)
    _decoder: DecodeStream = field(
        default_factory=lambda: DecodeStream(skip_special_tokens=True), init=False
    )

    def add(self, token: int) -> bool:
        """Add a token; return whether a stop string ends the answer with it."""
        piece = self._decoder.step(self.tokenizer.backend_tokenizer, token)
        before = len(self.text)
        self.text += piece or ""
        return self._stop(before)

    def _stop(self, before: int) -> bool:
        """Cut the text at the first stop string that ends behind its first ``before`` characters."""
        matches: list[tuple[int, int, str]] = []
        for number, stop in enumerate(self.stops):
            place = self.text.find(stop, max(0, before - len(stop) + 1))
            if place >= 0:
                matches.append((place, number, stop))

        if not matches:
            return False

        # Of two at the same place, the one that the request names first.
        place, _, self.stop_string = min(matches)
        self.text = self.text[: place + len(self.stop_string) * self.keep_stop]
        return True

    def finish(self, token_ids: Sequence[int]) -> None:
        """Take the text of all tokens, which ends with what a token alone does not complete."""
        if self.stop_string is None:
            self.text = str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def message(self) -> dict[str, Any]:
        """Return the finished answer as a message."""
        return assistant_message(self.text, in_thought=self.in_thought, may_call=self.may_call)

    def next_content(self) -> str:
        """Return the content that no later token can change and that was not returned before."""
        content = settled_content(self.text, in_thought=self.in_thought, may_call=self.may_call)
        for stop in self.stops:
            content = without_begun(content, stop)
        return self._unsent(content)

    def last_content(self) -> str:
        """Return what is left of the finished answer's content."""
        return self._unsent(str(self.message()["content"] or ""))

    def _unsent(self, content: str) -> str:
        new = content[self._sent :]
        self._sent += len(new)
        return new


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A request that the engine can start: its prompt, how tokens are drawn, and the text that they make."""

    request: ChatCompletionRequest | CompletionRequest
    prompt: list[int]
    sampling: SamplingParams
    text: AnswerText
    id: str
    created: int

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that all objects of this answer share."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}

    def finish_reason(self, generation: Generation, message: dict[str, Any]) -> str:
        """Return why the answer ended, in OpenAI's words; a text with tool calls ended to call them."""
        called = generation.finish_reason == "stop" and "tool_calls" in message
        return "tool_calls" if called else generation.finish_reason

    def usage(self, generation: Generation) -> dict[str, int]:
        """Return the token counts of prompt and answer."""
        completion_tokens = len(generation.token_ids)
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": completion_tokens,
            "total_tokens": len(self.prompt) + completion_tokens,
        }


def sampling_of(
    request: ChatCompletionRequest | CompletionRequest, max_tokens: int
) -> SamplingParams:
    """Return how tokens are drawn for a request; a request without a seed gets a random one."""
    seed = secrets.randbits(63) if request.seed is None else request.seed
    temperature = 1.0 if request.temperature is None else request.temperature
    return SamplingParams(temperature, max_tokens, seed)


def make_answer(
    request: ChatCompletionRequest | CompletionRequest,
    prompt: list[int],
    sampling: SamplingParams,
    text: AnswerText,
) -> ChatAnswer:
    """Return an answer with an id of its own and the time of now."""
    kind = "chatcmpl" if isinstance(request, ChatCompletionRequest) else "cmpl"
    id_ = f"{kind}-{uuid.uuid4().hex}"
    return ChatAnswer(request, prompt, sampling, text, id_, int(time.time()))


def completion(answer: ChatAnswer, generation: Generation) -> dict[str, Any]:
    """Return the reply to a request that is not streamed."""
    answer.text.finish(generation.token_ids)
    message = answer.text.message()
    tokens = token_logprobs(generation.token_ids, generation.logprobs)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": answer.finish_reason(generation, message),
        "stop_reason": answer.text.stop_string,
        "logprobs": {"content": tokens} if answer.request.logprobs else None,
    }
    return answer.head("chat.completion") | {"choices": [choice], "usage": answer.usage(generation)}


def text_completion(answer: ChatAnswer, generation: Generation) -> dict[str, Any]:
    """Return the reply to a request that continues tokens."""
    answer.text.finish(generation.token_ids)
    tokens = {
        "tokens": [f"token_id:{token}" for token in generation.token_ids],
        "token_logprobs": list(generation.logprobs),
    }
    choice = {
        "index": 0,
        "text": answer.text.text,
        "finish_reason": generation.finish_reason,
        "stop_reason": answer.text.stop_string,
        "logprobs": None if answer.request.logprobs is None else tokens,
    }
    return answer.head("text_completion") | {"choices": [choice], "usage": answer.usage(generation)}


def token_logprobs(token_ids: Sequence[int], logprobs: Sequence[float]) -> list[dict[str, Any]]:
    """Return a chat choice's log-probabilities, an entry a token."""
    entries: list[dict[str, Any]] = []
    for token, logprob in zip(token_ids, logprobs, strict=True):
        # vLLM's spelling with --return-tokens-as-token-ids, so that a trainer reads one form.
        name = f"token_id:{token}"
        entries.append({"token": name, "logprob": logprob, "bytes": None, "top_logprobs": []})

    return entries


_END_OF_STREAM = "data: [DONE]\n\n"

# A token, its log-probability, and the content that it completes
_Step: TypeAlias = tuple[int, float, str]


def start_stream(engine: Engine, answer: ChatAnswer) -> AsyncIterator[str]:
    """Start an answer and return its server-sent events; raise as :meth:`Engine.generate` before the first one."""
    loop = asyncio.get_running_loop()
    steps: asyncio.Queue[_Step | None] = asyncio.Queue()

    def watch(token: int, logprob: float) -> bool:
        stopped = answer.text.add(token)
        loop.call_soon_threadsafe(steps.put_nowait, (token, logprob, answer.text.next_content()))
        return stopped

    def end(_result: "Future[Generation]") -> None:
        loop.call_soon_threadsafe(steps.put_nowait, None)

    result = engine.generate(answer.prompt, answer.sampling, watch)
    result.add_done_callback(end)
    return _stream(answer, steps, result)


async def _stream(
    answer: ChatAnswer, steps: "asyncio.Queue[_Step | None]", result: "Future[Generation]"
) -> AsyncIterator[str]:
    """Yield the events of an answer while it is drawn; a client that goes away cancels it."""
    try:
        yield _event(_chunk(answer, {"role": "assistant", "content": ""}))
        while (step := await steps.get()) is not None:
            token, logprob, content = step
            logprobs = token_logprobs([token], [logprob]) if answer.request.logprobs else None

            # A token may complete no character, and then has nothing to show.
            if content or logprobs:
                delta = {"content": content} if content else {}
                yield _event(_chunk(answer, delta, logprobs=logprobs))

        for event in _end_of_stream(answer, result):
            yield event
    finally:
        result.cancel()


def _end_of_stream(answer: ChatAnswer, result: "Future[Generation]") -> Iterator[str]:
    """Yield what follows the last token: the rest of the text, the calls, the finish reason and the usage."""
    try:
        generation = result.result()
    except (CancelledError, Exception) as error:  # noqa: BLE001
        # The stream's reader gets it
        yield _event(error_body(error_text(error), "server_error"))
        yield _END_OF_STREAM
        return

    answer.text.finish(generation.token_ids)
    message = answer.text.message()
    if rest := answer.text.last_content():
        yield _event(_chunk(answer, {"content": rest}))
    if calls := message.get("tool_calls"):
        numbered = [{"index": number, **call} for number, call in enumerate(calls)]
        yield _event(_chunk(answer, {"tool_calls": numbered}))

    yield _event(_chunk(answer, {}, finish_reason=answer.finish_reason(generation, message)))

    request = answer.request
    if isinstance(request, ChatCompletionRequest) and request.with_usage:
        chunk = answer.head("chat.completion.chunk") | {
            "choices": [],
            "usage": answer.usage(generation),
        }
        yield _event(chunk)

    yield _END_OF_STREAM


def _chunk(
    answer: ChatAnswer,
    delta: dict[str, Any],
    *,
    logprobs: list[dict[str, Any]] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    choice["logprobs"] = {"content": logprobs} if logprobs else None
    if finish_reason is not None:
        choice["stop_reason"] = answer.text.stop_string
    return answer.head("chat.completion.chunk") | {"choices": [choice]}


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def error_body(problem: str, kind: str, field: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form, from which clients read the message and the field."""
    return {"error": {"message": problem, "type": kind, "param": field, "code": None}}


def error_text(error: BaseException) -> str:
    """Return an error's text, with the kind of an error that was not written for a reader."""
    if isinstance(error, CancelledError):
        return "the server is stopping."
    return str(error) if isinstance(error, DeepsearchError) else f"{type(error).__name__}: {error}"
