"""Forward passes whose rounding does not depend on what is computed together.

A library rounds one row of a matrix product in the same way whatever the other rows hold, but not
whatever the sizes of the product are. So all new tokens of a step are packed one behind the other,
the tokens of a pass are padded to one of few sizes, and the attention adds the products with blocks
of values in order. :mod:`deepsearch_rl.serve.rounding` finds sizes that round alike.

Shapes: T tokens of a pass, B rows of its attention, Q tokens of such a row, K keys that can be
attended to, H key-value heads (G query heads share one), D head dimension, E hidden size, V
vocabulary.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface, PreTrainedModel

from deepsearch_rl.serve.slots import SlotTable, round_up

ATTENTION = "packed"


class Shapes(NamedTuple):
    """Sizes of the matrix products in a forward pass."""

    # Tokens of a pass are padded to a multiple of this
    tokens: int
    # More tokens take several passes
    max_tokens: int
    # Query vectors that meet the same keys in an attention row are padded to a multiple of this
    queries: int
    # In float32, a conversation with more query vectors takes several attention rows
    max_queries: int
    # Keys of an attention row are padded to a multiple of this
    keys: int
    # Keys and values are multiplied in blocks of this many tokens
    block: int


class Rows(NamedTuple):
    """Attention rows that one call computes; their tokens follow each other in the pass."""

    # Where the slots of its rows lie: a slice copies nothing
    places_B: slice | torch.Tensor
    # Of the pass; a row is padded with its last token, whose outputs are not used
    tokens_BQ: torch.Tensor
    # Keys that are read
    visible: int
    # 0 or -inf, [B, 1, G x Q, K]
    mask: torch.Tensor
    # Where the output of each of its tokens stands, the padding of the pass counted
    rows_T: torch.Tensor
    columns_T: torch.Tensor


class Pass:
    """One forward pass: its T packed tokens, and what its attention sees of the slots.

    Tokens of all conversations lie one behind the other. The attention has rows of up to Q tokens
    of one conversation. In float32 one call computes all B rows, so that sizes are few. In 16 bits
    nothing rounds alike anyway: a prompt is one row and has a call of its own, which copies no keys
    and is not padded, and rows of one token share a call. A transformers model takes this object as
    its cache.
    """

    def __init__(
        self,
        table: SlotTable,
        shapes: Shapes,
        slots_T: np.ndarray,
        positions_T: np.ndarray,
    ) -> None:
        self._table = table
        self._shapes = shapes
        # The tokens that are computed, as indices of ``slots_T``: the last is repeated
        self.padded_T = padded(len(slots_T), shapes.tokens)
        self._places_T = torch.from_numpy(table.places[slots_T[self.padded_T]])
        self._positions_T = torch.from_numpy(positions_T[self.padded_T])

        if table.dtype is torch.float32:
            spans = [_attention_rows(slots_T, shapes.max_queries // table.group)]
        else:
            spans = _calls(_attention_rows(slots_T, shapes.max_tokens))
        self._calls = [self._rows(span, slots_T, positions_T) for span in spans]

    def _rows(self, spans_B2: np.ndarray, slots_T: np.ndarray, positions_T: np.ndarray) -> Rows:
        """Lay out the rows of one call; ``spans_B2`` has first and end of each."""
        firsts_B = spans_B2[:, 0]
        counts_B = spans_B2[:, 1] - firsts_B
        group = self._table.group

        multiple = self._shapes.queries // math.gcd(self._shapes.queries, group)
        width = round_up(int(counts_B.max()), multiple)
        tokens_BQ = firsts_B[:, None] + np.minimum(np.arange(width), counts_B[:, None] - 1)

        # A token sees itself and what stands before it, the same for all G heads that share keys.
        positions_BQ = positions_T[tokens_BQ]
        visible = round_up(int(positions_BQ.max()) + 1, self._shapes.keys)
        is_later_BQK = np.arange(visible) > positions_BQ[:, :, None]
        hidden_BQK = torch.from_numpy(is_later_BQK)
        mask_BQK = torch.zeros(hidden_BQK.shape).masked_fill_(hidden_BQK, -torch.inf)

        # The last call's rows take the padding of the pass.
        end = spans_B2[-1, 1]
        padding = len(self.padded_T) - end if end == len(slots_T) else 0
        rows_T = np.repeat(np.arange(len(spans_B2)), counts_B)
        columns_T = np.concatenate(list(map(np.arange, counts_B)))
        return Rows(
            places_B=_places(self._table.places[slots_T[firsts_B]]),
            tokens_BQ=torch.from_numpy(tokens_BQ),
            visible=visible,
            mask=mask_BQK.repeat(1, group, 1)[:, None],
            rows_T=torch.from_numpy(np.pad(rows_T, (0, padding), mode="edge")),
            columns_T=torch.from_numpy(np.pad(columns_T, (0, padding), mode="edge")),
        )

    def update(
        self,
        keys_1HTD: torch.Tensor,
        values_1HTD: torch.Tensor,
        layer: int,
        _arguments: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the tokens' keys and values; return those of all slots, [N, H, D, T] and [N, H, T, D]."""
        keys_NHDT = self._table.keys[layer]
        keys_NHDT[self._places_T, :, :, self._positions_T] = keys_1HTD[0].transpose(0, 1)
        values_NHTD = self._table.values[layer]
        values_NHTD[self._places_T, :, self._positions_T] = values_1HTD[0].transpose(0, 1)
        return keys_NHDT, values_NHTD

    def attend(
        self,
        query: torch.Tensor,
        keys_NHDT: torch.Tensor,
        values_NHTD: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Return the attention's output for a query [1, H x G, T, D], as [1, T, H x G, D].

        The query heads that share a key-value head are G x Q rows of one product with its keys.
        """
        query_HGTD = query[0].unflatten(0, (keys_NHDT.shape[1], -1))
        outputs: list[torch.Tensor] = []
        for rows in self._calls:
            keys_BHDK = keys_NHDT[rows.places_B, :, :, : rows.visible]
            values_BHKD = values_NHTD[rows.places_B, :, : rows.visible]
            query_HGBQD = query_HGTD[:, :, rows.tokens_BQ]
            vectors = query_HGBQD.permute(2, 0, 1, 3, 4).flatten(2, 3)  # [B, H, G x Q, D]

            if query.dtype is torch.float32:
                output = self._attend_in_blocks(vectors * scale, keys_BHDK, values_BHKD, rows.mask)
            else:
                # Scores and softmax are float32 in torch's own function, and nowhere rounded to 16 bits
                output = torch.nn.functional.scaled_dot_product_attention(
                    vectors, keys_BHDK.mT, values_BHKD, rows.mask, scale=scale
                )

            output_BHGQD = output.unflatten(2, (-1, rows.tokens_BQ.shape[1]))
            outputs.append(output_BHGQD[rows.rows_T, :, :, rows.columns_T])

        return torch.cat(outputs).flatten(1, 2)[None]

    def _attend_in_blocks(
        self,
        vectors: torch.Tensor,
        keys_BHDK: torch.Tensor,
        values_BHKD: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Multiply keys and values in blocks of tokens, and add the values' products in order.

        One product over all keys would be added up in an order that depends on how many there are.
        """
        scores = (vectors @ keys_BHDK).add_(mask)
        weights = torch.softmax(scores, dim=-1)  # [B, H, G x Q, K]
        weight_blocks = weights.split(self._shapes.block, -1)
        value_blocks = values_BHKD.split(self._shapes.block, 2)
        return functools.reduce(torch.add, map(torch.matmul, weight_blocks, value_blocks))


def _attention_rows(slots_T: np.ndarray, widest: int) -> np.ndarray:
    """Cut packed tokens into rows of at most ``widest`` tokens of one slot.

    Return first and end of each, [B, 2].
    """
    starts = np.flatnonzero(np.diff(slots_T, prepend=-1)).tolist()
    ends = [*starts[1:], len(slots_T)]

    rows: list[tuple[int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        for first in range(start, end, widest):
            rows.append((first, min(first + widest, end)))

    return np.array(rows)


def _calls(rows_B2: np.ndarray) -> list[np.ndarray]:
    """Cut rows into those of one call: a longer row alone, those of one token that follow each other together."""
    is_single_B = np.diff(rows_B2)[:, 0] == 1
    starts_call_B = ~(is_single_B & np.roll(is_single_B, 1))
    return np.split(rows_B2, np.flatnonzero(starts_call_B[1:]) + 1)


def _places(places_B: np.ndarray) -> slice | torch.Tensor:
    """Return an index for places: a slice, which copies nothing, where they follow each other."""
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
    model: PreTrainedModel,
    table: SlotTable,
    shapes: Shapes,
    slots: Sequence[int],
    new_tokens: Sequence[Sequence[int]],
) -> torch.Tensor:
    """Compute the new tokens of each slot and return the logits after the last one, [B, V]."""
    counts_B = np.array(list(map(len, new_tokens)))
    ends_B = np.cumsum(counts_B)
    begins_B = ends_B - counts_B

    # The new tokens of a slot follow those that are computed already.
    slots_T = np.repeat(np.asarray(slots), counts_B)
    positions_T = np.arange(ends_B[-1]) + np.repeat(table.lengths[slots] - begins_B, counts_B)
    tokens_T = np.concatenate(list(map(np.asarray, new_tokens)))

    # A pass reads the keys of all before it, so the prompt of one slot may take several.
    hidden: list[torch.Tensor] = []
    for first in range(0, len(tokens_T), shapes.max_tokens):
        part = slice(first, first + shapes.max_tokens)
        layout = Pass(table, shapes, slots_T[part], positions_T[part])
        hidden.append(_hidden_states(model, layout, tokens_T[part], positions_T[part]))

    table.lengths[slots] += counts_B
    last_BE = torch.cat(hidden)[ends_B - 1]
    return _logits(model, shapes, last_BE)


def _hidden_states(
    model: PreTrainedModel,
    layout: Pass,
    tokens_T: np.ndarray,
    positions_T: np.ndarray,
) -> torch.Tensor:
    """Run a pass; return the last layer's output of its tokens, [T, E], without the padding."""
    hidden_1TE = model.model(
        input_ids=torch.from_numpy(tokens_T[layout.padded_T])[None],
        attention_mask={"full_attention": None},
        position_ids=torch.from_numpy(positions_T[layout.padded_T])[None],
        cache_position=torch.zeros(1),
        past_key_values=layout,
        use_cache=True,
        layout=layout,
    ).last_hidden_state
    return hidden_1TE[0, : len(tokens_T)]


def _logits(model: PreTrainedModel, shapes: Shapes, last_BE: torch.Tensor) -> torch.Tensor:
    """Return the logits of hidden states, [B, V], by products of the same few sizes."""
    parts: list[torch.Tensor] = []
    for part_BE in last_BE.split(shapes.max_tokens):
        rows = padded(len(part_BE), shapes.tokens)
        hidden = part_BE[rows].to(model.lm_head.weight.dtype)
        parts.append(model.lm_head(hidden)[: len(part_BE)])

    return torch.cat(parts)


AttentionInterface.register(ATTENTION, _attention)
