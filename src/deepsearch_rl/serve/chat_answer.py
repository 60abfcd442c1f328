"""An answer of the chat server, from its request to the reply that is not streamed."""

import secrets
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepsearch_rl.serve.answer_text import AnswerText
from deepsearch_rl.serve.chat_request import (
    ChatCompletionRequest,
    CompletionRequest,
)
from deepsearch_rl.serve.engine import (
    Generation,
    SamplingParams,
)


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
