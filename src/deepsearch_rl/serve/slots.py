"""Tokens, keys and values of many conversations: what outlives a request of the engine.

Shapes: N slots, H key-value heads, T tokens, D head dimension.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PretrainedConfig

EMPTY = -1

# When a slot was last used whose request still runs: later than every other, so that it is never
# the one that was unused for the longest time
BUSY = np.iinfo(np.int64).max

# A slot holds a multiple of this, the multiple of keys that an attention row is padded to
ALLOCATED_TOKENS = 64


class SlotTable:
    """Tokens, keys and values of N = ``slots`` conversations of a model; layers and heads come from its config.

    Keys and values have the model's ``dtype``.
    """

    def __init__(
        self, config: PretrainedConfig, slots: int, context_tokens: int, dtype: torch.dtype
    ) -> None:
        # Query heads per key-value head, G
        self.group = config.num_attention_heads // config.num_key_value_heads
        heads = config.num_key_value_heads
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.dtype = dtype
        tokens = round_up(context_tokens, ALLOCATED_TOKENS)
        layers = range(config.num_hidden_layers)
        # [N, H, D, T]: as the right side of a product with a few query vectors, keys that lie so are
        # read fastest. The attention of 16 bits reads them as it reads values.
        shape = (slots, heads, tokens, width)
        if dtype is torch.float32:
            self.keys = [torch.zeros(slots, heads, width, tokens) for _ in layers]
        else:
            self.keys = [torch.zeros(shape, dtype=dtype).transpose(2, 3) for _ in layers]
        # [N, H, T, D]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in layers]
        # Where in ``keys`` and ``values`` each slot lies
        self.places = np.arange(slots)
        self._tokens = np.full((slots, context_tokens), EMPTY, dtype=np.int64)
        # How many tokens of each slot are computed
        self.lengths = np.zeros(slots, dtype=np.int64)
        self._last_used = np.zeros(slots, dtype=np.int64)
        self._clock = itertools.count(1)

    def acquire(self, tokens: Sequence[int]) -> int:
        """Take a slot for a prompt; what it has in common with another text counts as computed.

        The last token of a prompt is never counted as computed: its output is what the first answer
        token is drawn from. A finished conversation that the prompt continues is taken over in
        place; any other prefix is copied into the slot that was unused for the longest time.
        """
        prompt = np.asarray(tokens, dtype=np.int64)
        common = np.minimum(self._prefixes(prompt), self.lengths)
        source = int(common.argmax())
        shared = min(int(common[source]), len(prompt) - 1)

        # One token less is as good: the last one of a prompt never counts as computed.
        is_finished = self._last_used[source] != BUSY
        continues = is_finished and shared > 0 and shared >= self.lengths[source] - 1
        slot = source if continues else int(self._last_used.argmin())
        if slot != source and shared > 0:
            for tensor_NHT in self._by_token():
                tensor_NHT[self.places[slot], :, :shared] = tensor_NHT[
                    self.places[source], :, :shared
                ]

        self._tokens[slot] = EMPTY
        self._tokens[slot, : len(prompt)] = prompt
        self.lengths[slot] = shared
        self._last_used[slot] = BUSY
        return slot

    def awaited(self, tokens: Sequence[int]) -> int:
        """Return how many more tokens of a prompt a slot will share once the prompts in progress are computed."""
        prefixes = self._prefixes(np.asarray(tokens, dtype=np.int64))
        return int(prefixes.max() - np.minimum(prefixes, self.lengths).max())

    def _prefixes(self, prompt: np.ndarray) -> np.ndarray:
        """Return how many tokens each slot's text, computed or not, has in common with a prompt, [N]."""
        equal = self._tokens[:, : len(prompt)] == prompt
        return np.where(equal.all(axis=1), len(prompt), equal.argmin(axis=1))

    def rest(self, slot: int, limit: int) -> list[int]:
        """Return the next tokens of a slot's text that are not computed yet, at most ``limit``."""
        tokens = self._tokens[slot, self.lengths[slot] :][:limit]
        return tokens[tokens != EMPTY].tolist()

    def line_up(self, slots: Sequence[int]) -> None:
        """Give these slots the first places, so that a pass over them copies no keys and values."""
        places = self.places[slots]
        outside = places[places >= len(slots)]
        free = np.setdiff1d(np.arange(len(slots)), places)
        if not len(free):
            return

        # Each slot that lies outside changes places with one that need not be inside.
        slot_at = np.argsort(self.places)
        for place, inside in zip(outside, free, strict=True):
            slot, other = slot_at[place], slot_at[inside]
            self._exchange(place, inside, int(self.lengths[[slot, other]].max()))
            self.places[[slot, other]] = inside, place

    def _exchange(self, place: int, other: int, length: int) -> None:
        """Exchange what two places hold of their first ``length`` tokens."""
        for tensor_NHT in self._by_token():
            # Slices, because an index of several places makes a copy that takes three times as long
            tokens, others = tensor_NHT[place, :, :length], tensor_NHT[other, :, :length]
            kept = tokens.clone()
            tokens.copy_(others)
            others.copy_(kept)

    def _by_token(self) -> list[torch.Tensor]:
        """Return keys and values of all layers as views [N, H, T, D]."""
        return [*(keys.transpose(2, 3) for keys in self.keys), *self.values]

    def append(self, slot: int, token: int) -> None:
        """Add a drawn token, which is computed by the next forward pass."""
        self._tokens[slot, self.lengths[slot]] = token

    def release(self, slot: int) -> None:
        """End a request; what is computed of its tokens stays until the slot is needed."""
        self._tokens[slot, self.lengths[slot] :] = EMPTY
        self._last_used[slot] = next(self._clock)

    def erase(self, slot: int) -> None:
        """Forget a conversation and its keys and values: a NaN among them would spread from behind a mask, too."""
        self._tokens[slot] = EMPTY
        self.lengths[slot] = 0
        for tensor in (*self.keys, *self.values):
            tensor[self.places[slot]] = 0.0

    def clear(self) -> None:
        """Forget every conversation: the weights have changed."""
        self._tokens[:] = EMPTY
        self.lengths[:] = 0


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below ``number``."""
    return -(-number // multiple) * multiple
