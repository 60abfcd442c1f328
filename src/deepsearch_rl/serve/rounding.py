"""Which sizes of matrix products round alike on this machine: tried with the served model when an engine starts.

Libraries choose their kernels by processor, number of threads and size of the product, and no
library says which of them round alike. So this module computes one conversation in several ways and
compares the bytes. With more than one thread a passed check is no proof: how work is divided
depends on sizes that it does not try.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from deepsearch_rl.serve.packing import Shapes, forward
from deepsearch_rl.serve.slots import SlotTable

logger = logging.getLogger(__name__)

_FAST = Shapes(tokens=16, max_tokens=512, queries=2, max_queries=128, keys=64, block=128)

# The fastest first
CANDIDATES = (
    _FAST,
    # For processors without AVX-512, where products of two query vectors round otherwise
    _FAST._replace(queries=4),
    _FAST._replace(queries=8),
    # Every product has one size
    Shapes(tokens=64, max_tokens=64, queries=8, max_queries=8, keys=64, block=64),
)

# Longer than a block of every candidate, so that a product is cut at all of its edges.
TEXT_TOKENS = 200
COMPANIONS = 40

# Where each part of the conversation ends. Behind some lengths and at the end, parts are single
# tokens, as they are while an answer is drawn.
PART_ENDS = (1, 2, 5, 70, 71, 72, 73, 128, 129, 130, 190, *range(191, TEXT_TOKENS + 1))

# Tokens of companions beside a part, if they can be: more than a pass has
COMPANION_TOKENS = 600

# All layers have products of the same sizes. The second one's keys are made of what the first one's
# attention gives, for every token.
LAYERS = 2


def choose_shapes(model: PreTrainedModel) -> Shapes:
    """Return the fastest sizes with which an answer does not depend on what is computed beside it and before it.

    Where no sizes do, a warning says so and the fastest are returned: answers are right, but their
    low bits vary. In 16 bits they do in any case.
    """
    if model.dtype is not torch.float32:
        return CANDIDATES[0]

    for shapes in CANDIDATES:
        if rounds_alike(model, shapes):
            return shapes

    logger.warning(
        "No sizes of matrix products round alike on this machine: answers and log-probabilities "
        "depend, in their last bits, on the requests that are computed together, and runs are not "
        "equal byte for byte."
    )
    return CANDIDATES[0]


def rounds_alike(model: PreTrainedModel, shapes: Shapes) -> bool:
    """Return whether a conversation has the same bytes computed whole and alone, or in parts and among others."""
    rng = random.Random(0)
    own_text = _random_text(rng, model.config.vocab_size)
    other_texts = [_random_text(rng, model.config.vocab_size) for _ in range(COMPANIONS)]

    with torch.inference_mode(), _first_layers(model):
        table = SlotTable(model.config, COMPANIONS + 2, TEXT_TOKENS, model.dtype)
        whole_1V = forward(model, table, shapes, [0], [own_text])
        parts_1V = whole_1V

        # Slot 1 gets the same conversation in parts, each of which is computed with one companion
        # fewer, or with few where they bring many tokens.
        start = 0
        for number, end in enumerate(PART_ENDS):
            companions = min(COMPANIONS - number, COMPANION_TOKENS // (end - start))
            slots = [*range(2, companions + 2), 1]
            new_tokens: list[list[int]] = []
            for slot, text in zip(slots, [*other_texts[:companions], own_text], strict=True):
                computed = int(table.lengths[slot])
                new_tokens.append(text[computed : computed + end - start])

            parts_1V = forward(model, table, shapes, slots, new_tokens)[-1:]
            start = end

    if not torch.equal(whole_1V, parts_1V):
        return False
    return all(torch.equal(tensor[0], tensor[1]) for tensor in (*table.keys, *table.values))


@contextmanager
def _first_layers(model: PreTrainedModel) -> Iterator[None]:
    """Have the model compute its first ``LAYERS`` layers alone, or all where it has fewer."""
    layers = model.config.num_hidden_layers
    model.config.num_hidden_layers = min(layers, LAYERS)
    try:
        yield
    finally:
        model.config.num_hidden_layers = layers


def _random_text(rng: random.Random, vocabulary: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(TEXT_TOKENS)]
