"""Generation for small models on a CPU: continuous batching over slots, prefixes reused across turns.

``transformers.generate`` computes every prompt from its first token, keeps a batch until its slowest member is done
and copies all keys and values at every step. Agents send the same conversation again with every turn, groups of
rollouts share their question, and all share the system prompt; so this engine keeps keys and values in slots that
outlive a request, and a new one starts from the slot that has the longest common prefix with it. Requests join and
leave between two tokens, and each draws from a random generator of its own: the same request with the same seed draws
the same tokens, whatever else is in the batch. The model is transformers' own; only its cache and the loop around it
are ours.

Shapes: B requests of a forward pass, V vocabulary.
"""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from deepsearch_rl.serving.packing import ATTENTION, forward
from deepsearch_rl.serving.rounding import choose_shapes
from deepsearch_rl.serving.slots import SlotTable


class Sampling(NamedTuple):
    """How tokens are drawn: from the plain softmax at ``temperature``; the most probable token at 0."""

    temperature: float
    max_tokens: int
    seed: int


class Generation(NamedTuple):
    """An answer: its tokens (an end token included) and their log-probabilities at its temperature."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


@dataclass(slots=True, eq=False)
class _Request:
    prompt: Sequence[int]
    sampling: Sampling
    result: "Future[Generation]"
    rng: np.random.Generator
    slot: int = -1
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Engine:
    """Generates for any number of threads; one thread of its own runs the model.

    Args:
        model: a causal language model with grouped-query attention and full attention in every layer (Qwen3).
        slots: conversations kept; at most half of them run at once, the rest are there to be continued.
        context_tokens: longest prompt plus answer.
    """

    def __init__(self, model: PreTrainedModel, slots: int, context_tokens: int) -> None:
        model.config._attn_implementation = ATTENTION
        self._model, self._end_ids, self.context_tokens = model, frozenset(end_ids(model)), context_tokens
        self._table = SlotTable(model.config, slots, context_tokens)
        self._shapes = choose_shapes(model)
        self._batch = slots // 2
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._stale = False
        self._backlog: list[_Request] = []
        self._running: list[_Request] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def generate(self, prompt: Sequence[int], sampling: Sampling) -> "Future[Generation]":
        """Queue a prompt of token ids; raise ValueError if prompt and answer would not fit the context."""
        if not prompt or len(prompt) + sampling.max_tokens > self.context_tokens:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens and max_tokens is {sampling.max_tokens}, which does not fit the "
                f"context of {self.context_tokens} tokens"
            )
        request = _Request(prompt, sampling, Future(), np.random.default_rng(sampling.seed))
        self._waiting.put(request)
        return request.result

    def forget(self) -> None:
        """Have later requests use nothing computed so far; call it when the weights have changed."""
        self._stale = True

    def close(self) -> None:
        """Stop the thread; requests that are not finished are cancelled."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            while self._take_requests():
                self._admit()
                if self._running:
                    self._table.line_up([request.slot for request in self._running])
                    self._running.sort(key=lambda request: self._table.places[request.slot])
                    self._step(self._running, [[request.token_ids[-1]] for request in self._running])
        for request in (*self._backlog, *self._running):
            request.result.cancel()

    def _take_requests(self) -> bool:
        """Move what waits into the backlog, blocking while there is nothing else to do; False at the end."""
        idle = not self._running and not self._backlog
        while idle or not self._waiting.empty():
            request = self._waiting.get()
            if request is None:
                return False
            self._backlog.append(request)
            idle = False
        if self._stale:
            self._stale = False
            self._table.clear()
        return True

    def _admit(self) -> None:
        """Start requests while there is room; of equal prompts the first goes ahead and the others copy its work."""
        while self._backlog and len(self._running) < self._batch:
            first: dict[tuple[int, ...], _Request] = {}
            for request in self._backlog:
                first.setdefault(tuple(request.prompt), request)
            started = list(first.values())[: self._batch - len(self._running)]
            self._backlog = [request for request in self._backlog if request not in started]
            rests = []
            for request in started:
                request.slot, computed = self._table.acquire(request.prompt)
                rests.append(list(request.prompt[computed:]))
            self._running += started
            self._step(started, rests)

    def _step(self, requests: list[_Request], new_tokens: list[list[int]]) -> None:
        try:
            slots = [request.slot for request in requests]
            logits_BV = forward(self._model, self._table, self._shapes, slots, new_tokens)
        except Exception as error:  # noqa: BLE001 - the requests' callers get it; the engine goes on with the others
            for request in requests:
                self._release(request)
                request.result.set_exception(error)
            return
        for request, token, logprob in zip(requests, *_draw(logits_BV, requests), strict=True):
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            self._table.append(request.slot, token)
            ended = token in self._end_ids
            if ended or len(request.token_ids) >= request.sampling.max_tokens:
                self._release(request)
                reason = "stop" if ended else "length"
                request.result.set_result(Generation(tuple(request.token_ids), tuple(request.logprobs), reason))

    def _release(self, request: _Request) -> None:
        self._running = [other for other in self._running if other is not request]
        self._table.release(request.slot)


def _draw(logits_BV: torch.Tensor, requests: list[_Request]) -> tuple[list[int], list[float]]:
    """Draw one token per row; return the tokens and their log-probabilities at its temperature.

    At temperature 0 the token is the most probable one, with its log-probability at temperature 1. Otherwise sampling
    inverts the cumulative distribution at one uniform number from the row's own generator.
    """
    temperatures_B = torch.tensor([request.sampling.temperature for request in requests])
    scales_B = temperatures_B.where(temperatures_B > 0, 1.0)
    logprobs_BV = torch.log_softmax(logits_BV / scales_B[:, None], dim=-1)
    uniform_B = torch.tensor([request.rng.random() for request in requests], dtype=torch.float64)
    scaled_BV = logits_BV.double() / temperatures_B.clamp(min=1e-6).double()[:, None]
    cumulative_BV = torch.softmax(scaled_BV, dim=-1).cumsum(dim=-1)
    below_BV = cumulative_BV < (uniform_B * cumulative_BV[:, -1])[:, None]
    drawn_B = below_BV.sum(dim=-1).clamp(max=logits_BV.shape[1] - 1)
    tokens_B = torch.where(temperatures_B == 0, logits_BV.argmax(dim=-1), drawn_B)
    return tokens_B.tolist(), logprobs_BV.gather(1, tokens_B[:, None]).squeeze(1).tolist()


def end_ids(model: PreTrainedModel) -> list[int]:
    """Return the tokens that end an answer, from the model's generation config."""
    assert model.generation_config is not None
    ids = model.generation_config.eos_token_id
    return [ids] if isinstance(ids, int) else list(ids or [])
