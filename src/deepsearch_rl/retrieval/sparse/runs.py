"""The first half of a build: sorted counts of a stretch of rows at a time, on disk, so that memory is that of one run.

The files of all runs lie one behind the other:

    keys.bin          uint64   term keys of a run, ascending
    frequencies.bin   int32    in how many of the run's rows each of them occurs
    rows.bin          int32    one posting per term and row that holds it: by term, then by row
    counts.bin        uint32   F counts of a posting, one per field
    lengths.bin       uint32   F lengths of a row in terms, one per field
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.retrieval.sparse.counting import SortedCounts, TermCounter

ScalarT = TypeVar("ScalarT", bound=np.generic)
TOKENS_PER_RUN = 2_000_000
"""Words counted in memory, about 100 MB with what sorting them takes."""


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
    """Counts the terms of rows and appends a run to the files whenever enough words have come together."""

    def __init__(self, folder: Path, fields: int, tokens_per_run: int = TOKENS_PER_RUN) -> None:
        self.rows = 0
        self._folder, self._fields, self._tokens_per_run = folder, fields, tokens_per_run
        self._runs: list[Run] = []
        self._counter = TermCounter(fields, 0)

    def add(self, texts_F: Sequence[str]) -> None:
        """Count the next row, given by the text of each field.

        Raises:
            OSError: a run cannot be written.
        """
        self._counter.add(texts_F)
        self.rows += 1
        if len(self._counter) >= self._tokens_per_run:
            self._write_run()

    def finish(self) -> Runs | None:
        """The runs, or None where no row held a single term.

        Raises:
            OSError: the last run cannot be written.
        """
        self._write_run()
        if self._end().postings.stop == 0:
            return None
        return Runs(
            tuple(self._runs),
            self._map("keys", np.uint64),
            self._map("frequencies", np.int32),
            self._map("rows", np.int32),
            self._map("counts", np.uint32).reshape(-1, self._fields),
            self._map("lengths", np.uint32).reshape(-1, self._fields),
        )

    def _end(self) -> Run:
        return self._runs[-1] if self._runs else Run(slice(0, 0), slice(0, 0))

    def _write_run(self) -> None:
        counts, end = self._counter.sort(), self._end()
        self._counter = TermCounter(self._fields, self.rows)
        terms = slice(end.terms.stop, end.terms.stop + len(counts.keys_V))
        self._runs.append(Run(terms, slice(end.postings.stop, end.postings.stop + len(counts.rows_P))))
        self._append(counts)

    def _append(self, counts: SortedCounts) -> None:
        columns = {
            "keys": counts.keys_V,
            "frequencies": counts.frequencies_V,
            "rows": counts.rows_P,
            "counts": counts.counts_PF,
            "lengths": counts.lengths_NF,
        }
        for name, column in columns.items():
            with (self._folder / f"{name}.bin").open("ab") as file:
                file.write(column.data)

    def _map(self, name: str, dtype: type[ScalarT]) -> NDArray[ScalarT]:
        return np.asarray(np.memmap(self._folder / f"{name}.bin", dtype=dtype, mode="r"))
