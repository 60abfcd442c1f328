"""Keys and values of many conversations, and what a forward pass over some of their tokens sees of them.

Shapes: N slots, P packed tokens of a pass, B rows of its attention, Q tokens of a row, T tokens that can be attended
to, H key-value heads, G query heads per key-value head, D head dimension.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PretrainedConfig

ALLOCATED_TOKENS = 128
EMPTY = -1
BUSY = np.iinfo(np.int64).max  # when a slot was last used whose request still runs


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


class SlotTable:
    """Tokens, keys and values of N = ``slots`` conversations of a model; layers and heads come from its config."""

    def __init__(self, config: PretrainedConfig, slots: int, context_tokens: int) -> None:
        self.group = config.num_attention_heads // config.num_key_value_heads
        """Query heads per key-value head, G."""
        shape = (slots, config.num_key_value_heads, round_up(context_tokens, ALLOCATED_TOKENS), config.head_dim)
        self.keys = [torch.zeros(shape) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape) for _ in range(config.num_hidden_layers)]
        self._scratch = [torch.empty(0), torch.empty(0)]
        self._tokens = np.full((slots, context_tokens), EMPTY, dtype=np.int64)
        self.lengths = np.zeros(slots, dtype=np.int64)
        """How many tokens of each slot are computed."""
        self._last_used = np.zeros(slots, dtype=np.int64)
        self._clock = itertools.count(1)

    def acquire(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Take a slot for a prompt and return it with the number of its tokens that are computed already.

        The last token of a prompt is never counted as computed: its output is what the first answer token is drawn
        from. A finished conversation that the prompt continues is taken over in place; any other prefix is copied into
        the slot that was unused for the longest time.
        """
        prompt = np.asarray(tokens, dtype=np.int64)
        equal = self._tokens[:, : len(prompt)] == prompt
        prefixes = np.where(equal.all(axis=1), len(prompt), equal.argmin(axis=1))
        common = np.minimum(prefixes, self.lengths)
        source = int(common.argmax())
        shared = min(int(common[source]), len(prompt) - 1)
        continues = self._last_used[source] != BUSY and shared > 0 and shared >= self.lengths[source] - 1
        slot = source if continues else int(self._last_used.argmin())
        if slot != source and shared > 0:
            for tensor in (*self.keys, *self.values):
                tensor[slot, :, :shared] = tensor[source, :, :shared]
        self._tokens[slot] = EMPTY
        self._tokens[slot, : len(prompt)] = prompt
        self.lengths[slot] = shared
        self._last_used[slot] = BUSY
        return slot, shared

    def scratch(self, number: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return memory that is used again: touching new pages costs more than the copy that goes there."""
        size = math.prod(shape)
        if self._scratch[number].numel() < size:
            self._scratch[number] = torch.empty(size)
        return self._scratch[number][:size].view(shape)

    def append(self, slot: int, token: int) -> None:
        """Add a drawn token, which is computed by the next forward pass."""
        self._tokens[slot, self.lengths[slot]] = token

    def release(self, slot: int) -> None:
        """End a request; its tokens stay until the slot is needed."""
        self._last_used[slot] = next(self._clock)

    def clear(self) -> None:
        """Forget every conversation: the weights have changed."""
        self._tokens[:] = EMPTY
        self.lengths[:] = 0


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
        self._mask = mask_BQT.repeat(1, table.group, 1)[:, None]
        self._table, self._visible, self._block = table, visible, shapes.keys
        self._slots_B, self._tokens_BQ = torch.from_numpy(slots_P[firsts_B]), torch.from_numpy(tokens_BQ)
        self.padded_P = padded(len(slots_P), shapes.tokens)
        """The tokens that are computed, as indices of ``slots_P``: the last is repeated."""
        columns_P = np.arange(len(rows_P)) - firsts_B[rows_P]
        self._slots_P, self._positions_P, self._rows_P, self._columns_P = (
            torch.from_numpy(numbers[self.padded_P]) for numbers in (slots_P, positions_P, rows_P, columns_P)
        )

    def update(
        self, keys_1HPD: torch.Tensor, values_1HPD: torch.Tensor, layer: int, _arguments: object = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the tokens' keys and values; return all that each row can attend to, each [B, H, T, D]."""
        stored = []
        for number, (tensors, new_1HPD) in enumerate(((self._table.keys, keys_1HPD), (self._table.values, values_1HPD))):
            tensor_NHTD = tensors[layer]
            tensor_NHTD[self._slots_P, :, self._positions_P] = new_1HPD[0].transpose(0, 1)
            visible_NHTD = tensor_NHTD[:, :, : self._visible]
            out = self._table.scratch(number, (len(self._slots_B), *visible_NHTD.shape[1:]))
            stored.append(torch.index_select(visible_NHTD, 0, self._slots_B, out=out))
        return stored[0], stored[1]

    def attend(
        self, query: torch.Tensor, keys_BHTD: torch.Tensor, values_BHTD: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention's output for a query [1, H x G, P, D], as [1, P, H x G, D].

        The query heads that share a key-value head are R = G x Q rows of one product with its keys. Keys and values
        are multiplied in blocks of K tokens, and the blocks' outputs are added in order.
        """
        blocks = (-1, self._block)
        query_HGBQD = (query[0] * scale).unflatten(0, (keys_BHTD.shape[1], -1))[:, :, self._tokens_BQ]
        query_BH1RD = query_HGBQD.permute(2, 0, 1, 3, 4).flatten(2, 3)[:, :, None]
        scores_BHNRK = query_BH1RD @ keys_BHTD.unflatten(2, blocks).transpose(-1, -2)
        scores_BHRT = (scores_BHNRK.transpose(2, 3) + self._mask.unflatten(-1, blocks)).flatten(-2)
        weights_BHNRK = torch.softmax(scores_BHRT, dim=-1).unflatten(-1, blocks).transpose(2, 3)
        outputs_BHNRD = weights_BHNRK @ values_BHTD.unflatten(2, blocks)
        output_BHRD = functools.reduce(torch.add, outputs_BHNRD.unbind(2))
        output_BHGQD = output_BHRD.unflatten(2, (-1, self._tokens_BQ.shape[1]))
        return output_BHGQD[self._rows_P, :, :, self._columns_P].flatten(1, 2)[None]


def _attention_rows(slots_P: np.ndarray, widest: int) -> np.ndarray:
    """Cut packed tokens into rows of at most ``widest`` tokens of one slot; return first and end of each, [B, 2]."""
    starts = np.flatnonzero(np.diff(slots_P, prepend=-1)).tolist()
    spans = zip(starts, [*starts[1:], len(slots_P)], strict=True)
    return np.array([(first, min(first + widest, end)) for start, end in spans for first in range(start, end, widest)])


def padded(count: int, multiple: int) -> np.ndarray:
    """Return the indices 0 to count - 1, the last one repeated up to a multiple."""
    return np.minimum(np.arange(round_up(count, multiple)), count - 1)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below ``number``."""
    return -(-number // multiple) * multiple
