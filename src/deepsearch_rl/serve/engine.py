"""Generation for small models on a CPU: continuous batching over slots, prefixes reused across turns.

``transformers.generate`` computes every prompt from its first token, keeps a batch until its
slowest member is done and copies all keys and values at every step. Agents send the same
conversation again with every turn, groups of rollouts share their question, and all share the
system prompt; so this engine keeps keys and values in slots that outlive a request, and a new one
starts from the slot that has the longest common prefix with it. Prompts are computed in passes of
bounded size between the tokens of running answers, and one that begins as another in progress waits
for what the two share. Requests join and leave between two tokens, and each draws from a random
generator of its own: the same request with the same seed draws the same tokens, whatever else is in
the batch (in 16 bits up to rounding). The model is transformers' own; only its cache and the loop
around it are ours.

Shapes: B requests of a forward pass, V vocabulary.
"""

import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from transformers import PreTrainedModel

from deepsearch_rl.core.errors import EndpointError
from deepsearch_rl.serve.packing import ATTENTION, forward
from deepsearch_rl.serve.rounding import choose_shapes
from deepsearch_rl.serve.slots import SlotTable

_LOG = logging.getLogger(__name__)

# A prompt waits for another one in progress that it shares so many more tokens with: a pass that
# computes fewer takes no less time
WORTH_WAITING_TOKENS = 16


class ContextOverflowError(ValueError):
    """A prompt and its longest answer do not fit the context."""

    def __init__(self, prompt_tokens: int, max_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, which does not "
            f"fit the context of {context_tokens} tokens"
        )


class EngineStoppedError(EndpointError):
    """The engine was closed, so that nothing computes an answer."""


class NonFiniteLogitsError(EndpointError):
    """The model computes logits that are no numbers, so that no token can be drawn."""

    def __init__(self, drawn: int) -> None:
        super().__init__(
            f"the model's logits for token {drawn + 1} of the answer hold NaN or infinity, so no "
            "token can be drawn: its weights are damaged, or its activations overflow. Serve an "
            "earlier checkpoint."
        )


class SamplingParams(NamedTuple):
    """How tokens are drawn: from the plain softmax at ``temperature``; the most probable token at 0."""

    temperature: float
    max_tokens: int
    seed: int


class Generation(NamedTuple):
    """An answer: its tokens (an end token included) and their log-probabilities at its temperature."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


# Called in the engine's thread with each token and its log-probability; True ends the answer with
# that token
Watch: TypeAlias = Callable[[int, float], bool]


@dataclass(slots=True, eq=False)
class _Request:
    prompt: Sequence[int]
    sampling: SamplingParams
    watch: Watch | None
    result: "Future[Generation]"
    rng: np.random.Generator
    slot: int = -1
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Engine:
    """Generates for any number of threads; one thread of its own runs the model.

    A request that fails gets its error and no other does; a fault of the loop itself fails all
    requests at once, and the engine begins anew with empty slots. A caller may cancel a request,
    whose slot is then free.

    Args:
        model: a causal language model that :mod:`deepsearch_rl.serve.fit` lets pass, in float32 or
            bfloat16. The head of one in 16 bits is made float32.
        slots: conversations kept; at most half of them run at once, the rest are there to be
            continued.
        context_tokens: longest prompt plus answer.
    """

    def __init__(self, model: PreTrainedModel, slots: int, context_tokens: int) -> None:
        model.config._attn_implementation = ATTENTION
        # A logit of 16 to 32 has steps of 0.125 in bfloat16, and RL's trainer multiplies in float32.
        # The weight may be the embedding's, too, so the head gets one of its own.
        if model.dtype is not torch.float32:
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().float())
        self._model = model
        self._end_ids = frozenset(end_ids(model))
        self.context_tokens = context_tokens
        self._slots = slots
        self._table = self._new_table()
        self._shapes = choose_shapes(model)
        self._batch = slots // 2
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._entrance = threading.Lock()
        self._open = True
        self._stale = False
        self._backlog: list[_Request] = []
        self._running: list[_Request] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def generate(
        self, prompt: Sequence[int], sampling: SamplingParams, watch: Watch | None = None
    ) -> "Future[Generation]":
        """Queue a prompt of token ids.

        Raises ContextOverflowError if prompt and answer would not fit, EngineStoppedError after
        :meth:`close`.
        """
        if not prompt or len(prompt) + sampling.max_tokens > self.context_tokens:
            raise ContextOverflowError(len(prompt), sampling.max_tokens, self.context_tokens)
        request = _Request(prompt, sampling, watch, Future(), np.random.default_rng(sampling.seed))

        with self._entrance:
            if not self._open:
                raise EngineStoppedError("the engine has stopped; start the server again.")
            self._waiting.put(request)

        return request.result

    def forget(self) -> None:
        """Have later requests use nothing computed so far; call it when the weights have changed."""
        self._stale = True

    def close(self) -> None:
        """Stop the thread; requests that are not finished are cancelled."""
        with self._entrance:
            self._open = False
            self._waiting.put(None)

        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            while True:
                try:
                    if not self._take_requests():
                        break
                    self._advance()
                except Exception as error:  # noqa: BLE001
                    # Every request's caller gets it, and the log shows where it arose
                    _LOG.exception("the engine failed; its requests end with this error")
                    self._begin_anew(error)

        for request in (*self._backlog, *self._running):
            request.result.cancel()

    def _advance(self) -> None:
        """Start requests, compute one pass of their prompts, and draw the next token of all that are past theirs."""
        self._admit()
        self._prefill()

        running = [request for request in self._running if request.token_ids]
        if running:
            # In the order of their places, so that a pass reads the slots as one slice.
            self._table.line_up([request.slot for request in running])
            running.sort(key=lambda request: self._table.places[request.slot])
            self._step(running, [[request.token_ids[-1]] for request in running])

    def _begin_anew(self, error: Exception) -> None:
        """Fail all requests and empty all slots: a fault of the loop leaves none of them in a known state."""
        requests = [*self._backlog, *self._running]
        self._backlog = []
        self._running = []
        self._table = self._new_table()
        for request in requests:
            _settle(request, error)

    def _take_requests(self) -> bool:
        """Move what waits into the backlog, blocking while there is nothing else to do; False at the end."""
        idle = not self._running and not self._backlog
        while idle or not self._waiting.empty():
            request = self._waiting.get()
            if request is None:
                return False
            self._backlog.append(request)
            idle = False

        self._drop_cancelled()
        if self._stale:
            self._stale = False
            self._table.clear()
        return True

    def _drop_cancelled(self) -> None:
        self._backlog = [request for request in self._backlog if not request.result.cancelled()]

        # Over a copy, because releasing a request takes it out of the list.
        for request in list(self._running):
            if request.result.cancelled():
                self._release(request)

    def _admit(self) -> None:
        """Start requests while there is room, but none that another one's prompt in progress spares much work."""
        later: list[_Request] = []
        for request in self._backlog:
            has_room = len(self._running) < self._batch
            if has_room and self._table.awaited(request.prompt) < WORTH_WAITING_TOKENS:
                request.slot = self._table.acquire(request.prompt)
                self._running.append(request)
            else:
                later.append(request)

        self._backlog = later

    def _prefill(self) -> None:
        """Compute one pass of the prompts in progress, the oldest first, and the first token of those that end."""
        room = self._shapes.max_tokens
        requests: list[_Request] = []
        new_tokens: list[list[int]] = []
        for request in self._running:
            if not request.token_ids and room:
                new_tokens.append(self._table.rest(request.slot, room))
                requests.append(request)
                room -= len(new_tokens[-1])

        if requests:
            self._step(requests, new_tokens)

    def _step(self, requests: list[_Request], new_tokens: list[list[int]]) -> None:
        """Compute new tokens of requests, and draw the next of each that has no further ones to compute."""
        try:
            slots = [request.slot for request in requests]
            logits_BV = forward(self._model, self._table, self._shapes, slots, new_tokens)
        except Exception as error:  # noqa: BLE001
            # The requests' callers get it; the engine goes on with the others
            for request in requests:
                self._fail(request, error)
            return

        # Of the prompts in a pass the last one may go on in the next
        if not requests[-1].token_ids and self._table.rest(requests[-1].slot, 1):
            requests = requests[:-1]
            logits_BV = logits_BV[:-1]

        tokens_B, logprobs_B = _draw(logits_BV, requests)

        for request, token, logprob in zip(requests, tokens_B, logprobs_B, strict=True):
            # One NaN or infinity among the logits leaves no token with a finite log-probability.
            if math.isfinite(logprob):
                self._append(request, token, logprob)
            else:
                self._fail(request, NonFiniteLogitsError(len(request.token_ids)))

    def _append(self, request: _Request, token: int, logprob: float) -> None:
        """Add a drawn token to an answer, and end the answer where it is complete."""
        request.token_ids.append(token)
        request.logprobs.append(logprob)
        self._table.append(request.slot, token)

        try:
            stopped = request.watch is not None and request.watch(token, logprob)
        except Exception as error:  # noqa: BLE001
            # The caller's own function failed, and the caller gets its error
            self._fail(request, error)
            return

        stopped = stopped or token in self._end_ids

        if stopped or len(request.token_ids) >= request.sampling.max_tokens:
            self._release(request)
            reason = "stop" if stopped else "length"
            _settle(request, Generation(tuple(request.token_ids), tuple(request.logprobs), reason))

    def _fail(self, request: _Request, error: Exception) -> None:
        """End a request with an error and forget what it computed, which may hold NaN."""
        self._release(request)
        self._table.erase(request.slot)
        _settle(request, error)

    def _release(self, request: _Request) -> None:
        self._running = [other for other in self._running if other is not request]
        self._table.release(request.slot)

    def _new_table(self) -> SlotTable:
        return SlotTable(self._model.config, self._slots, self.context_tokens, self._model.dtype)


def _settle(request: _Request, outcome: Generation | Exception) -> None:
    """Give a request its outcome, unless its caller has cancelled it."""
    if not request.result.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        request.result.set_exception(outcome)
    else:
        request.result.set_result(outcome)


def _draw(logits_BV: torch.Tensor, requests: list[_Request]) -> tuple[list[int], list[float]]:
    """Draw one token per row; return the tokens and their log-probabilities at its temperature.

    At temperature 0 the token is the most probable one, with its log-probability at temperature 1.
    Otherwise sampling inverts the cumulative distribution at one uniform number from the row's own
    generator.
    """
    temperatures_B = torch.tensor([request.sampling.temperature for request in requests])
    scales_B = temperatures_B.where(temperatures_B > 0, 1.0)
    logprobs_BV = torch.log_softmax(logits_BV / scales_B[:, None], dim=-1)

    # A number is drawn at temperature 0, too, so that a generator moves on by one with every token.
    uniform_B = torch.tensor([request.rng.random() for request in requests], dtype=torch.float64)

    # In double precision, because the rounding of a sum over the vocabulary would move its end.
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
