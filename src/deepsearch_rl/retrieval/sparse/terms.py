"""Terms as 64-bit keys, so that a vocabulary is one sorted array.

A term is known to an index by its BLAKE2b digest of eight bytes. Runs of a build are then sorted and merged by key
without any table of all terms in memory, and a query's terms are found by one binary search in a memory-mapped array:
opening costs nothing, and ten million terms take 80 MB of page cache instead of a gigabyte of dictionary. The
probability that any two of ten million terms share a key is 3e-6; they would then count as one term.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

KEYS_KEPT = 1 << 16


@lru_cache(KEYS_KEPT)
def term_key(term: str) -> int:
    """The key of a term, from 0 to 2**64 - 1: the same in every process and on every machine."""
    return int.from_bytes(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def find_terms(keys_V: NDArray[np.uint64], terms: Iterable[str]) -> NDArray[np.int64]:
    """Positions in the sorted ``keys_V`` of those terms that it holds, in the order given, repeated ones repeatedly."""
    wanted_M = np.fromiter(map(term_key, terms), dtype=np.uint64)
    places_M = np.searchsorted(keys_V, wanted_M)
    return places_M[keys_V[np.minimum(places_M, len(keys_V) - 1)] == wanted_M]
