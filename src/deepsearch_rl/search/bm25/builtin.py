"""BM25 and BM25F over chunks: an inverted index of finished scores, so that a query is a sum.

keys.npy     uint64 V    term keys, ascending (:func:`.term_key`)
offsets.npy  int64 V+1   where each term's postings begin; last, how many there are
rows.npy     int32 P     rows that hold the term, ascending
scores.npy   float32 P   what the term adds to the score of the row
index.json               configuration, number of rows
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, ConfigError, full_disk_named
from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.progress import track
from deepsearch_rl.core.records import Chunk, Record
from deepsearch_rl.search.analysis import FieldName, analyse, field_text, term_key
from deepsearch_rl.search.bm25.building import (
    TOKENS_PER_RUN,
    RunWriter,
    merge_runs,
)
from deepsearch_rl.search.ranking import Mask, Ranking
from deepsearch_rl.search.rows import open_column

# Scores of a few queries that are added up side by side, 1 MiB: they stay in a core's cache, and the
# calls that rank them are shared by all of these queries.
SCORES_AT_ONCE = 2**18

# :func:`top_rows` reads a query's scores as a matrix of at most so many rows, a power of two. More
# of them leave fewer columns, and more scores to read in each of the best columns.
MAX_LANES = 64

# The matrix has at least so many columns for each hit, and in all, where it can: the best ones of
# fewer columns would hold a great part of all rows.
COLUMNS_PER_HIT = 8
MIN_COLUMNS = 256

# Postings of a query that are copied together and added by one call; a call for each term costs
# more than that, and a copy of more postings would.
FEW_POSTINGS = 2**15

# Scores of a query alone that are read twice: from here on a second pass over all of them costs more
# than the calls that it saves.
FEW_ROWS = 2**16

SMALLEST_SCORE = np.nextafter(np.float32(0), np.float32(1))


class Bm25Config(Record):
    """Parameters of BM25F, which is BM25 with the one field ``contents``."""

    engine: Literal["builtin"]
    k1: float = Field(gt=0, description="how slowly repeated terms saturate")
    b: float = Field(
        ge=0, le=1, description="how strongly long fields are discounted; 0 is not at all"
    )
    fields: dict[FieldName, Annotated[float, Field(gt=0)]] = Field(
        min_length=1,
        description="what is searched (search/analysis.py), and how much a word there counts",
    )

    def build(self, chunks: Collection[Chunk], folder: Path) -> "Bm25Index":
        """See :meth:`Bm25Index.build`."""
        return Bm25Index.build(chunks, folder, self)

    def open(self, folder: Path) -> "Bm25Index":
        """See :meth:`Bm25Index.open`."""
        return Bm25Index.open(folder, self)


class IndexSummary(Record):
    """``index.json`` of a BM25 index."""

    rows: int = Field(ge=1)
    config: Bm25Config


@dataclass(frozen=True, slots=True)
class Bm25Index:
    """A memory-mapped BM25 index over N rows, which several threads may search at once."""

    summary: IndexSummary
    keys_V: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    rows_P: NDArray[np.int32]
    scores_P: NDArray[np.float32]

    @classmethod
    def build(
        cls,
        chunks: Collection[Chunk],
        folder: Path,
        config: Bm25Config,
        tokens_per_run: int = TOKENS_PER_RUN,
    ) -> Self:
        """Index chunks into ``folder``, reading them once; equal chunks give equal bytes.

        Memory does not grow with the chunks: every ``tokens_per_run`` words are written to disk and
        merged at the end. Raise ConfigError where no chunk holds a single term, ArtifactError where
        the disk is full.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the index, whose disk has room for it: /tmp may be small, or memory
        with full_disk_named(folder), TemporaryDirectory(dir=folder, prefix=".runs-") as work:
            writer = RunWriter(Path(work), len(config.fields), tokens_per_run)
            for chunk in track(chunks, "count terms", len(chunks), "chunks"):
                writer.add([field_text(chunk, name) for name in config.fields])
            runs = writer.finish()

            if not any(len(run.keys_V) for run in runs):
                raise ConfigError(
                    "there is nothing to index: no chunk holds a word that is not a stop word."
                )

            merge_runs(runs, list(config.fields.values()), config.k1, config.b, folder)

        summary = IndexSummary(rows=writer.rows, config=config)
        write_json(folder / "index.json", summary.model_dump(mode="json"))
        return cls.open(folder, config)

    @classmethod
    def open(cls, folder: Path, config: Bm25Config) -> Self:
        """Open what :meth:`build` wrote; raise ArtifactError where a file is missing, damaged or of another config."""
        index = cls(
            read_record(folder / "index.json", IndexSummary),
            open_column(folder / "keys.npy", np.uint64),
            open_column(folder / "offsets.npy", np.int64),
            open_column(folder / "rows.npy", np.int32),
            open_column(folder / "scores.npy", np.float32),
        )
        if index.summary.config != config:
            raise ArtifactError(
                f"the BM25 index in {folder} was built with other parameters; build it again."
            )
        # Lengths alone: to read all arrays would take as long as a search of the whole index
        postings = len(index.rows_P)
        fits_keys = len(index.offsets) == len(index.keys_V) + 1
        if not fits_keys or not index.offsets[-1] == postings == len(index.scores_P) > 0:
            raise ArtifactError(
                f"the arrays of the BM25 index in {folder} do not fit each other; build it again."
            )

        return index

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Rank the allowed rows that share a term with the query; a term counts as often as the query repeats it."""
        rows = self.summary.rows
        width = math.ceil(rows / MAX_LANES) * MAX_LANES
        queries_at_once = max(1, min(len(queries), SCORES_AT_ONCE // width))

        # An array of this call alone, since threads may search at once. Its last columns are of no row.
        scores_QN = np.empty((queries_at_once, width), dtype=np.float32)
        rankings: list[Ranking] = []

        for start in range(0, len(queries), queries_at_once):
            part = queries[start : start + queries_at_once]
            part_QN = scores_QN[: len(part)]
            self._add_up(part, part_QN)

            if allowed_N is not None:
                part_QN[:, :rows] *= allowed_N
            rankings += top_rows(part_QN, top_k)

        return rankings

    def _add_up(self, queries: Sequence[str], scores_QN: NDArray[np.float32]) -> None:
        """Write the score of every row for Q queries."""
        # The terms of all queries, each query's in the order in which they first occur
        counts_of_queries = [_count(analyse(query)) for query in queries]
        keys = [term_key(term) for counts in counts_of_queries for term in counts]
        keys_U = np.array(keys, dtype=np.uint64)

        # Where the postings of each term begin and end, if the index has it
        places_U = self.keys_V.searchsorted(keys_U)
        known = (self.keys_V.take(places_U, mode="clip") == keys_U).tolist()
        starts = self.offsets.take(places_U).tolist()
        ends = self.offsets.take(places_U + 1, mode="clip").tolist()
        bounds = zip(known, starts, ends, strict=True)

        # Each query takes its own terms from the one iterator of bounds. Its counts stand first in
        # zip, which would otherwise take a term of the next query too.
        scores_QN.fill(0)
        for scores_N, counts in zip(scores_QN, counts_of_queries, strict=True):
            rows: list[NDArray[np.int32]] = []
            scores: list[NDArray[np.float32]] = []
            for count, (is_known, start, end) in zip(counts.values(), bounds, strict=False):
                if not is_known:
                    continue
                scores_P = self.scores_P[start:end]

                # Read once, however often the query repeats the term
                if count != 1:
                    scores_P = np.float32(count) * scores_P
                rows.append(self.rows_P[start:end])
                scores.append(scores_P)

            _add(rows, scores, scores_N)


def _count(terms: Iterable[str]) -> dict[str, int]:
    """Return how often each term occurs; for a few terms less work than a Counter is."""
    counts: dict[str, int] = {}
    for term in terms:
        counts[term] = counts.get(term, 0) + 1

    return counts


def _add(
    rows: Sequence[NDArray[np.int32]],
    scores: Sequence[NDArray[np.float32]],
    scores_N: NDArray[np.float32],
) -> None:
    """Add the postings of a query's terms, one term after the other: its rows, and what it adds to them."""
    if len(rows) > 1 and sum(map(len, rows)) <= FEW_POSTINGS:
        # Cast by a call of its own, which is faster than a concatenation that casts
        np.add.at(scores_N, np.concatenate(rows).astype(np.intp), np.concatenate(scores))
        return

    for rows_P, scores_P in zip(rows, scores, strict=True):
        np.add.at(scores_N, rows_P, scores_P)


def top_rows(scores_QN: NDArray[np.float32], top_k: int) -> list[Ranking]:
    """Return each query's ``top_k`` best rows with a positive score, by score, then by row; fewer where fewer score.

    N is a multiple of ``MAX_LANES``. The scores of a query are read as a matrix of ``lanes`` rows,
    whose column maxima cost one vectorised pass. The k-th largest maximum is a lower bound of the
    k-th best score, so that few rows are left to be sorted.
    """
    queries, rows = scores_QN.shape
    lanes = MAX_LANES
    # Fewer lanes where columns are few: their maxima would say little about the best scores
    while lanes > 1 and rows // lanes < max(MIN_COLUMNS, COLUMNS_PER_HIT * top_k):
        lanes //= 2

    scores_QLC = scores_QN.reshape(queries, lanes, rows // lanes)
    if queries == 1 and rows <= FEW_ROWS:
        return [_top_rows_of_one(scores_QLC[0], top_k)]

    return _top_rows_of_many(scores_QLC, top_k)


def _top_rows_of_one(scores_LC: NDArray[np.float32], top_k: int) -> Ranking:
    """Rank the rows of one query with the fewest calls: they cost more than reading all scores twice does."""
    least = SMALLEST_SCORE
    columns = scores_LC.shape[1]
    if columns > top_k:
        best_C = scores_LC.max(axis=0)
        best_C.partition(columns - top_k)
        least = max(best_C[columns - top_k], least)

    scores_N = scores_LC.ravel()
    rows_M = (scores_N >= least).nonzero()[0]
    scores_M = scores_N[rows_M]
    # Stable: equal scores stay in the order of their rows
    order_K = (-scores_M).argsort(kind="stable")[:top_k]
    return Ranking(rows_M[order_K], scores_M[order_K])


def _top_rows_of_many(scores_QLC: NDArray[np.float32], top_k: int) -> list[Ranking]:
    """Rank the rows of each query by calls that all of them share.

    The best rows are in the few columns whose maximum reaches the bound: of these alone all scores
    are read.
    """
    queries, _, columns = scores_QLC.shape
    best_QC = scores_QLC.max(axis=1)
    if columns > top_k:
        place = columns - top_k
        least_Q1 = np.maximum(np.partition(best_QC, place)[:, place, None], SMALLEST_SCORE)
    else:
        least_Q1 = np.full((queries, 1), SMALLEST_SCORE)

    queries_B, columns_B = (best_QC >= least_Q1).nonzero()
    scores_BL = scores_QLC[queries_B, :, columns_B]
    places_M, lanes_M = (scores_BL >= least_Q1[queries_B]).nonzero()

    queries_M = queries_B[places_M]
    rows_M = columns_B[places_M] + columns * lanes_M
    scores_M = scores_BL[places_M, lanes_M]
    # One sort for all queries: each has its hits side by side afterwards
    order_M = np.lexsort((rows_M, -scores_M, queries_M))

    rankings: list[Ranking] = []
    start = 0
    for end in queries_M.searchsorted(np.arange(queries), side="right").tolist():
        order_K = order_M[start : min(end, start + top_k)]
        rankings.append(Ranking(rows_M[order_K], scores_M[order_K]))
        start = end

    return rankings
