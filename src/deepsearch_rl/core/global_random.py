"""Python's own random numbers for libraries that draw them from the module ``random`` and take no generator."""

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded_global_random(seed: int | str) -> Iterator[None]:
    """Seed the module's generator for a block; after it, the generator is where it was before."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
