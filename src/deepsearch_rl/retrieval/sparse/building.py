"""Builds BM25 in two passes: term counts of a stretch of rows at a time on disk, then one inverted index of scores.

First, words are counted in runs. Memory is that of one run. The files of all runs lie one behind the other:

    keys.bin          uint64   term keys of a run, ascending
    frequencies.bin   int32    in how many of the run's rows each of them occurs
    rows.bin          int32    one posting per term and row that holds it: by term, then by row
    counts.bin        uint32   F counts of a posting, one per field
    lengths.bin       uint32   F lengths of a row in terms, one per field

Each word is one 64-bit integer: the place of its term among the sorted keys in the upper half, its text in the lower.
Sorted, equal ones lie together, by term, row and field.

Second, runs are merged, a range of term keys with about ``POSTINGS_AT_ONCE`` postings at a time. A term's postings are
those of the first run, then those of the second, and so on: each posting's place is known by counting.

Scores are those of the simple form of BM25F (Robertson and Zaragoza 2009, section 3.6), which with one field is BM25.
For a term t in a row d, with fields f of weight w_f:

    tf(t, d)    = sum over f of  w_f * count(t, d, f) / (1 - b + b * length(d, f) / mean_length(f))
    score(t, d) = idf(t) * tf(t, d) / (k1 + tf(t, d))
    idf(t)      = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))

``n(t)`` is the number of the N rows that hold the term in any field. The inverse document frequency is Lucene's, which
is never negative; with one field the score is Lucene's BM25 (Kamphuis et al. 2020, table 1).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.rows import GrowingArray
from deepsearch_rl.retrieval.sparse.analysis import FieldName, split_words, stem, term_key

ScalarT = TypeVar("ScalarT", bound=np.generic)
TOKENS_PER_RUN = 2_000_000  # words counted in memory, about 100 MB with what sorting them takes
POSTINGS_AT_ONCE = 4_000_000
STOP_WORD = -1
SHIFT = np.uint64(32)


class Bm25Config(Record):
    """Parameters of BM25F, which is BM25 with the one field ``contents``."""

    engine: Literal["builtin"]
    k1: float = Field(gt=0, description="how slowly repeated terms saturate")
    b: float = Field(ge=0, le=1, description="how strongly long fields are discounted; 0 is not at all")
    fields: dict[FieldName, Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="what is searched (retrieval/sparse/analysis.py), and how much a word there counts"
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Where the terms and postings of a stretch of rows lie in the files."""

    terms: slice
    postings: slice


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of a build, memory-mapped."""

    runs: tuple[Run, ...]
    keys_V: NDArray[np.uint64]
    frequencies_V: NDArray[np.int32]
    rows_P: NDArray[np.int32]
    counts_PF: NDArray[np.uint32]
    lengths_NF: NDArray[np.uint32]


class RunWriter:
    """Counts the terms of rows and appends a run to the files for every ``tokens_per_run`` words."""

    def __init__(self, folder: Path, fields: int, tokens_per_run: int = TOKENS_PER_RUN) -> None:
        self.rows = 0
        self._folder, self._fields, self._tokens_per_run = folder, fields, tokens_per_run
        self._runs = [Run(slice(0, 0), slice(0, 0))]
        self._begin_run()

    def _begin_run(self) -> None:
        self._first_row = self.rows
        self._numbers = array("i")  # the term of every word, in the order of the texts
        self._text_ends = array("q", [0])
        self._numbers_by_key: dict[int, int] = {}
        self._number = cache(partial(_number_word, self._numbers_by_key))

    def add(self, texts_F: Sequence[str]) -> None:
        """Count the next row, as the text of each field."""
        for text in texts_F:
            self._numbers.extend(map(self._number, split_words(text)))
            self._text_ends.append(len(self._numbers))
        self.rows += 1
        if len(self._numbers) + len(self._text_ends) > self._tokens_per_run:  # what takes memory
            self._write_run()

    def finish(self) -> Runs | None:
        """Return the runs, or None where no row held a single term."""
        self._write_run()
        if self._runs[-1].postings.stop == 0:
            return None
        return Runs(
            tuple(self._runs[1:]),
            self._map("keys", np.uint64),
            self._map("frequencies", np.int32),
            self._map("rows", np.int32),
            self._map("counts", np.uint32).reshape(-1, self._fields),
            self._map("lengths", np.uint32).reshape(-1, self._fields),
        )

    def _map(self, name: str, dtype: type[ScalarT]) -> NDArray[ScalarT]:
        return np.asarray(np.memmap(self._folder / f"{name}.bin", dtype=dtype, mode="r"))

    def _write_run(self) -> None:
        columns, last = self._sorted_columns(), self._runs[-1]
        terms = slice(last.terms.stop, last.terms.stop + len(columns["keys"]))
        self._runs.append(Run(terms, slice(last.postings.stop, last.postings.stop + len(columns["rows"]))))
        for name, column in columns.items():
            with (self._folder / f"{name}.bin").open("ab") as file:
                file.write(column.data)
        self._begin_run()

    def _sorted_columns(self) -> dict[str, NDArray[np.generic]]:
        """Return the columns of the run, by the names of their files."""
        texts = len(self._text_ends) - 1
        numbers_T = np.frombuffer(self._numbers, dtype=np.int32)
        texts_T = np.repeat(np.arange(texts, dtype=np.uint64), np.diff(self._text_ends))
        is_term_T = numbers_T != STOP_WORD
        numbers_T, texts_T = numbers_T[is_term_T], texts_T[is_term_T]
        lengths = np.bincount(texts_T.astype(np.int64), minlength=texts).astype(np.uint32)
        keys_V = np.fromiter(self._numbers_by_key, dtype=np.uint64, count=len(self._numbers_by_key))
        order_V = np.argsort(keys_V)
        places_V = np.empty(len(keys_V), dtype=np.uint64)  # of each number's key among the sorted ones
        places_V[order_V] = np.arange(len(keys_V), dtype=np.uint64)
        words_T = np.sort(places_V[numbers_T] << SHIFT | texts_T)
        starts_M = np.flatnonzero(_begins(words_T))
        cells = words_T[starts_M]
        rows, fields = np.divmod(cells.astype(np.uint32).astype(np.int64), self._fields)
        begins = _begins(cells >> SHIFT << SHIFT | rows.astype(np.uint64))  # a posting, of one field or more
        counts_PF = np.zeros((np.count_nonzero(begins), self._fields), dtype=np.uint32)
        counts_PF[np.cumsum(begins) - 1, fields] = np.diff(starts_M, append=len(words_T))
        frequencies_V = np.bincount((cells[begins] >> SHIFT).astype(np.int64), minlength=len(keys_V)).astype(np.int32)
        return {
            "keys": keys_V[order_V],
            "frequencies": frequencies_V,
            "rows": (rows[begins] + self._first_row).astype(np.int32),
            "counts": counts_PF,
            "lengths": lengths.reshape(-1, self._fields),
        }


def _number_word(numbers_by_key: dict[int, int], word: str) -> int:
    term = stem(word)
    return numbers_by_key.setdefault(term_key(term), len(numbers_by_key)) if term else STOP_WORD


def _begins(sorted_T: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return where a new value begins."""
    begins_T = np.ones(len(sorted_T), dtype=np.bool_)
    np.not_equal(sorted_T[1:], sorted_T[:-1], out=begins_T[1:])
    return begins_T


def merge_runs(runs: Runs, config: Bm25Config, folder: Path, postings_at_once: int = POSTINGS_AT_ONCE) -> None:
    """Write ``keys.npy``, ``offsets.npy``, ``rows.npy`` and ``scores.npy`` (see :mod:`.bm25`)."""
    ranges = -(-len(runs.rows_P) // postings_at_once)
    totals_F = runs.lengths_NF.sum(axis=0, dtype=np.int64).tolist()
    mean_lengths_F = [total / len(runs.lengths_NF) for total in totals_F]
    with (
        ProgressBar("merge BM25", len(runs.rows_P), "postings") as bar,
        GrowingArray(folder / "keys.npy", np.uint64) as keys,
        GrowingArray(folder / "offsets.npy", np.int64) as offsets,
        GrowingArray(folder / "rows.npy", np.int32) as rows,
        GrowingArray(folder / "scores.npy", np.float32) as scores,
    ):
        offsets.append(postings := 0)
        for pieces in zip(*(_split(runs, run, ranges) for run in runs.runs), strict=True):
            keys_V, frequencies_V, rows_P, scores_P = _merge(runs, pieces, config, mean_lengths_F)
            keys.extend(keys_V)
            offsets.extend(postings + np.cumsum(frequencies_V))
            rows.extend(rows_P)
            scores.extend(scores_P)
            postings += len(rows_P)
            bar.advance(len(rows_P))


def _split(runs: Runs, run: Run, ranges: int) -> list[Run]:
    """Return a run's piece of every range; the keys are hashes, so ranges of equal width hold about equally many."""
    bounds = np.array([part * 2**64 // ranges for part in range(1, ranges)], dtype=np.uint64)
    ends_V = np.cumsum(runs.frequencies_V[run.terms], dtype=np.int64)
    cuts = [0, *np.searchsorted(runs.keys_V[run.terms], bounds).tolist(), len(ends_V)]
    posting_cuts = [run.postings.start + (int(ends_V[cut - 1]) if cut else 0) for cut in cuts]
    return [
        Run(slice(run.terms.start + low, run.terms.start + high), slice(first, last))
        for (low, high), (first, last) in zip(pairwise(cuts), pairwise(posting_cuts), strict=True)
    ]


def _merge(
    runs: Runs, pieces: tuple[Run, ...], config: Bm25Config, mean_lengths_F: Sequence[float]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Return keys_V, frequencies_V, rows_P and scores_P of a range of keys; postings are by key, then by row."""
    keys_V, numbers = np.unique(np.concatenate([runs.keys_V[piece.terms] for piece in pieces]), return_inverse=True)
    counts = [runs.frequencies_V[piece.terms] for piece in pieces]
    frequencies_V = np.bincount(numbers, np.concatenate(counts), minlength=len(keys_V)).astype(np.int64)
    idf_V = np.log1p((len(runs.lengths_NF) - frequencies_V + 0.5) / (frequencies_V + 0.5)).astype(np.float32)
    next_V = np.cumsum(frequencies_V) - frequencies_V  # where each term's next posting goes
    rows_P = np.empty(frequencies_V.sum(), dtype=np.int32)
    scores_P = np.empty(len(rows_P), dtype=np.float32)
    done = 0
    for piece, frequencies_M in zip(pieces, counts, strict=True):
        terms_M = numbers[done : done + len(frequencies_M)]
        done += len(frequencies_M)
        shifts_M = next_V[terms_M] - (np.cumsum(frequencies_M) - frequencies_M)
        places = np.repeat(shifts_M, frequencies_M) + np.arange(frequencies_M.sum())
        rows_P[places] = rows = runs.rows_P[piece.postings]
        tf = _term_frequencies(runs.counts_PF[piece.postings], runs.lengths_NF[rows], mean_lengths_F, config)
        scores_P[places] = np.repeat(idf_V[terms_M], frequencies_M) * (tf / (config.k1 + tf))
        next_V[terms_M] += frequencies_M
    return keys_V, frequencies_V, rows_P, scores_P


def _term_frequencies(
    counts_MF: NDArray[np.uint32], lengths_MF: NDArray[np.uint32], mean_lengths_F: Sequence[float], config: Bm25Config
) -> NDArray[np.float64]:
    """Return tf of M pairs of term and row, given the term's counts and the row's lengths by field."""
    tf_M = np.zeros(len(counts_MF))
    # Field by field, because a matrix product may round differently with M.
    for field, (weight, mean_length) in enumerate(zip(config.fields.values(), mean_lengths_F, strict=True)):
        if mean_length > 0:  # else no row has the field
            norms_M = 1 - config.b + config.b * lengths_MF[:, field] / mean_length
            # A row without the field may have norm 0 (b = 1), and has no count either.
            tf_M += weight * counts_MF[:, field] / np.where(norms_M > 0, norms_M, 1.0)
    return tf_M
