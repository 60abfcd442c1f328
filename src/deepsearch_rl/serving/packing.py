"""Forward passes whose rounding does not depend on what is computed together.

A library rounds one row of a matrix product in the same way whatever the other rows hold, but not whatever the sizes of
the product are. So all new tokens of a step are packed one behind the other, the tokens of a pass are padded to one of
few sizes, and the attention adds the products with blocks of values in order.
:mod:`deepsearch_rl.serving.rounding` finds sizes that round alike.

Shapes: N slots, P packed tokens of a pass, B rows of its attention, Q tokens of such a row, R = G x Q query vectors
that meet the same keys (G query heads share a key-value head), T tokens that can be attended to, in blocks of K, H
key-value heads, D head dimension, E hidden size, V vocabulary.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface, PreTrainedModel

from deepsearch_rl.serving.slots import SlotTable, round_up

ATTENTION = "packed"


class Shapes(NamedTuple):
    """Sizes of the matrix products in a forward pass."""

    tokens: int
    """Tokens of a pass are padded to a multiple of this."""
    max_tokens: int
    """More tokens take several passes."""
    queries: int
    """Query vectors that meet one matrix of keys in an attention row are padded to a multiple of this."""
    max_queries: int
    """A conversation with more query vectors takes several attention rows."""
    keys: int
    """Keys of an attention row are padded to a multiple of this."""
    block: int
    """Keys and values are multiplied in blocks of this many tokens."""


class Pass:
    """One forward pass: its P packed tokens, and what its attention sees of the slots.

    Tokens of all conversations lie one behind the other. The attention has B rows of up to Q tokens of one
    conversation. A transformers model takes this object as its cache.
    """

    def __init__(self, table: SlotTable, shapes: Shapes, slots_P: np.ndarray, positions_P: np.ndarray) -> None:
        rows = _attention_rows(slots_P, shapes.max_queries // table.group)
        firsts_B, counts_B = rows[:, 0], rows[:, 1] - rows[:, 0]
        rows_P = np.repeat(np.arange(len(rows)), counts_B)
        width = round_up(int(counts_B.max()), shapes.queries // math.gcd(shapes.queries, table.group))
        visible = round_up(int(positions_P.max()) + 1, shapes.keys)
        # A row is padded with its last token; its outputs are not used.
        tokens_BQ = firsts_B[:, None] + np.minimum(np.arange(width), counts_B[:, None] - 1)
        hidden_BQT = torch.from_numpy(np.arange(visible) > positions_P[tokens_BQ][:, :, None])
        mask_BQT = torch.zeros(hidden_BQT.shape).masked_fill_(hidden_BQT, -torch.inf)
        self._mask_B1RT = mask_BQT.repeat(1, table.group, 1)[:, None]
        self._table, self._visible, self._block = table, visible, shapes.block
        self._places_B, self._tokens_BQ = _places(table.places[slots_P[firsts_B]]), torch.from_numpy(tokens_BQ)
        self.padded_P = padded(len(slots_P), shapes.tokens)
        """The tokens that are computed, as indices of ``slots_P``: the last is repeated."""
        columns_P = np.arange(len(rows_P)) - firsts_B[rows_P]
        self._places_P, self._positions_P, self._rows_P, self._columns_P = (
            torch.from_numpy(numbers[self.padded_P])
            for numbers in (table.places[slots_P], positions_P, rows_P, columns_P)
        )

    def update(
        self, keys_1HPD: torch.Tensor, values_1HPD: torch.Tensor, layer: int, _arguments: object = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the tokens' keys and values; return all that each row can attend to, each [B, H, T, D]."""
        stored = []
        for tensors, new_1HPD in ((self._table.keys, keys_1HPD), (self._table.values, values_1HPD)):
            tensor_NHTD = tensors[layer]
            tensor_NHTD[self._places_P, :, self._positions_P] = new_1HPD[0].transpose(0, 1)
            stored.append(tensor_NHTD[self._places_B, :, : self._visible])
        return stored[0], stored[1]

    def attend(
        self, query: torch.Tensor, keys_BHTD: torch.Tensor, values_BHTD: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention's output for a query [1, H x G, P, D], as [1, P, H x G, D].

        The query heads that share a key-value head are R = G x Q rows of one product with its keys. Keys and values are
        multiplied in blocks of K tokens, and the values' products are added in order.
        """
        heads = keys_BHTD.shape[1]
        query_HGBQD = (query[0] * scale).unflatten(0, (heads, -1))[:, :, self._tokens_BQ]
        query_BHRD = query_HGBQD.permute(2, 0, 1, 3, 4).flatten(2, 3)
        scores_BHRT = torch.cat(
            [query_BHRD @ keys_BHKD.transpose(-1, -2) for keys_BHKD in keys_BHTD.split(self._block, 2)], -1
        ).add_(self._mask_B1RT)
        weights_BHRT = torch.softmax(scores_BHRT, dim=-1)
        blocks = zip(weights_BHRT.split(self._block, -1), values_BHTD.split(self._block, 2), strict=True)
        output_BHRD = functools.reduce(torch.add, (weights_BHRK @ values_BHKD for weights_BHRK, values_BHKD in blocks))
        output_BHGQD = output_BHRD.unflatten(2, (-1, self._tokens_BQ.shape[1]))
        return output_BHGQD[self._rows_P, :, :, self._columns_P].flatten(1, 2)[None]


def _attention_rows(slots_P: np.ndarray, widest: int) -> np.ndarray:
    """Cut packed tokens into rows of at most ``widest`` tokens of one slot; return first and end of each, [B, 2]."""
    starts = np.flatnonzero(np.diff(slots_P, prepend=-1)).tolist()
    spans = zip(starts, [*starts[1:], len(slots_P)], strict=True)
    return np.array([(first, min(first + widest, end)) for start, end in spans for first in range(start, end, widest)])


def _places(places_B: np.ndarray) -> slice | torch.Tensor:
    """Return an index for places: a slice, which copies nothing, where each is the one after the one before."""
    if (np.diff(places_B) == 1).all():
        return slice(int(places_B[0]), int(places_B[-1]) + 1)
    return torch.from_numpy(places_B)


def padded(count: int, multiple: int) -> np.ndarray:
    """Return the indices 0 to count - 1, the last one repeated up to a multiple."""
    return np.minimum(np.arange(round_up(count, multiple)), count - 1)


def _attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    scaling: float,
    layout: Pass,
    **_unused: object,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a pass, as transformers asks for it."""
    return layout.attend(query, key, value, scaling), None


def forward(
    model: PreTrainedModel, table: SlotTable, shapes: Shapes, slots: Sequence[int], new_tokens: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Compute the new tokens of each slot and return the logits after the last one, [B, V]."""
    counts_B = np.array([len(tokens) for tokens in new_tokens])
    ends_B = np.cumsum(counts_B)
    slots_P = np.repeat(np.asarray(slots), counts_B)
    positions_P = np.arange(ends_B[-1]) + np.repeat(table.lengths[slots] - (ends_B - counts_B), counts_B)
    tokens_P = np.concatenate([np.asarray(tokens) for tokens in new_tokens])
    hidden = []
    for first in range(0, len(tokens_P), shapes.max_tokens):
        part = slice(first, first + shapes.max_tokens)
        layout = Pass(table, shapes, slots_P[part], positions_P[part])
        hidden_1PE = model.model(
            input_ids=torch.from_numpy(tokens_P[part][layout.padded_P])[None],
            attention_mask={"full_attention": None},
            position_ids=torch.from_numpy(positions_P[part][layout.padded_P])[None],
            cache_position=torch.zeros(1),
            past_key_values=layout,
            use_cache=True,
            layout=layout,
        ).last_hidden_state
        hidden.append(hidden_1PE[0, : len(tokens_P[part])])
    table.lengths[slots] += counts_B
    last_BE = torch.cat(hidden)[ends_B - 1]
    parts = last_BE.split(shapes.max_tokens)
    return torch.cat([model.lm_head(part[padded(len(part), shapes.tokens)])[: len(part)] for part in parts]).float()


AttentionInterface.register(ATTENTION, _attention)
