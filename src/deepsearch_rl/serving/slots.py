"""Keys and values of many conversations at once, in fixed slots that outlive a request.

A slot holds the tokens that a conversation has so far and, per layer, their keys and values. Agents send the same
conversation again with every turn, groups of rollouts share their question, and all share the system prompt; a new
request therefore starts from the slot that has the longest common prefix with it and computes only the rest.

Shapes: N slots, B rows of a forward pass, Q new tokens per row, T tokens that can be attended to, H key-value heads,
D head dimension.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PretrainedConfig

EMPTY = -1
BUSY = np.iinfo(np.int64).max
"""When a slot was last used whose request still runs."""


class SlotTable:
    """Tokens, keys and values of N = ``slots`` conversations of a model; layers and heads come from its config."""

    def __init__(self, config: PretrainedConfig, slots: int, context_tokens: int) -> None:
        shape = (slots, config.num_key_value_heads, context_tokens, config.head_dim)
        self.keys = [torch.zeros(shape) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape) for _ in range(config.num_hidden_layers)]
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


class SlotCache:
    """What the model's attention layers see of the slots in one forward pass (the ``update`` of a transformers cache).

    ``slots_B`` is the slot of each row, ``positions_BQ`` says where each row's new tokens go.
    """

    def __init__(self, table: SlotTable, slots_B: torch.Tensor, positions_BQ: torch.Tensor) -> None:
        self._table, self._slots_B, self._positions_BQ = table, slots_B, positions_BQ
        self._visible = int(positions_BQ.max()) + 1

    def update(
        self, keys_BHQD: torch.Tensor, values_BHQD: torch.Tensor, layer: int, _arguments: object = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new tokens' keys and values; return all that can be attended to, each [B, H, T, D]."""
        stored = []
        for tensors, new_BHQD in ((self._table.keys, keys_BHQD), (self._table.values, values_BHQD)):
            tensor_NHTD = tensors[layer]
            tensor_NHTD[self._slots_B[:, None], :, self._positions_BQ] = new_BHQD.transpose(1, 2)
            stored.append(tensor_NHTD[:, :, : self._visible].index_select(0, self._slots_B))
        return stored[0], stored[1]

    def mask(self) -> torch.Tensor:
        """Return which tokens each new token may attend to: those up to itself; [B, 1, Q, T]."""
        return (torch.arange(self._visible)[None, None, :] <= self._positions_BQ[:, :, None])[:, None]
