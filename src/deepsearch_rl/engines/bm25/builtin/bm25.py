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
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, ConfigError, full_disk_named
from deepsearch_rl.core.files import read_record, write_json
from deepsearch_rl.core.progress import track
from deepsearch_rl.core.records import Chunk, Record
from deepsearch_rl.engines.bm25.builtin.building import (
    TOKENS_PER_RUN,
    RunWriter,
    merge_runs,
)
from deepsearch_rl.retrieval.ranking.ranking import Mask, Ranking
from deepsearch_rl.retrieval.search.analysis import analyse, field_text, term_key
from deepsearch_rl.retrieval.search.bm25_configs import Bm25Config
from deepsearch_rl.retrieval.search.rows import open_column

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

SMALLEST_SCORE = np.nextafter(np.float32(0), np.float32(1))
# The rows that hold a term, and what it adds to their scores
_Postings: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32]]


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

            merge_runs(runs, config, folder)

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
        keys = map(term_key, chain.from_iterable(counts_of_queries))
        keys_U = np.fromiter(keys, dtype=np.uint64)

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
            postings: list[_Postings] = []
            for count, (is_known, start, end) in zip(counts.values(), bounds, strict=False):
                if not is_known:
                    continue
                scores_P = self.scores_P[start:end]

                # Read once, however often the query repeats the term
                if count != 1:
                    scores_P = np.float32(count) * scores_P
                postings.append((self.rows_P[start:end], scores_P))

            _add(postings, scores_N)


def _count(terms: Iterable[str]) -> dict[str, int]:
    """Return how often each term occurs; for a few terms less work than a Counter is."""
    counts: dict[str, int] = {}
    for term in terms:
        counts[term] = counts.get(term, 0) + 1

    return counts


def _add(postings: Sequence[_Postings], scores_N: NDArray[np.float32]) -> None:
    """Add the scores of a query's terms, one term after the other."""
    count = sum(len(rows_P) for rows_P, _ in postings)
    if len(postings) > 1 and count <= FEW_POSTINGS:
        rows = [rows_P for rows_P, _ in postings]
        scores = [scores_P for _, scores_P in postings]
        np.add.at(scores_N, np.concatenate(rows, dtype=np.intp), np.concatenate(scores))
        return

    for rows_P, scores_P in postings:
        np.add.at(scores_N, rows_P, scores_P)


def top_rows(scores_QN: NDArray[np.float32], top_k: int) -> list[Ranking]:
    """Return each query's ``top_k`` best rows with a positive score, by score, then by row; fewer where fewer score.

    N is a multiple of ``MAX_LANES``. The scores of a query are read as a matrix of ``lanes`` rows,
    whose column maxima cost one vectorised pass. The k-th largest maximum is a lower bound of the k-th best score, so
    the best rows are in the few columns whose maximum reaches it.
    """
    queries, rows = scores_QN.shape
    lanes = MAX_LANES
    # Fewer lanes where columns are few: their maxima would say little about the best scores
    while lanes > 1 and rows // lanes < max(MIN_COLUMNS, COLUMNS_PER_HIT * top_k):
        lanes //= 2
    columns = rows // lanes

    scores_QLC = scores_QN.reshape(queries, lanes, columns)
    best_QC = scores_QLC.max(axis=1)
    if columns > top_k:
        place = columns - top_k
        least_Q1 = np.maximum(np.partition(best_QC, place)[:, place, None], SMALLEST_SCORE)
    else:
        least_Q1 = np.full((queries, 1), SMALLEST_SCORE)

    # Of these columns alone all scores are read
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
