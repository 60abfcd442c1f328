"""The chunks of an index, read from their file one by one when they are needed.

``rows/offsets.npy`` of an index holds where each line of the chunk file begins, and as its last entry where the file
ends. It is memory-mapped; lines are read by position with ``pread``, which turns a file that was cut off meanwhile into
an error instead of a bus error, and does not count as this process's memory. A blank line's bytes are read with those
of the chunk above it.

Lines are this project's chunks or FlashRAG's documents (docs/contracts.md, section 2), which become one chunk each.
"""

import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.corpora.flashrag import DocumentRow
from deepsearch_rl.errors import ArtifactError, RecordError
from deepsearch_rl.files import missing, parse_record
from deepsearch_rl.records import Chunk, ChunkMetadata
from deepsearch_rl.retrieval.columns import open_column

OFFSETS_FILE = "offsets.npy"
STREAM_BUFFER_BYTES = 1 << 20
GZIP = b"\x1f\x8b"  # how a gzipped file begins
JSON_SPACE = b" \t\r\n"


class ChunkStore(Sequence[Chunk]):
    """The chunks of a file by row; iterating streams the file and holds one chunk at a time.

    Safe to use from several threads, and to hand to another process (it is opened there again).
    """

    def __init__(self, path: Path, rows_folder: Path) -> None:
        """Open a chunk file with its offsets; raise ArtifactError where one of them is missing or damaged."""
        self.path, self._rows_folder = path, rows_folder
        self._offsets_N: NDArray[np.int64] = open_column(rows_folder / OFFSETS_FILE, np.int64)
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ArtifactError(f"the chunk file {path} cannot be opened ({error.strerror}).") from error
        weakref.finalize(self, os.close, self._file)

    def __reduce__(self) -> tuple[type["ChunkStore"], tuple[Path, Path]]:
        return ChunkStore, (self.path.resolve(), self._rows_folder.resolve())

    def __len__(self) -> int:
        return len(self._offsets_N) - 1

    def __getitem__(self, index: int | slice) -> Any:
        """Return the chunk of a row, or the list of those of a slice.

        Raises:
            IndexError: there is no such row.
            ArtifactError: its line is no chunk, because the file was changed after it was indexed.
        """
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        start, end = self._offsets_N[row : row + 2].tolist()
        try:
            return parse_chunk(os.pread(self._file, end - start, start), self.path, row + 1)
        except RecordError as error:
            raise ArtifactError(
                f"{self.path} has no passage at byte {start}, where that of row {row} was: the file was changed after "
                f"it was indexed. Build the index again."
            ) from error

    def __iter__(self) -> Iterator[Chunk]:
        return read_chunks(self.path)


def read_chunks(path: Path) -> Iterator[Chunk]:
    """Yield the chunks of a file in order; blank lines are skipped.

    Raises:
        ArtifactError: the file does not exist, or is gzipped.
        RecordError: a line is neither a chunk nor a FlashRAG document.
    """
    for _, _, chunk in read_offset_chunks(path):
        yield chunk


def read_offset_chunks(path: Path) -> Iterator[tuple[int, int, Chunk]]:
    """Yield where each chunk's line begins and ends in the file, and the chunk."""
    if not path.is_file():
        raise ArtifactError(missing(path))
    start = 0
    with path.open("rb", buffering=STREAM_BUFFER_BYTES) as lines:
        if lines.read(len(GZIP)) == GZIP:
            raise ArtifactError(f"{path} is gzipped; unpack it (`gunzip -k`), since its lines are read by position.")
        lines.seek(0)
        for number, line in enumerate(lines, 1):
            end = start + len(line)
            if line.strip(JSON_SPACE):
                yield start, end, parse_chunk(line, path, number)
            start = end


def parse_chunk(line: bytes, path: Path, number: int) -> Chunk:
    """Return a line of a chunk file, or of FlashRAG's layout, as a chunk; a RecordError names file, line, field."""
    # Inside a JSON string the quotes would be escaped, so this finds the key (or an equal value) and nothing else.
    if b'"doc_chunk_id"' in line:
        return parse_record(Chunk, line, path, number)
    document = parse_record(DocumentRow, line, path, number).document()
    metadata = document.metadata | {"doc_id": document.id, "doc_chunks": 1, "doc_chunk_id": 0}
    return Chunk(id=document.id, contents=document.contents, metadata=ChunkMetadata.model_validate(metadata))
