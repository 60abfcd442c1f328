"""BM25 and BM25F over chunks: an inverted index of finished scores, so that a query is a sum.

keys.npy     uint64 V    term keys, ascending (:func:`.term_key`)
offsets.npy  int64 V+1   where each term's postings begin; last, how many there are
rows.npy     int32 P     rows that hold the term, ascending
scores.npy   float32 P   what the term adds to the score of the row
index.json               configuration, number of rows
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

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
from deepsearch_rl.retrieval.ranking.ranking import Mask, Ranking, rank
from deepsearch_rl.retrieval.search.analysis import analyse, field_text, term_key
from deepsearch_rl.retrieval.search.bm25_configs import Bm25Config
from deepsearch_rl.retrieval.search.rows import open_column

# Rows of the matrix that :func:`top_rows` reads scores as; more of them leave fewer columns, and
# more rows in each of the best ones.
LANES = 64

# Up to this number, ranking all rows is faster than looking for the best columns first
FEW_COLUMNS = 512


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
        # One for the call, so that threads do not meet
        scores_N = np.empty(self.summary.rows, dtype=np.float32)
        rankings: list[Ranking] = []

        for query in queries:
            # In the order in which the terms first occur
            counts = Counter(analyse(query))
            keys_U = np.fromiter(map(term_key, counts), dtype=np.uint64, count=len(counts))
            counts_U = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))

            # The M terms that the index has, and the stretch of postings of each
            places_U = np.searchsorted(self.keys_V, keys_U)
            known_U = self.keys_V[np.minimum(places_U, len(self.keys_V) - 1)] == keys_U
            places_M = places_U[known_U]
            starts_M = self.offsets[places_M].tolist()
            ends_M = self.offsets[places_M + 1].tolist()
            scores_N.fill(0)

            for start, end, count in zip(starts_M, ends_M, counts_U[known_U], strict=True):
                scores_P = self.scores_P[start:end]
                # The postings of a term are read once, however often the query repeats it.
                np.add.at(
                    scores_N, self.rows_P[start:end], scores_P if count == 1 else count * scores_P
                )

            if allowed_N is not None:
                np.multiply(scores_N, allowed_N, out=scores_N)
            rankings.append(top_rows(scores_N, top_k))

        return rankings


def top_rows(scores_N: NDArray[np.float32], top_k: int) -> Ranking:
    """Return the ``top_k`` best rows with a positive score, by score, then by row; fewer where fewer score.

    The scores are read as a matrix of ``LANES`` rows; its column maxima cost one vectorised pass.
    The k-th largest maximum is a lower bound of the k-th best score, so the best rows are in the
    few columns whose maximum reaches it.
    """
    columns = len(scores_N) // LANES
    if columns <= max(top_k, FEW_COLUMNS):
        rows_M = np.flatnonzero(scores_N > 0)
        return rank(rows_M, scores_N[rows_M], top_k)

    scores_RC = scores_N[: LANES * columns].reshape(LANES, columns)
    best_C = scores_RC.max(axis=0)
    threshold = np.partition(best_C, columns - top_k)[columns - top_k]
    top_C = np.flatnonzero((best_C >= threshold) & (best_C > 0))

    # The rows of these columns, and those behind the matrix, which has no place for the remainder.
    rows_M = (np.arange(0, LANES * columns, columns)[:, None] + top_C).ravel()
    rows_M = np.concatenate([rows_M, np.arange(LANES * columns, len(scores_N))])
    rows_M = rows_M[scores_N[rows_M] > 0]
    return rank(rows_M, scores_N[rows_M], top_k)
