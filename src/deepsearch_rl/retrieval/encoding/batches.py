"""How the texts of a call become forward passes on a CPU's cores: batches of one length, side by side.

A forward pass has one thread, and as many passes run at once as there are cores. Threads that share
one pass wait for each other at every layer: where something else wants a core, a query that takes 20
ms on one thread takes 200 on two (docs/measurements.md).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from deepsearch_rl.retrieval.encoding.encoder import Vectors

# Fewer tokens than these are not divided: a pass of a few queries costs little more than one of a
# single query.
MIN_TOKENS = 64

# Part of a batch that padding may take where tokens are dealt out
PADDING = 0.2


def batches_by_length(lengths_N: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the rows of N texts in batches, the longest texts first.

    ``lengths_N`` are their tokens. A batch padded to its longest text has at most ``batch_tokens``
    tokens, or one text. The greatest batch comes first, so that one that a GPU cannot hold fails at
    once.
    """
    order_N = sorted(range(len(lengths_N)), key=lambda row: -lengths_N[row])
    start = 0
    while start < len(order_N):
        longest = max(1, lengths_N[order_N[start]])
        end = start + max(1, batch_tokens // longest)
        yield order_N[start:end]
        start = end


def shared_budget(tokens: int, batch_tokens: int, threads: int) -> int:
    """Return the most tokens of a batch with which all threads have about as much to do."""
    passes = threads * math.ceil(tokens / (threads * batch_tokens))
    share = math.ceil((1 + PADDING) * tokens / max(1, passes))
    return min(batch_tokens, max(MIN_TOKENS, share))


class ParallelBatches:
    """Runs forward passes of at most ``batch_tokens`` tokens on ``threads`` threads."""

    def __init__(self, batch_tokens: int, threads: int) -> None:
        self._batch_tokens = batch_tokens
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "encode") if threads > 1 else None

    def embed(
        self, lengths_N: Sequence[int], dimension: int, embed: Callable[[list[int]], Vectors]
    ) -> Vectors:
        """Return embeddings_ND of N texts; ``embed`` gives those of some rows, and may run in several threads.

        Equal lengths and threads give equal batches.
        """
        budget = shared_budget(sum(lengths_N), self._batch_tokens, self._threads)
        batches = list(batches_by_length(lengths_N, budget))
        embeddings_ND = np.empty((len(lengths_N), dimension), dtype=np.float32)
        run = self._pool.map if self._pool is not None and len(batches) > 1 else map
        for batch, embeddings_BD in zip(batches, run(embed, batches), strict=True):
            embeddings_ND[batch] = embeddings_BD

        return embeddings_ND
