"""Builds BM25 in two passes: term counts by stretch of rows, then one inverted index of scores.

First, words are counted in runs. Memory is that of one run, which is then kept in the files of
:class:`TermRun`.

Each word is one 64-bit integer (:func:`_pack`): the place of its term among the sorted keys in the
upper half, its text in the lower. Sorted, equal ones lie together, by term, row and field.

Second, runs are merged, a range of term keys with about ``POSTINGS_AT_ONCE`` postings at a time. A
term's postings are those of the first run, then those of the second, and so on.

Scores are those of the simple form of BM25F (Robertson and Zaragoza 2009, section 3.6), which with
one field is BM25. For a term t in a row d, with fields f of weight w_f:

    tf(t, d)    = sum over f of  w_f * count(t, d, f) / (1 - b + b * length(d, f) / mean_length(f))
    score(t, d) = idf(t) * tf(t, d) / (k1 + tf(t, d))
    idf(t)      = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))

``n(t)`` is the number of the N rows that hold the term in any field. The inverse document frequency
is Lucene's, which is never negative; with one field the score is Lucene's BM25 (Kamphuis et al.
2020, table 1).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.search.analysis import (
    inner_letters,
    split_words,
    stem,
    term_key,
)
from deepsearch_rl.search.rows import GrowingArray, open_column

# Words counted in memory, about 100 MB with what sorting them takes
TOKENS_PER_RUN = 2_000_000
POSTINGS_AT_ONCE = 2_000_000
STOP_WORD = -1
HALF_BITS = np.uint64(32)


@dataclass(frozen=True, slots=True)
class TermRun:
    """The terms and postings of a stretch of rows, or of a range of keys in it, memory-mapped."""

    first_row: int

    # Term keys, ascending, and in how many of the run's rows each of them occurs.
    keys_V: NDArray[np.uint64]
    frequencies_V: NDArray[np.int32]

    # One posting per term and row that holds it, by term, then by row: the row, counted from
    # ``first_row``, and how often the term occurs in each of its fields.
    rows_P: NDArray[np.int32]
    counts_PF: NDArray[np.uint32]

    # Of each row, the terms of every field.
    lengths_NF: NDArray[np.uint32]


class RunWriter:
    """Counts the terms of rows and writes a run for every ``tokens_per_run`` words."""

    def __init__(self, folder: Path, fields: int, tokens_per_run: int = TOKENS_PER_RUN) -> None:
        self.rows = 0
        self._folder = folder
        self._fields = fields
        self._tokens_per_run = tokens_per_run
        self._runs: list[TermRun] = []
        self._begin_run()

    def _begin_run(self) -> None:
        self._first_row = self.rows

        # The term of every word, in the order of the texts, and where each text ends.
        self._numbers = array("i")
        self._text_ends = array("q", [0])

        # Of every text: words that can be found, but do not make it longer.
        self._inner_letters = array("q")

        # Words repeat, and stemming and hashing one takes longer than looking it up.
        self._numbers_by_key: dict[int, int] = {}
        self._number = cache(partial(_number_word, self._numbers_by_key))

    def add(self, texts_F: Sequence[str]) -> None:
        """Count the next row, as the text of each field."""
        for text in texts_F:
            letters = inner_letters(text)

            self._numbers.extend(map(self._number, split_words(text)))
            self._numbers.extend(map(self._number, letters))

            self._inner_letters.append(len(letters))
            self._text_ends.append(len(self._numbers))

        self.rows += 1

        # What takes memory: an entry for every word, and one for every text.
        if len(self._numbers) + len(self._text_ends) > self._tokens_per_run:
            self._write_run()

    def finish(self) -> list[TermRun]:
        """Return the runs."""
        self._write_run()
        return self._runs

    def _write_run(self) -> None:
        columns: list[NDArray[Any]] = []
        for number, column in enumerate(self._sorted_columns()):
            path = self._folder / f"{len(self._runs)}-{number}.npy"
            with GrowingArray(path, column.dtype) as file:
                file.extend(column.ravel())
            columns.append(open_column(path, column.dtype.type).reshape(column.shape))

        self._runs.append(TermRun(self._first_row, *columns))
        self._begin_run()

    def _sorted_columns(self) -> tuple[NDArray[Any], ...]:
        """Return the columns of the run, as :class:`TermRun` has them."""
        texts = len(self._text_ends) - 1
        numbers_T = np.frombuffer(self._numbers, dtype=np.int32)
        texts_T = np.repeat(np.arange(texts, dtype=np.uint64), np.diff(self._text_ends))

        # A stop word can be found nowhere and makes no text longer.
        is_term_T = numbers_T != STOP_WORD
        numbers_T = numbers_T[is_term_T]
        texts_T = texts_T[is_term_T]

        words = np.bincount(texts_T.astype(np.int64), minlength=texts)
        lengths = (words - np.frombuffer(self._inner_letters, dtype=np.int64)).astype(np.uint32)

        keys_V, places_V = self._sorted_keys()
        words_T = np.sort(_pack(places_V[numbers_T], texts_T))
        frequencies_V, rows_P, counts_PF = _count_postings(words_T, len(keys_V), self._fields)

        return keys_V, frequencies_V, rows_P, counts_PF, lengths.reshape(-1, self._fields)

    def _sorted_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the run's term keys, ascending, and the place of each number's key among them."""
        keys_V = np.fromiter(self._numbers_by_key, dtype=np.uint64, count=len(self._numbers_by_key))
        order_V = np.argsort(keys_V)

        places_V = np.empty(len(keys_V), dtype=np.uint64)
        places_V[order_V] = np.arange(len(keys_V), dtype=np.uint64)
        return keys_V[order_V], places_V


def _count_postings(
    words_T: NDArray[np.uint64], terms: int, fields: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint32]]:
    """Return frequencies_V, rows_P and counts_PF of packed words, which are sorted."""
    # A cell is a term in one field of a row: a stretch of equal words.
    starts = np.flatnonzero(_begins(words_T))
    cells = words_T[starts]
    cell_counts = np.diff(starts, append=len(words_T))
    cell_terms = cells >> HALF_BITS
    cell_texts = cells.astype(np.uint32).astype(np.int64)
    cell_rows, cell_fields = np.divmod(cell_texts, fields)

    # A posting is a term in a row: its cells of one field or more, which lie together.
    begins = _begins(_pack(cell_terms, cell_rows.astype(np.uint64)))
    cell_postings = np.cumsum(begins) - 1
    counts_PF = np.zeros((np.count_nonzero(begins), fields), dtype=np.uint32)
    counts_PF[cell_postings, cell_fields] = cell_counts

    terms_P = cell_terms[begins].astype(np.int64)
    frequencies_V = np.bincount(terms_P, minlength=terms).astype(np.int32)
    rows_P = cell_rows[begins].astype(np.int32)
    return frequencies_V, rows_P, counts_PF


def _number_word(numbers_by_key: dict[int, int], word: str) -> int:
    """Return the number of a word's term, a new one for a term that the run has not seen."""
    term = stem(word)
    if not term:
        return STOP_WORD
    return numbers_by_key.setdefault(term_key(term), len(numbers_by_key))


def _pack(terms: NDArray[np.uint64], texts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers that are ordered by term, then by text (or row); both are below 2**32."""
    return terms << HALF_BITS | texts


def _begins(sorted_T: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return where a new value begins."""
    begins_T = np.ones(len(sorted_T), dtype=np.bool_)
    np.not_equal(sorted_T[1:], sorted_T[:-1], out=begins_T[1:])
    return begins_T


def merge_runs(
    runs: Sequence[TermRun],
    weights_F: Sequence[float],
    k1: float,
    b: float,
    folder: Path,
    postings_at_once: int = POSTINGS_AT_ONCE,
) -> None:
    """Write ``keys.npy``, ``offsets.npy``, ``rows.npy`` and ``scores.npy`` (see :mod:`.builtin`)."""
    total = 0
    row_count = 0
    # The mean length of all passages is known only when every run is written: so scores come last
    sums_F = np.zeros(len(weights_F), dtype=np.int64)

    for run in runs:
        total += len(run.rows_P)
        row_count += len(run.lengths_NF)
        sums_F += run.lengths_NF.sum(axis=0, dtype=np.int64)

    ranges = -(-total // postings_at_once)
    mean_lengths_F = sums_F / row_count

    with (
        ProgressBar("merge BM25", total, "postings") as bar,
        GrowingArray(folder / "keys.npy", np.uint64) as keys,
        GrowingArray(folder / "offsets.npy", np.int64) as offsets,
        GrowingArray(folder / "rows.npy", np.int32) as rows,
        GrowingArray(folder / "scores.npy", np.float32) as scores,
    ):
        postings = 0
        offsets.append(postings)

        # A range of keys at a time, so that memory does not grow with the corpus
        pieces_by_run = [_split(run, ranges) for run in runs]
        for pieces in zip(*pieces_by_run, strict=True):
            tf_by_piece: list[NDArray[np.float64]] = []
            for piece in pieces:
                tf_by_piece.append(_term_frequencies(piece, mean_lengths_F, weights_F, b))

            keys_V, frequencies_V, rows_P, tf_P = _merge(pieces, tf_by_piece)
            odds_V = (row_count - frequencies_V + 0.5) / (frequencies_V + 0.5)
            idf_V = np.log1p(odds_V).astype(np.float32)
            saturated_P = tf_P / (k1 + tf_P)

            keys.extend(keys_V)
            offsets.extend(postings + np.cumsum(frequencies_V))
            rows.extend(rows_P)
            scores.extend(np.repeat(idf_V, frequencies_V) * saturated_P)

            postings += len(rows_P)
            bar.advance(len(rows_P))


def _split(run: TermRun, ranges: int) -> list[TermRun]:
    """Return a run's piece of every range of keys.

    The keys are hashes, so that ranges of equal width hold about equally many.
    """
    bounds = np.array([part * 2**64 // ranges for part in range(1, ranges)], dtype=np.uint64)
    cuts = [0, *np.searchsorted(run.keys_V, bounds).tolist(), len(run.keys_V)]
    ends = np.concatenate([[0], np.cumsum(run.frequencies_V, dtype=np.int64)])

    pieces: list[TermRun] = []
    for low, high in pairwise(cuts):
        terms = slice(low, high)
        postings = slice(ends[low], ends[high])
        piece = replace(
            run,
            keys_V=run.keys_V[terms],
            frequencies_V=run.frequencies_V[terms],
            rows_P=run.rows_P[postings],
            counts_PF=run.counts_PF[postings],
        )
        pieces.append(piece)

    return pieces


def _merge(
    pieces: Sequence[TermRun], tf_by_piece: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]:
    """Return keys_V, frequencies_V, rows_P and tf_P of a range of keys, by key, then by row."""
    keys: list[NDArray[np.uint64]] = []
    rows: list[NDArray[np.int32]] = []

    for piece in pieces:
        keys.append(np.repeat(piece.keys_V, piece.frequencies_V))
        rows.append(piece.rows_P + np.int32(piece.first_row))

    # Stable, because the rows of a later run are higher.
    keys_P = np.concatenate(keys)
    order_P = np.argsort(keys_P, kind="stable")
    keys_P = keys_P[order_P]
    rows_P = np.concatenate(rows)[order_P]
    tf_P = np.concatenate(tf_by_piece)[order_P]

    starts_V = np.flatnonzero(_begins(keys_P))
    frequencies_V = np.diff(starts_V, append=len(keys_P))
    return keys_P[starts_V], frequencies_V, rows_P, tf_P


def _term_frequencies(
    piece: TermRun,
    mean_lengths_F: NDArray[np.float64],
    weights_F: Sequence[float],
    b: float,
) -> NDArray[np.float64]:
    """Return tf_P of a piece's pairs of term and row; ``b`` is how strongly long fields are discounted."""
    lengths_PF = piece.lengths_NF[piece.rows_P]
    tf_P = np.zeros(len(lengths_PF))

    # Field by field, because a matrix product may round differently with P.
    fields = zip(weights_F, mean_lengths_F.tolist(), strict=True)
    for field, (weight, mean_length) in enumerate(fields):
        # No row has the field.
        if mean_length == 0:
            continue

        # A row without the field may have norm 0 (b = 1), and has no count either.
        norms_P = 1 - b + b * lengths_PF[:, field] / mean_length
        tf_P += weight * piece.counts_PF[:, field] / np.where(norms_P > 0, norms_P, 1.0)

    return tf_P
