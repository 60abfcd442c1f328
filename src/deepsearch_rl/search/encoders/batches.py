"""How the texts of a call become forward passes on a CPU's cores: batches of like lengths, side by side.

A forward pass has one thread, and as many passes run at once as there are cores. Threads that share
one pass wait for each other at every layer: where something else wants a core, a query that takes 20
ms on one thread takes 200 on two (docs/measurements.md).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from deepsearch_rl.search.encoders.encoder import Vectors

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# Fewer tokens than these are not divided among threads: a pass of a few queries costs little more
# than one of a single query.
MIN_TOKENS = 64

# Part of a batch that padding may take where tokens are dealt out
PADDING = 0.2


def cheapest_batches(
    lengths_N: Sequence[int], batch_tokens: int, pass_tokens: int
) -> list[list[int]]:
    """Return the rows of N texts in batches whose passes cost least together, the longest texts first.

    ``lengths_N`` are their tokens. A batch is padded to its longest text and has at most
    ``batch_tokens`` tokens then, or one text. It costs its tokens, padding counted, and
    ``pass_tokens``: fewer passes have more padding. Only texts of neighbouring lengths share a batch,
    and all texts of one length do where the budget holds them.
    """
    # Queries often come alone
    if len(lengths_N) == 1:
        return [[0]]

    order_N = np.argsort(-np.asarray(lengths_N), kind="stable")
    sorted_N = np.maximum(np.asarray(lengths_N)[order_N], 1)

    # Where each of L lengths begins, and last the number of texts
    starts = np.flatnonzero(np.diff(sorted_N, prepend=0, append=0))
    longest_L = sorted_N[starts[:-1]]
    texts_of_pass_L = np.maximum(batch_tokens // longest_L, 1)

    # costs[end]: the least cost of the texts before starts[end]; the last group of lengths is from
    # begins[end] on.
    lengths = len(longest_L)
    costs = np.zeros(lengths + 1)
    begins = np.zeros(lengths + 1, dtype=int)
    for end in range(1, lengths + 1):
        texts = starts[end] - starts[:end]
        passes = -(-texts // texts_of_pass_L[:end])
        costs_of_begins = costs[:end] + texts * longest_L[:end] + passes * pass_tokens
        begins[end] = costs_of_begins.argmin()
        costs[end] = costs_of_begins[begins[end]]

    batches: list[list[int]] = []
    end = lengths
    while end > 0:
        begin = begins[end]
        rows = order_N[starts[begin] : starts[end]]
        passes = math.ceil(len(rows) / texts_of_pass_L[begin])
        batches += [part.tolist() for part in reversed(np.array_split(rows, passes))]
        end = begin

    batches.reverse()
    return batches


def shared_budget(tokens: int, batch_tokens: int, threads: int) -> int:
    """Return the most tokens of a batch with which all threads have about as much to do."""
    passes = threads * math.ceil(tokens / (threads * batch_tokens))
    share = math.ceil((1 + PADDING) * tokens / max(1, passes))
    return min(batch_tokens, max(MIN_TOKENS, share))


class ParallelBatches:
    """Runs forward passes of at most ``batch_tokens`` tokens on ``threads`` threads.

    ``pass_tokens`` is what a pass costs beside its tokens.
    """

    def __init__(self, batch_tokens: int, pass_tokens: int, threads: int) -> None:
        self._batch_tokens = batch_tokens
        self._threads = threads
        self._pass_tokens = pass_tokens
        self._pool = ThreadPoolExecutor(threads, "encode") if threads > 1 else None

    def embed(
        self, lengths_N: Sequence[int], dimension: int, embed: Callable[[list[int]], Vectors]
    ) -> Vectors:
        """Return embeddings_ND of N texts; ``embed`` gives those of some rows, and may run in several threads.

        Equal lengths and threads give equal batches. The largest one comes first: one that a GPU
        cannot hold fails at once, and no thread begins it when the others are done.
        """
        budget = shared_budget(sum(lengths_N), self._batch_tokens, self._threads)
        batches = cheapest_batches(lengths_N, budget, self._pass_tokens)
        batches.sort(key=lambda batch: -len(batch) * lengths_N[batch[0]])
        embeddings_ND = np.empty((len(lengths_N), dimension), dtype=np.float32)
        run = self._pool.map if self._pool is not None and len(batches) > 1 else map
        for batch, embeddings_BD in zip(batches, run(embed, batches), strict=True):
            embeddings_ND[batch] = embeddings_BD

        return embeddings_ND


def one_ahead(compute: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
    """Yield ``compute`` of each item in order; the next one is computed while the caller uses this one."""
    if len(items) == 1:
        # A query alone would pay for a thread
        yield compute(items[0])
        return

    with ThreadPoolExecutor(1, "ahead") as thread:
        started = thread.submit(compute, items[0])
        for following in items[1:]:
            result = started.result()
            started = thread.submit(compute, following)
            yield result
        yield started.result()
