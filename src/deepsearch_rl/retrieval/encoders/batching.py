"""Batches by token budget: what a forward pass costs is rows times the longest row, padding included.

Texts are sorted by length, so that a batch holds texts of nearly one length, and a batch takes as many rows as fit a
budget of tokens, so that short texts go many at a time and long ones cannot exhaust the memory. The longest come first:
a budget that is too large for a GPU fails in the first second, not in the last hour.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Embed = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]
"""Embeddings_BD of padded token ids_BT and their mask_BT."""


def token_batches(lengths_N: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Positions 0 to N - 1 in batches of at most ``batch_tokens`` tokens, padding counted, longest first.

    A row that is longer than the budget stands alone.
    """
    batch: list[int] = []
    for position in sorted(range(len(lengths_N)), key=lambda position: (-lengths_N[position], position)):
        if batch and (len(batch) + 1) * lengths_N[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


def embed_by_length(
    tokens: Sequence[Sequence[int]], batch_tokens: int, pad_id: int, embed: Embed
) -> NDArray[np.float32]:
    """Embeddings_ND of N >= 1 tokenised texts, in their order."""
    batches = token_batches([len(row) for row in tokens], batch_tokens)
    parts = [(batch, embed(*_padded([tokens[position] for position in batch], pad_id))) for batch in batches]
    embeddings_ND = np.empty((len(tokens), parts[0][1].shape[1]), dtype=np.float32)
    for batch, embeddings_BD in parts:
        embeddings_ND[batch] = embeddings_BD
    return embeddings_ND


def _padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids_BT and mask_BT, padded on the right."""
    longest = max(map(len, rows))
    ids_BT = np.full((len(rows), longest), pad_id, dtype=np.int64)
    mask_BT = np.zeros((len(rows), longest), dtype=np.int64)
    for row, ids in enumerate(rows):
        ids_BT[row, : len(ids)] = ids
        mask_BT[row, : len(ids)] = 1
    return ids_BT, mask_BT
