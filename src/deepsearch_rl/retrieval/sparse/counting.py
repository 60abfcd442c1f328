"""Counting the terms of a stretch of rows in memory: words become numbers as they come, one sort does the rest.

Python touches every word once, to look up its number. Each word is then one 64-bit integer, its term's place among the
sorted keys above, the text that it stands in below; sorted, equal ones lie together, by term, then by row, then by
field, and counting them is a matter of finding where a new value begins.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.retrieval.sparse.analysis import split_words, stem
from deepsearch_rl.retrieval.sparse.terms import term_key

STOP_WORD = -1
SHIFT = np.uint64(32)
LOW_BITS = np.uint64(2**32 - 1)


@dataclass(frozen=True, slots=True)
class SortedCounts:
    """One posting for each of P pairs of a term and a row that holds it, by key, then by row."""

    keys_V: NDArray[np.uint64]
    frequencies_V: NDArray[np.int32]
    """In how many of the rows each term occurs."""
    rows_P: NDArray[np.int32]
    counts_PF: NDArray[np.uint32]
    """How often each of F fields of the row holds the term."""
    lengths_NF: NDArray[np.uint32]
    """Of the N counted rows, in terms."""


class TermCounter:
    """Collects rows of ``fields`` texts each, beginning with row ``first_row`` of the collection."""

    def __init__(self, fields: int, first_row: int) -> None:
        self._fields, self._first_row = fields, first_row
        self._numbers = array("i")  # the term of every word, in the order of the texts
        self._text_ends = array("q", [0])
        self._numbers_by_key: dict[int, int] = {}
        # Not a method: a counter that refers to itself would stay in memory until the garbage collector comes by.
        self._number = cache(partial(_number_word, self._numbers_by_key))

    def __len__(self) -> int:
        """Words and texts held, which is what memory is used for."""
        return len(self._numbers) + len(self._text_ends) - 1

    def add(self, texts_F: Sequence[str]) -> None:
        """Count the next row."""
        for text in texts_F:
            self._numbers.extend(map(self._number, split_words(text)))
            self._text_ends.append(len(self._numbers))

    def sort(self) -> SortedCounts:
        """The counts of what was added."""
        numbers_T = np.frombuffer(self._numbers, dtype=np.int32)
        texts_T = np.repeat(np.arange(len(self._text_ends) - 1, dtype=np.uint64), np.diff(self._text_ends))
        kept_T = numbers_T != STOP_WORD
        numbers_T, texts_T = numbers_T[kept_T], texts_T[kept_T]
        lengths = np.bincount(texts_T.astype(np.int64), minlength=len(self._text_ends) - 1).astype(np.uint32)
        keys_V, places_V = self._sort_keys()
        cells, counts = _count_sorted(np.sort(places_V[numbers_T] << SHIFT | texts_T))
        rows, fields = np.divmod((cells & LOW_BITS).astype(np.int64), self._fields)
        begins = _begins(cells >> SHIFT << SHIFT | rows.astype(np.uint64))  # a posting, of one field or more
        counts_PF = np.zeros((np.count_nonzero(begins), self._fields), dtype=np.uint32)
        counts_PF[np.cumsum(begins) - 1, fields] = counts
        frequencies_V = np.bincount((cells[begins] >> SHIFT).astype(np.int64), minlength=len(keys_V)).astype(np.int32)
        rows_P = (rows[begins] + self._first_row).astype(np.int32)
        return SortedCounts(keys_V, frequencies_V, rows_P, counts_PF, lengths.reshape(-1, self._fields))

    def _sort_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The keys in order, and the place there of each number's key."""
        keys_V = np.fromiter(self._numbers_by_key, dtype=np.uint64, count=len(self._numbers_by_key))
        order_V = np.argsort(keys_V)
        places_V = np.empty(len(keys_V), dtype=np.uint64)
        places_V[order_V] = np.arange(len(keys_V), dtype=np.uint64)
        return keys_V[order_V], places_V


def _number_word(numbers_by_key: dict[int, int], word: str) -> int:
    term = stem(word)
    return numbers_by_key.setdefault(term_key(term), len(numbers_by_key)) if term else STOP_WORD


def _begins(sorted_T: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Where a new value begins."""
    begins_T = np.ones(len(sorted_T), dtype=np.bool_)
    np.not_equal(sorted_T[1:], sorted_T[:-1], out=begins_T[1:])
    return begins_T


def _count_sorted(sorted_T: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The distinct values and how often each occurs."""
    starts_M = np.flatnonzero(_begins(sorted_T))
    return sorted_T[starts_M], np.diff(starts_M, append=len(sorted_T))
