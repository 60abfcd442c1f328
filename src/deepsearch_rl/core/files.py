"""Reading and writing of artifacts.

Artifacts appear whole or not at all. A log grows line by line and survives a kill
(:class:`AppendLog`). Readers name file, line and field of whatever does not fit.
"""

import contextlib
import glob
import hashlib
import itertools
import json
import logging
import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import psutil
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from deepsearch_rl.core.errors import (
    ArtifactError,
    CheckFailedError,
    ConfigError,
    RecordError,
    full_disk_named,
)
from deepsearch_rl.core.records import Chunk, Document, Question, Trajectory

if TYPE_CHECKING:
    import pandas as pd
    import pandera.pandas as pa

ModelT = TypeVar("ModelT", bound=BaseModel)
IdentifiedT = TypeVar("IdentifiedT", Document, Chunk, Question, Trajectory)

# Longer than most lines of a log
TAIL_BYTES = 65_536

_LOG = logging.getLogger(__name__)
# Threads of one process may write the same path
_WRITES = itertools.count()


def parse_record(model: type[ModelT], line: str | bytes, path: Path | str, number: int) -> ModelT:
    """Parse one JSON line; raise RecordError with ``path``, ``number`` and the first field that does not fit."""
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise RecordError(path, number, *first_problem(error)) from error


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the dotted path of the first field that does not fit, empty for the whole record, and the problem."""
    first = error.errors(include_url=False, include_input=False)[0]
    parts = [str(part) for part in first["loc"]]
    # pydantic adds the validators of models in a union
    field = ".".join(part for part in parts if not part.startswith("function-"))
    return field, first["msg"]


def read_jsonl(path: Path, model: type[ModelT]) -> Iterator[ModelT]:
    """Yield the records of :func:`numbered_records` without their line numbers."""
    return (record for _, record in numbered_records(path, model))


def numbered_records(path: Path, model: type[ModelT]) -> Iterator[tuple[int, ModelT]]:
    """Yield line numbers, from 1, and records of a JSON Lines file; raise ArtifactError if it is missing."""
    if not path.is_file():
        raise ArtifactError(missing(path))

    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, parse_record(model, line, path, number)


def read_distinct(path: Path, model: type[IdentifiedT]) -> Iterator[IdentifiedT]:
    """Yield the records of :func:`read_jsonl`; raise RecordError, after the last one, for a repeated id."""
    return distinct(lambda: numbered_records(path, model), path)


def distinct(
    read: Callable[[], Iterable[tuple[int, IdentifiedT]]], path: Path
) -> Iterator[IdentifiedT]:
    """Yield the records that ``read`` returns; raise RecordError, after the last one, for a repeated id.

    ``read`` is called again to find the lines of a repeated id.
    """
    ids = DistinctIds()
    for _, record in read():
        ids.add(record.id)
        yield record

    ids.check(((number, record.id) for number, record in read()), path)


class DistinctIds:
    """A set of ids that keeps 8 bytes of each, for corpora of 21 million documents."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, name: str) -> None:
        """Add an id."""
        self._hashes.append(hash(name))

    def check(self, numbered_ids: Iterable[tuple[int, str]], path: Path) -> None:
        """Raise RecordError for an id that was added twice; ``numbered_ids`` is read only to find its lines."""
        sorted_N = np.sort(np.frombuffer(self._hashes, np.int64))
        repeated = set(sorted_N[1:][sorted_N[1:] == sorted_N[:-1]].tolist())
        if not repeated:
            return

        # Different ids may share a hash
        lines: dict[str, int] = {}
        for number, name in numbered_ids:
            if hash(name) not in repeated:
                continue

            first = lines.setdefault(name, number)
            if first != number:
                problem = f"{name!r} is the id of line {first}, too; remove one of them"
                raise RecordError(path, number, "id", problem)


def at_least_one(records: Iterable[ModelT], problem: str) -> Iterator[ModelT]:
    """Yield the records; raise ArtifactError with ``problem`` at the end if there was none."""
    record = None
    for record in records:
        yield record

    if record is None:
        raise ArtifactError(problem)


def missing(path: Path) -> str:
    """Return the error message for a file that does not exist."""
    return f"{path} does not exist; check the path, or run the stage that makes it (`dvc repro`)."


def write_jsonl(path: Path, records: Iterable[BaseModel]) -> int:
    """Write records as JSON Lines in UTF-8 and return their number."""
    count = 0
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as out:
        for record in records:
            out.write(record.model_dump_json(exclude_none=True) + "\n")
            count += 1

    return count


def read_json(path: Path) -> Any:
    """Load a JSON file; raise ArtifactError if it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(missing(path)) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} is not valid JSON: {error}.") from error


def read_record(path: Path, model: type[ModelT]) -> ModelT:
    """Return the record in a JSON file; raise ArtifactError with the first field that does not fit."""
    value = read_json(path)

    try:
        return model.model_validate(value)
    except ValidationError as error:
        field, problem = first_problem(error)

        raise ArtifactError(
            f"{path}, field {field!r}: {problem}; fix it or, if a stage makes it, run that stage again."
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with sorted keys."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    with atomic_file(path) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a hidden file to write; it becomes ``path`` when the block ends without an error.

    Each writer has its own; the last of several writers wins. Raises ArtifactError if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partials(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{next(_WRITES)}.partial")

    try:
        with full_disk_named(path):
            yield partial

            # Bytes must be on disk before the name is
            _flush(partial)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partials(path: Path) -> None:
    """Remove the hidden files that killed writers of ``path`` left beside it."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*-*.partial"):
        process = leftover.name.removesuffix(".partial").rpartition(".")[2].partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder to fill; it replaces ``path`` when the block ends without an error.

    A link at ``path`` stays; the folder behind it is replaced. If a kill comes between the two
    renames, the earlier folder is put back when ``path`` is next made.

    Raises:
        ConfigError: ``path`` contains the working directory, or another process is making it.
        ArtifactError: the disk is full.
    """
    path = path.resolve()
    if Path.cwd().is_relative_to(path):
        raise ConfigError(
            f"{path} holds the working directory, so it cannot be replaced; name a folder inside it."
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    earlier = path.with_name(f".{path.name}.earlier")

    def put_back() -> None:
        if earlier.exists() and not path.exists():
            earlier.rename(path)

    with full_disk_named(path), only_writer(partial):
        # Leftovers of a killed process
        put_back()
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)
        partial.mkdir()

        try:
            yield partial

            # Bytes must be on disk before the name is
            for path_inside in (*partial.rglob("*"), partial):
                if not path_inside.is_symlink() and (path_inside.is_file() or path_inside.is_dir()):
                    _flush(path_inside)

            # Renamed, not removed: removing a large folder takes long
            if path.exists():
                path.rename(earlier)

            partial.replace(path)
            _flush(path.parent)
        finally:
            put_back()
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(earlier, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold a lock on making ``path``; raise ConfigError with the PID of the process that holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_path = path.with_name(f".{path.name}.lock")
    lock = FileLock(lock_path, blocking=False)

    try:
        lock.acquire()
    except Timeout as error:
        holder = ""
        with contextlib.suppress(FileNotFoundError):
            holder = lock_path.read_text(encoding="utf-8").strip()

        pid = holder or "unknown: it has just begun or ended"
        raise ConfigError(
            f"another process (pid {pid}) is making {path}; let it end, or stop it, and run this again."
        ) from error

    try:
        lock_path.write_text(f"{os.getpid()}\n", encoding="utf-8")
        yield
    finally:
        # Before the release, after which the next holder makes a new file
        lock_path.unlink(missing_ok=True)
        lock.release()


def require_another_file(out: Path, sources: Iterable[Path]) -> None:
    """Raise ConfigError if a file to write is one of those that are read; either may not exist."""
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise ConfigError(f"{out} is the source itself; name another file or folder to write.")


def require_new_folder(folder: Path) -> None:
    """Raise ConfigError if writing a folder as a whole would replace a file, or a folder with files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; remove it, or name another folder.")


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def file_digests(folder: Path) -> dict[str, str]:
    """Hex SHA-256 of every file below a folder by its relative path; empty without the folder."""
    digests: dict[str, str] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            digests[path.relative_to(folder).as_posix()] = sha256_file(path)

    return digests


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_frame(frame: "pd.DataFrame", schema: "pa.DataFrameSchema", file: str) -> "pd.DataFrame":
    """Return the frame as ``schema`` reads it; raise CheckFailedError with ``file``, row (from 1) and field."""
    # Half a second to import
    import pandas as pd  # noqa: PLC0415
    from pandera.errors import SchemaErrors  # noqa: PLC0415

    try:
        return schema.validate(frame, lazy=True)
    except SchemaErrors as error:
        case = pd.DataFrame(error.failure_cases).to_dict("records")[0]
        index, check, column, value = (
            case[name] for name in ("index", "check", "column", "failure_case")
        )
        # A missing column stands in the value's place
        if column is None or check in ("column_in_dataframe", "column_in_schema"):
            column = value
            value = ""

        row = f", row {index + 1}" if isinstance(index, int) else ""
        content = f"{value!r} " if value != "" else ""
        raise CheckFailedError(
            f"{file}{row}, field {column!r}: {content}fails the check {check!r}."
        ) from error


class AppendLog:
    """An append-only JSON Lines file that a killed writer can continue.

    Opening cuts off an unfinished last line. :meth:`append` returns after the operating system has
    the line.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab+")

        size = self._file.tell()
        whole = self._end_of_lines(size)

        if whole < size:
            _LOG.warning(
                "%s ended in the middle of a line: its last %d bytes are cut off",
                path,
                size - whole,
            )
            self._file.truncate(self._file.seek(whole))

    def _end_of_lines(self, size: int) -> int:
        """Return the offset, in bytes, at which the last finished line ends."""
        last_block = (size - 1) // TAIL_BYTES * TAIL_BYTES
        for start in range(last_block, -1, -TAIL_BYTES):
            self._file.seek(start)
            newline = self._file.read(TAIL_BYTES).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1

        return 0

    def append(self, record: BaseModel) -> int:
        """Write a record as one line and return its offset in bytes."""
        offset = self._file.tell()
        self._file.write(record.model_dump_json(exclude_none=True).encode() + b"\n")
        self._file.flush()
        return offset

    def close(self) -> None:
        """Flush to disk and close."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> "AppendLog":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
