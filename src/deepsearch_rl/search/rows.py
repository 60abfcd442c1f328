"""The rows of an index: chunks, read from their file one by one, and columns of what filters ask for.

    rows/offsets.npy     int64 N+1: where the row's line begins in the chunk file; last, where the file ends
    rows/source.npy      int32 N: position of the chunk's ``source`` in sources.json, -1 where it names none
    rows/day.npy         int32 N: days from 1970-01-01 to ``published_at``, the smallest int32 where that is unknown
    rows/sources.json    the sources in the order in which they first occur

Lines of a chunk file are this project's chunks or documents (docs/contracts.md, section 2), which
become one chunk each. They are read with ``pread``: a file that was cut off meanwhile is an error
instead of a bus error. A filter is a mask over rows, which retrievers are given before they rank.
"""

import json
import logging
import os
import struct
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray
from pydantic import Field, JsonValue, model_validator
from pydantic_core import from_json

from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.core.files import DistinctIds, missing, parse_record, read_json
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Chunk, ChunkMetadata, NonEmpty, Record, is_missing
from deepsearch_rl.data.flashrag import DocumentRow, parse_row
from deepsearch_rl.data.row_files import BOM, GZIP, LINES, layout_of
from deepsearch_rl.search.dates import EPOCH, UNKNOWN_DAY, parse_day

ScalarT = TypeVar("ScalarT", bound=np.generic)
BUFFER_BYTES = 1 << 19
OFFSETS_FILE = "offsets.npy"
STREAM_BUFFER_BYTES = 1 << 20
JSON_SPACE = b" \t\r\n"
UNKNOWN_SOURCE = -1
# Unreadable dates that a warning names, and how much of one
LISTED = 5
MAX_DATE_CHARS = 40
_LOG = logging.getLogger(__name__)


class GrowingArray:
    """Appends scalars to a column whose length is known only at the last row; use as a context manager.

    The header, to which NumPy gives one size whatever the length, is a placeholder until the block
    ends without an error.
    """

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._pack = struct.Struct(self._dtype.char).pack
        self._rows = 0
        self._file = path.open("wb", BUFFER_BYTES)
        self._write_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if error is None:
                self._file.seek(0)
                self._write_header()

    def _write_header(self) -> None:
        header = {
            "descr": npy.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._rows,),
        }
        npy.write_array_header_1_0(self._file, header)

    def append(self, value: int) -> None:
        """Add one row."""
        self._file.write(self._pack(value))
        self._rows += 1

    def extend(self, values_N: NDArray[np.generic]) -> None:
        """Add N rows."""
        # Not tofile: its error of a full disk carries no errno.
        self._file.write(np.ascontiguousarray(values_N, dtype=self._dtype).data)
        self._rows += len(values_N)


def open_column(path: Path, dtype: type[ScalarT]) -> NDArray[ScalarT]:
    """Map a column as a plain array; raise ArtifactError where it is missing or damaged."""
    try:
        column_N = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}); build the index again.") from error

    if column_N.dtype != np.dtype(dtype) or column_N.ndim != 1:
        raise ArtifactError(f"{path} is not a column of {np.dtype(dtype)}; build the index again.")

    # Slices of np.memmap cost microseconds each, those of a plain array do not.
    return np.asarray(column_N)


class ChunkStore(Sequence[Chunk]):
    """The chunks of a file by row; iterating streams the file and holds one chunk at a time.

    Safe to use from several threads, and to hand to another process (it is opened there again).
    """

    def __init__(self, path: Path, rows_folder: Path) -> None:
        """Open a chunk file with its offsets; raise ArtifactError where one of them is missing or damaged."""
        self.path = path
        self._rows_folder = rows_folder
        self._offsets_N: NDArray[np.int64] = open_column(rows_folder / OFFSETS_FILE, np.int64)

        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ArtifactError(
                f"the chunk file {path} cannot be opened ({error.strerror})."
            ) from error

        weakref.finalize(self, os.close, self._file)

    def __reduce__(self) -> tuple[type["ChunkStore"], tuple[Path, Path]]:
        return ChunkStore, (self.path.resolve(), self._rows_folder.resolve())

    def __len__(self) -> int:
        return len(self._offsets_N) - 1

    def __getitem__(self, index: int | slice) -> Any:
        """Return the chunk of a row, or a list; raise ArtifactError where the file was changed after it was indexed."""
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        start, end = self._offsets_N[row : row + 2].tolist()

        try:
            return parse_chunk(os.pread(self._file, end - start, start), self.path, row + 1)
        except RecordError as error:
            raise ArtifactError(
                f"{self.path} has no passage at byte {start}, where that of row {row} was: the "
                "file was changed after it was indexed. Build the index again."
            ) from error

    def __iter__(self) -> Iterator[Chunk]:
        return (chunk for _, _, chunk in read_chunks(self.path))


def read_chunks(path: Path) -> Iterator[tuple[int, int, Chunk]]:
    """Yield where each chunk's line begins and ends in a file, and the chunk; blank lines are skipped.

    Raises:
        ArtifactError: the file does not exist, or is not plain JSON Lines.
        RecordError: a line is neither a chunk nor a document.
    """
    return ((start, end, chunk) for _, start, end, chunk in _numbered_chunks(path))


def _numbered_chunks(path: Path) -> Iterator[tuple[int, int, int, Chunk]]:
    """Yield the number of each chunk's line before what :func:`read_chunks` yields."""
    if not path.is_file():
        raise ArtifactError(missing(path))
    _require_lines(path)
    start = 0

    with path.open("rb", buffering=STREAM_BUFFER_BYTES) as lines:
        for number, line in enumerate(lines, 1):
            end = start + len(line)
            if line.strip(JSON_SPACE):
                yield number, start, end, parse_chunk(line, path, number)
            start = end


def _require_lines(path: Path) -> None:
    """Raise ArtifactError with what to do where a file is not plain JSON Lines."""
    layout = layout_of(path)
    if layout == GZIP:
        raise ArtifactError(
            f"{path} is gzipped; unpack it (`gunzip -k`): its lines are read by position."
        )

    if layout != LINES:
        raise ArtifactError(
            f"{path} is {layout}, and passages are read by their position in JSON Lines; write them so with "
            f"`deepsearch retrieve convert {path} {path.with_suffix('.jsonl').name}`."
        )


def parse_chunk(line: bytes, path: Path, number: int) -> Chunk:
    """Return a line of a chunk file, or a document, as a chunk; a RecordError names file, line and field."""
    line = line.removeprefix(BOM)

    # A look at the bytes, so that few lines are parsed twice. Inside a JSON string the quotes would
    # be escaped, so this finds the key (or an equal value) and nothing else.
    if b'"doc_chunk_id"' in line and _is_chunk(line):
        return parse_record(Chunk, line, path, number)

    document = parse_row(DocumentRow, line, path, number).document()
    metadata = ChunkMetadata.of(document, 1, 0)
    return Chunk(id=document.id, contents=document.contents, metadata=metadata)


def _is_chunk(line: bytes) -> bool:
    """Return whether a line has the metadata of a chunk: a document may have a key of such a name as well."""
    # The reader of documents says what is wrong with a line that is no JSON.
    try:
        values = from_json(line)
    except ValueError:
        return False

    metadata = values.get("metadata") if isinstance(values, dict) else None
    if not isinstance(metadata, dict):
        return False
    return len(ChunkMetadata.model_fields.keys() & metadata.keys()) > 1


class Filter(Record):
    """Which rows may be found. A row without the field does not match a filter on it."""

    source: NonEmpty | None = Field(default=None, description="the chunk's `source`, exactly")
    after: date | None = Field(default=None, description="published on this day or later")
    before: date | None = Field(default=None, description="published on this day or earlier")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.after and self.before and self.after > self.before:
            raise ValueError(
                f"after ({self.after}) is later than before ({self.before}), so nothing could match"
            )

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
        source_N = open_column(folder / "source.npy", np.int32)
        day_N = open_column(folder / "day.npy", np.int32)
        if len(source_N) != len(day_N):
            raise ArtifactError(f"the columns in {folder} differ in length; build the index again.")
        return cls(source_N, sources, day_N)

    @property
    def undated(self) -> int:
        """Rows that no filter by date finds."""
        return int(np.count_nonzero(self.day_N == UNKNOWN_DAY))

    def mask(self, where: Filter) -> NDArray[np.bool_]:
        """Return which of the N rows match; both bounds belong to the range."""
        allowed_N = np.ones(len(self.day_N), dtype=np.bool_)
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
    """Write the columns of a chunk file to a new folder and return its number of rows.

    Raise as :func:`read_chunks`, and RecordError where a line has the id of an earlier one.
    """
    folder.mkdir()
    codes: dict[str, int] = {}
    ids = DistinctIds()
    unreadable = Counter[str]()
    end = 0

    # A missing file is reported by the reader, with what to do.
    size_bytes = chunks_path.stat().st_size if chunks_path.is_file() else 0

    with (
        ProgressBar("read chunks", size_bytes, "bytes") as bar,
        GrowingArray(folder / OFFSETS_FILE, np.int64) as offsets,
        GrowingArray(folder / "source.npy", np.int32) as sources,
        GrowingArray(folder / "day.npy", np.int32) as days,
    ):
        for start, end, chunk in read_chunks(chunks_path):
            ids.add(chunk.id)
            offsets.append(start)
            metadata = chunk.metadata.model_extra or {}
            sources.append(_source_code(metadata.get("source"), codes))
            published_at = metadata.get("published_at")
            day = parse_day(published_at)
            days.append(day)
            if day == UNKNOWN_DAY and not is_missing(published_at):
                unreadable[str(published_at)[:MAX_DATE_CHARS]] += 1
            bar.advance(end - start)

        offsets.append(end)

    _warn_of_undated(unreadable, len(ids), chunks_path)
    names = json.dumps(list(codes), ensure_ascii=False)
    (folder / "sources.json").write_text(f"{names}\n", encoding="utf-8")

    # The file is read again only where two hashes of ids are equal.
    numbered_ids = ((number, chunk.id) for number, _, _, chunk in _numbered_chunks(chunks_path))
    ids.check(numbered_ids, chunks_path)
    return len(ids)


def _warn_of_undated(unreadable: Counter[str], rows: int, path: Path) -> None:
    if unreadable:
        named = ", ".join(repr(text) for text, _ in unreadable.most_common(LISTED))
        _LOG.warning(
            "%s: %d of %d passages have a published_at that is no date (%s), and no filter by date finds "
            "them; write it as YYYY-MM-DD",
            path,
            unreadable.total(),
            rows,
            named,
        )


def _source_code(source: JsonValue, codes: dict[str, int]) -> int:
    """Return the code of a chunk's source, a new one for a name that ``codes`` does not have."""
    if not isinstance(source, str) or not source:
        return UNKNOWN_SOURCE
    return codes.setdefault(source, len(codes))
