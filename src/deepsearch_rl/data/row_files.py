"""Rows of a file as numbered JSON texts: JSON Lines, a JSON array, CSV, TSV or Parquet, each plain or gzipped.

JSON, Parquet and gzip are recognised by their bytes, tables by ``.csv`` or ``.tsv`` in the name.
Everything else becomes readable with ``datasets``:

    datasets.load_dataset(NAME, split="train").to_json("rows.jsonl")
"""

import csv
import gzip
import io
import json
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.core.progress import ProgressBar

# The number of a row, from 1, and its JSON text. Text files are counted in lines, others in rows.
Row = tuple[int, bytes]

BOM = b"\xef\xbb\xbf"
LINES = "JSON Lines"
ARRAY = "a JSON array"
TABLE = "a CSV or TSV table"
PARQUET = "a Parquet file"
GZIP = "gzipped"

_GZIP_MAGIC = b"\x1f\x8b"
# Archives and compressed files whose first bytes may hold no NUL: zip, bzip2, xz, zstd, 7z
_OTHER_MAGICS = (b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf")
_READABLE = (
    "Readable are JSON Lines, JSON arrays, CSV, TSV and Parquet, each also gzipped. Unpack an archive; other formats: "
    "`datasets.load_dataset(...).to_json(FILE)` writes JSON Lines"
)
_HEAD_BYTES = 512
# Asking a file for its position takes longer than reading a short row
_ROWS_PER_REPORT = 4096
_PARQUET_BATCH = 1024


def read_numbered(path: Path) -> Iterator[Row]:
    """Yield the rows of a file one by one, without blank lines.

    Raises:
        ArtifactError: the file is missing, damaged, not readable or in another format.
        RecordError: a row of a table has too many or too few cells.
    """
    try:
        with (
            path.open("rb") as raw,
            ProgressBar(f"read {path.name}", path.stat().st_size, "bytes") as bar,
        ):
            read_bytes = 0
            for count, row in enumerate(_rows(raw, path), 1):
                if count % _ROWS_PER_REPORT == 0 and not raw.closed:
                    bar.advance(raw.tell() - read_bytes)
                    read_bytes = raw.tell()
                yield row
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it, e.g. with "
            "`iconv -f WINDOWS-1252 -t UTF-8`."
        ) from error
    except (EOFError, zlib.error, tarfile.TarError, OSError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ArtifactError(f"{path} cannot be read: {problem}.") from error


def layout_of(path: Path) -> str:
    """Return what a file is, in words; raise ArtifactError if its format is not readable."""
    with path.open("rb") as raw:
        head = raw.read(_HEAD_BYTES)
    return GZIP if head.startswith(_GZIP_MAGIC) else _layout(head, path)


def _layout(head: bytes, path: Path) -> str:
    """Return the layout of an unpacked file that begins with ``head``."""
    if head.startswith(b"PAR1"):
        return PARQUET
    if b"\0" in head or head.startswith(_OTHER_MAGICS):
        raise ArtifactError(f"{path} is neither text nor a Parquet file. {_READABLE}.")
    if {".csv", ".tsv"} & set(path.suffixes):
        return TABLE
    return ARRAY if head.removeprefix(BOM).lstrip().startswith(b"[") else LINES


def _rows(raw: io.BufferedReader, path: Path) -> Iterator[Row]:
    stream = raw
    if raw.peek(2).startswith(_GZIP_MAGIC):
        stream = io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=raw)))

    head = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
    if head[257:262] == b"ustar":
        return _tar_lines(stream)
    layout = _layout(head, path)
    if layout == PARQUET:
        return _parquet_rows(stream, path)
    if layout == TABLE:
        return _table_rows(stream, path)
    return _array_rows(stream, path) if layout == ARRAY else _lines(stream)


def _lines(stream: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(stream, 1):
        text = line.removeprefix(BOM) if number == 1 else line
        if text.strip():
            yield number, text


def _tar_lines(stream: BinaryIO) -> Iterator[Row]:
    """Yield the lines of the first file in a tar, which the hub's wiki-18.jsonl.gz is despite its name."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if lines := archive.extractfile(member):
                yield from _lines(lines)
                return


def _array_rows(stream: BinaryIO, path: Path) -> Iterator[Row]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig").read()
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(path, error.lineno, "", f"the JSON array is damaged: {error}") from error

    for number, row in enumerate(rows, 1):
        yield number, _as_json(row)


def _table_rows(stream: BinaryIO, path: Path) -> Iterator[Row]:
    # The module's limit is 128 KiB a cell, and a cell may be a whole novel
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    reader = csv.reader(text, delimiter=delimiter, strict=True)

    try:
        columns = [column.strip() for column in next(reader, [])]
        _require_distinct(columns, path)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(columns):
                problem = (
                    f"{len(cells)} cells for {len(columns)} columns; quote cells that contain the "
                    "delimiter, a quote or a newline"
                )
                raise RecordError(path, reader.line_num, "", problem)

            # pandas writes its index as a first column without a name
            row = {name: cell for name, cell in zip(columns, cells, strict=True) if name}
            yield reader.line_num, _as_json(row)
    except csv.Error as error:
        problem = f"{error}; quote cells that contain a quote, and double the quotes in them"
        raise RecordError(path, reader.line_num, "", problem) from error


def _parquet_rows(stream: BinaryIO, path: Path) -> Iterator[Row]:
    # Half a second to import, and only this format needs it
    import pyarrow  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    number = 0
    try:
        file = parquet.ParquetFile(stream)
        _require_distinct(file.schema_arrow.names, path)
        for batch in file.iter_batches(_PARQUET_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield number, _as_json(row)
    except pyarrow.ArrowException as error:
        raise ArtifactError(f"{path} cannot be read as Parquet: {error}.") from error
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"a cell has no JSON form ({error}); convert or drop its column"
        raise RecordError(path, number, "", problem) from error


def _require_distinct(columns: list[str], path: Path) -> None:
    for place, name in enumerate(columns):
        if name and name in columns[:place]:
            raise RecordError(path, 1, name, "two columns have this name; rename or drop one")


def _as_json(row: object) -> bytes:
    text = json.dumps(row, default=_iso_8601, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _iso_8601(value: object) -> str:
    """Return a date or time of a Parquet cell as text; raise TypeError for other values."""
    if isoformat := getattr(value, "isoformat", None):
        return isoformat()
    raise TypeError(f"{type(value).__name__} {value!r:.40}")
