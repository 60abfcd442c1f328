"""Files of rows in the layouts that people have, read as numbered JSON texts.

    rows         JSON Lines, a JSON array, CSV or TSV with a header, Parquet, Arrow
    compressed   gzip, bzip2, xz, a zip of one file, a tar of files (a tar's files follow each other)

The bytes decide, not the name; only what stands between columns may need the name. A byte order
mark is skipped. No file is unpacked to disk, and none but a zip, Parquet or Arrow file needs to be
seekable. Anything else is named with what makes it readable.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from deepsearch_rl.core.errors import ArtifactError, RecordError
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.data.json_array import Row, read_entries
from deepsearch_rl.data.remedies import refuse_unread, require_different_columns

BOM = b"\xef\xbb\xbf"

# One block of a tar, whose magic number stands at byte 257
HEAD_BYTES = 512

# Asking a file where it stands takes longer than reading a short row.
ROWS_PER_REPORT = 4096

# Bytes of a tar's file that are read at once
STREAM_BYTES = 1 << 18

# Rows of a Parquet file that are held at a time
TABLE_ROWS = 1024

# A comma stands in texts more often than a tab, so the tab is tried first.
DELIMITERS = ("\t", ",", ";", "|")
ID_COLUMNS = {"id", "_id"}
TEXT_COLUMNS = {"text", "contents", "question"}
# Keys that hold lists and objects, which tables and copies on hubs may write as JSON text
JSON_COLUMNS = frozenset(
    {
        *("golden_answers", "answer_aliases", "metadata", "evidence_list", "evidences"),
        *("supporting_titles", "supporting_doc_ids", "supporting_facts", "context"),
        *("paragraphs", "question_decomposition"),
        *("prompt", "reward_model", "ground_truth", "extra_info"),
    }
)

LINES = "JSON Lines"
ARRAY = "a JSON array"
TABLE = "a table of CSV or TSV"
PARQUET = "a Parquet file"
ARROW = "an Arrow file"
GZIP = "gzipped"
BZIP2 = "a bzip2 file"
XZ = "an xz file"
ZIP = "a zip archive"
_MAGIC = {
    b"\x1f\x8b": GZIP,
    b"BZh": BZIP2,
    b"\xfd7zXZ\x00": XZ,
    b"PK\x03\x04": ZIP,
    b"PAR1": PARQUET,
    b"ARROW1": ARROW,
    b"\xff\xff\xff\xff": ARROW,
}


def read_numbered(path: Path) -> Iterator[Row]:
    """Yield the rows of a file one by one; blank lines are skipped but counted.

    Raises:
        ArtifactError: the file is missing, damaged, in a layout that is not read, or may not be
            read; the text says what to do.
        RecordError: a row of a table has too many or too few cells, or an entry of an array is no
            JSON.
    """
    damaged = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, OSError)

    try:
        if not path.exists():
            raise ArtifactError(f"{path} does not exist.")
        if path.is_dir():
            raise ArtifactError(f"{path} is a folder; name one file in it.")
        with (
            path.open("rb") as raw,
            ProgressBar(f"read {path.name}", path.stat().st_size, "bytes") as bar,
        ):
            read_bytes = 0
            for count, row in enumerate(_rows(raw, path, path.name), 1):
                # Asking a file where it is costs more than reading a row
                if count % ROWS_PER_REPORT == 0 and not raw.closed:
                    bar.advance(max(0, raw.tell() - read_bytes))
                    read_bytes = raw.tell()

                yield row
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start} of a block); convert "
            "it, for example with `iconv -f WINDOWS-1252 -t UTF-8`."
        ) from error
    except PermissionError as error:
        raise ArtifactError(
            f"{path} may not be read by this user; change the permissions of the file and its folders (`chmod`)."
        ) from error
    except damaged as error:
        raise ArtifactError(
            f"{path} is damaged or not complete: {error}. Delete it and get it again."
        ) from error


def layout_of(path: Path) -> str:
    """Return what a file is, in words; for text that looks like nothing else, JSON Lines.

    Raise ArtifactError where it is in a layout that is not read.
    """
    with path.open("rb") as raw:
        head = raw.read(HEAD_BYTES)
    refuse_unread(head.removeprefix(BOM), path)
    return _layout(head, path.name)


def _layout(head: bytes, name: str) -> str:
    """Return the layout of a file that begins with ``head``."""
    for magic, layout in _MAGIC.items():
        if head.startswith(magic):
            return layout

    text = head.removeprefix(BOM).lstrip()
    if text.startswith(b"["):
        return ARRAY
    if text.startswith(b"{"):
        return LINES
    return TABLE if _delimiter(text, name) else LINES


def _delimiter(head: bytes, name: str) -> str:
    """Return what stands between the columns of a table, by its header or else by its name; empty for other text."""
    header = head.splitlines()[0].decode("utf-8", "replace") if head else ""
    for delimiter in DELIMITERS:
        columns = {column.strip().strip('"') for column in header.split(delimiter)}
        if columns & ID_COLUMNS and columns & TEXT_COLUMNS:
            return delimiter

    # Not the last suffix alone, because a table may be compressed.
    suffixes = Path(name).suffixes
    if ".tsv" in suffixes:
        return "\t"
    return "," if ".csv" in suffixes else ""


def _rows(stream: Any, path: Path, name: str, is_outermost: bool = True) -> Iterator[Row]:
    """Yield the rows of a stream with ``peek`` and ``read``, which may be compressed."""
    head = bytes(stream.peek(HEAD_BYTES)[:HEAD_BYTES])

    # The magic number of a tar's first block
    if head[257:262] == b"ustar":
        yield from _rows_of_tar(stream, path)
        return

    refuse_unread(head.removeprefix(BOM), path)
    layout = _layout(head, name)
    if layout in (ZIP, PARQUET, ARROW) and not is_outermost:
        raise ArtifactError(f"{path} holds {layout} in another archive; unpack it first.")
    if layout in _UNPACKERS:
        yield from _rows(_UNPACKERS[layout](stream), path, name, is_outermost=False)
    elif layout == ZIP:
        yield from _rows_of_zip(stream, path)
    elif layout in (PARQUET, ARROW):
        yield from _rows_of_columns(path, layout)
    else:
        yield from _rows_of_text(stream, path, name, head)


def _lines(stream: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(stream, 1):
        text = line.removeprefix(BOM) if number == 1 else line
        if text.strip():
            yield number, text


def _rows_of_tar(stream: BinaryIO, path: Path) -> Iterator[Row]:
    """Yield the rows of a tar's files, counted through."""
    before = 0
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            # None for a folder or a link
            content = archive.extractfile(member)
            # What a Mac knows of a file beside its bytes
            if content is None or PurePosixPath(member.name).name.startswith("._"):
                continue

            number = 0
            file = io.BufferedReader(_OneWay(content), STREAM_BYTES)
            for number, row in _rows_of_member(file, path, member.name):
                yield before + number, row
            before += number


class _OneWay(io.RawIOBase):
    """A file of a tar that is read as a stream.

    A reader of text asks whether it can seek, and tarfile's own file fails at that.
    """

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer and return their number."""
        block = self._content.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)


def _rows_of_member(file: Any, path: Path, name: str) -> Iterator[Row]:
    head = bytes(file.peek(HEAD_BYTES)[:HEAD_BYTES])
    refuse_unread(head.removeprefix(BOM), path)
    layout = _layout(head, name)
    if layout in _MAGIC.values():
        raise ArtifactError(f"{path} holds {layout} in another archive; unpack it first.")
    return _rows_of_text(file, path, name, head)


def _rows_of_text(stream: Any, path: Path, name: str, head: bytes) -> Iterator[Row]:
    """Return the rows of a stream of text that begins with ``head``."""
    layout = _layout(head, name)
    if layout == ARRAY:
        return read_entries(stream, path)
    if layout == TABLE:
        return _rows_of_table(stream, path, _delimiter(head.removeprefix(BOM).lstrip(), name))
    return _lines(stream)


def _rows_of_zip(stream: BinaryIO, path: Path) -> Iterator[Row]:
    with zipfile.ZipFile(stream) as archive:
        # A Mac adds a folder of its own to what it packs.
        names: list[str] = []
        for name in archive.namelist():
            if not name.endswith("/") and not name.startswith("__MACOSX/"):
                names.append(name)

        if any(name.startswith("xl/") for name in names):
            raise ArtifactError(f"{path} is an Excel workbook; save its sheet as CSV.")
        if len(names) != 1:
            files = ", ".join(names[:5]) or "none"
            raise ArtifactError(
                f"{path} holds {len(names)} files ({files}); unpack it (`unzip`) and name the one to read."
            )

        try:
            member = archive.open(names[0])
        except RuntimeError as error:
            # A password, or a method that the module does not know
            raise ArtifactError(
                f"{path} cannot be unpacked here ({error}); unpack it (`7z x FILE`) and name the file in it."
            ) from error

        with member:
            yield from _rows(member, path, names[0], is_outermost=False)


def _rows_of_columns(path: Path, layout: str) -> Iterator[Row]:
    # Half a second to import, needed for these layouts alone.
    import pyarrow  # noqa: PLC0415

    number = 0
    try:
        for batch in _column_batches(path, layout):
            require_different_columns(batch.schema.names, path)
            for row in _cells(batch, path, number + 1):
                number += 1
                text = json.dumps(row, default=_as_json, ensure_ascii=False)
                yield number, text.encode("utf-8", "surrogatepass")
    except (pyarrow.ArrowException, OSError) as error:
        raise ArtifactError(f"{path} cannot be read as {layout}: {error}.") from error
    except TypeError as error:
        raise RecordError(path, number, "", f"{error}; leave that column out") from error


def _cells(batch: Any, path: Path, number: int) -> list[dict[str, object]]:
    """Return the rows of a batch, whose first one has this number.

    Raise RecordError with the column that holds what Python has no value for: text that is not
    UTF-8, a year before 1.
    """
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pylist()
            except (ValueError, OverflowError) as error:
                problem = f"in this row or one of the next {batch.num_rows} a cell cannot be read ({error})"
                raise RecordError(
                    path, number, name, f"{problem}; convert the column, or leave it out"
                ) from error

        raise


def _column_batches(path: Path, layout: str) -> Iterator[Any]:
    """Yield the rows of a file of columns, some at a time; pyarrow has no types."""
    import pyarrow  # noqa: PLC0415
    from pyarrow import ipc, parquet  # noqa: PLC0415

    if layout == PARQUET:
        yield from parquet.ParquetFile(path).iter_batches(TABLE_ROWS)
        return

    # An Arrow file can be read in any order, a stream of Arrow from its beginning alone.
    with pyarrow.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            file = ipc.open_file(source)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
        else:
            source.seek(0)
            yield from ipc.open_stream(source)


def _as_json(value: object) -> object:
    """Return what JSON has for a cell of a column: dates and times as ISO 8601, pairs of a map as a list."""
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    raise TypeError(f"a cell holds {type(value).__name__}, for which JSON has no form")


def _rows_of_table(stream: BinaryIO, path: Path, delimiter: str) -> Iterator[Row]:
    """Yield the rows of a table whose first line names its columns; a row is counted by the line that it ends in."""
    # The module's own limit is 128 KiB, and a cell may be a whole novel.
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)

    try:
        columns = [column.strip() for column in next(reader)]
        if not set(columns) & (ID_COLUMNS | TEXT_COLUMNS):
            raise RecordError(
                path,
                1,
                "",
                f"no column is named id, text, contents or question, but {', '.join(columns)[:100]}; "
                "put a line with the names of the columns before the others",
            )

        require_different_columns(columns, path)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(columns):
                raise RecordError(
                    path,
                    reader.line_num,
                    "",
                    f"{len(cells)} cells for {len(columns)} columns; quote cells that hold "
                    "the delimiter, a quote or a newline",
                )

            # pandas writes its index as a first column without a name.
            row = {name: cell for name, cell in zip(columns, cells, strict=True) if name}
            line = json.dumps(row, ensure_ascii=False)
            yield reader.line_num, line.encode("utf-8", "surrogatepass")
    except csv.Error as error:
        raise RecordError(
            path,
            reader.line_num,
            "",
            f"{error}; quote cells that hold a quote, and double the quotes in them",
        ) from error


_UNPACKERS: Mapping[str, Callable[[Any], Any]] = {
    GZIP: lambda stream: gzip.GzipFile(fileobj=stream),
    BZIP2: bz2.BZ2File,
    XZ: lzma.LZMAFile,
}
