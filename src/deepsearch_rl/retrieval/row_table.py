"""Source and date of every row of an index, as columns, and filters over them.

    rows/offsets.npy     int64 N+1: where the row's line begins in the chunk file; last, where the file ends
    rows/source.npy      int32 N: position of the chunk's ``source`` in sources.json, -1 where it names none
    rows/day.npy         int32 N: days from 1970-01-01 to ``published_at``, the smallest int32 where that is unknown
    rows/sources.json    the sources in the order in which they first occur

A filter is a mask over rows, which retrievers are given before they rank, so that ten allowed rows are found as well
among 21 million as among twenty.
"""

import contextlib
import json
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue, model_validator

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import read_json
from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.records import NonEmpty, Record
from deepsearch_rl.retrieval.chunk_store import OFFSETS_FILE, read_offset_chunks
from deepsearch_rl.retrieval.columns import GrowingArray, open_column

UNKNOWN_SOURCE = -1
UNKNOWN_DAY = int(np.iinfo(np.int32).min)
EPOCH = date(1970, 1, 1)
COUNTED_AT_ONCE = 10_000


class Filter(Record):
    """Which rows may be found. A row without the field does not match a filter on it."""

    source: NonEmpty | None = Field(default=None, description="the chunk's `source`, exactly")
    after: date | None = Field(default=None, description="published on this day or later")
    before: date | None = Field(default=None, description="published on this day or earlier")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.after and self.before and self.after > self.before:
            raise ValueError(f"after ({self.after}) is later than before ({self.before}), so nothing could match")
        return self


@dataclass(frozen=True, slots=True)
class RowTable:
    """The columns of an index, memory-mapped; the module tells what they hold."""

    source_N: NDArray[np.int32]
    sources: tuple[str, ...]
    day_N: NDArray[np.int32]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open what :func:`write_rows` wrote; raise ArtifactError where a file is missing or damaged."""
        sources = tuple(str(source) for source in read_json(folder / "sources.json"))
        source_N, day_N = (open_column(folder / name, np.int32) for name in ("source.npy", "day.npy"))
        if len(source_N) != len(day_N):
            raise ArtifactError(f"the columns in {folder} differ in length; build the index again.")
        return cls(source_N, sources, day_N)

    def __len__(self) -> int:
        return len(self.day_N)

    def mask(self, where: Filter) -> NDArray[np.bool_]:
        """Return which of the N rows match; both bounds belong to the range."""
        allowed_N = np.ones(len(self), dtype=np.bool_)
        if where.source is not None:
            # -2 is no row's: a source that the corpus does not have.
            code = self.sources.index(where.source) if where.source in self.sources else -2
            allowed_N &= self.source_N == code
        if where.after is not None:
            allowed_N &= self.day_N >= (where.after - EPOCH).days
        if where.before is not None:
            allowed_N &= (self.day_N <= (where.before - EPOCH).days) & (self.day_N != UNKNOWN_DAY)
        return allowed_N


def write_rows(chunks_path: Path, folder: Path) -> int:
    """Read a chunk file once, write the columns of its rows to a new folder, and return how many rows there are.

    Raises:
        ArtifactError: the file is missing.
        RecordError: a line of it is not a chunk.
    """
    folder.mkdir()
    codes: dict[str, int] = {}
    size_bytes = chunks_path.stat().st_size if chunks_path.is_file() else 0
    rows, counted = 0, 0
    with (
        ProgressBar("read chunks", size_bytes, "bytes") as bar,
        GrowingArray(folder / OFFSETS_FILE, np.int64) as offsets,
        GrowingArray(folder / "source.npy", np.int32) as sources,
        GrowingArray(folder / "day.npy", np.int32) as days,
    ):
        end = 0
        for start, end, chunk in read_offset_chunks(chunks_path):
            offsets.append(start)
            metadata = chunk.metadata.model_extra or {}
            source = metadata.get("source")
            sources.append(codes.setdefault(source, len(codes)) if isinstance(source, str) else UNKNOWN_SOURCE)
            days.append(parse_day(metadata.get("published_at")))
            rows += 1
            if rows % COUNTED_AT_ONCE == 0:
                bar.advance(end - counted)
                counted = end
        offsets.append(end)
        bar.advance(size_bytes - counted)
    (folder / "sources.json").write_text(json.dumps(list(codes), ensure_ascii=False) + "\n", encoding="utf-8")
    return rows


def parse_day(published_at: JsonValue) -> int:
    """Return the days from 1970-01-01 to an ISO 8601 date or time, its zone ignored; UNKNOWN_DAY for anything else."""
    with contextlib.suppress(ValueError):
        if isinstance(published_at, str):
            return (datetime.fromisoformat(published_at).date() - EPOCH).days
    return UNKNOWN_DAY
