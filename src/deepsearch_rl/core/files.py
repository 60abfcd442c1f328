"""Reading and writing of artifacts, whole or not at all.

Logs of a running stage grow line by line and survive a kill (:class:`AppendLog`). Only one process
at a time makes an artifact (:func:`only_writer`). Every reader names file, line and field of what
it refuses.
"""

import contextlib
import glob
import hashlib
import itertools
import json
import logging
import os
import platform
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from deepsearch_rl.core.errors import ArtifactError, ConfigError, RecordError, full_disk_named
from deepsearch_rl.core.records import Chunk, Document, Question, Trajectory

ModelT = TypeVar("ModelT", bound=BaseModel)
IdentifiedT = TypeVar("IdentifiedT", Document, Chunk, Question, Trajectory)

# What is read at once to find the end of a log: longer than most lines
TAIL_BYTES = 65_536

# Where a process's number says whether it runs: containers may share a name, and have numbers of
# their own.
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_PLACE = [platform.node(), str(_PID_NAMESPACE.readlink()) if _PID_NAMESPACE.is_symlink() else ""]
_MACHINE = hashlib.sha256("/".join(_PLACE).encode()).hexdigest()[:8]

# Threads of one process write the same path, too.
_WRITES = itertools.count()
_LOG = logging.getLogger(__name__)


def parse_record(model: type[ModelT], line: str | bytes, path: Path | str, number: int) -> ModelT:
    """Parse one JSON line.

    Raise RecordError with ``path``, ``number`` and the first field that does not fit.
    """
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise RecordError(path, number, *first_problem(error)) from error


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the dotted path of the first field that does not fit, and what is wrong with it.

    The path is empty where it is the whole record.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    parts = [str(part) for part in first["loc"]]
    # A validator of a model is part of the path where the model is one of several choices.
    field = ".".join(part for part in parts if not part.startswith("function-"))
    return field, first["msg"]


def read_jsonl(path: Path, model: type[ModelT]) -> Iterator[ModelT]:
    """Yield the records of :func:`numbered_records` without their line numbers."""
    return (record for _, record in numbered_records(path, model))


def numbered_records(path: Path, model: type[ModelT]) -> Iterator[tuple[int, ModelT]]:
    """Yield line numbers, from 1, and records of a JSON Lines file.

    Raise ArtifactError where there is no such file.
    """
    if not path.is_file():
        raise ArtifactError(missing(path))

    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, parse_record(model, line, path, number)


def read_distinct(path: Path, model: type[IdentifiedT]) -> Iterator[IdentifiedT]:
    """Yield the records of :func:`read_jsonl`; raise as :func:`distinct`."""
    return distinct(lambda: numbered_records(path, model), path)


def distinct(
    read: Callable[[], Iterable[tuple[int, IdentifiedT]]], path: Path
) -> Iterator[IdentifiedT]:
    """Yield the records of the numbered lines that ``read`` returns, which is called again where an id is repeated.

    Raises RecordError behind the last record where a line has the id of an earlier one.
    """
    ids = DistinctIds()
    for _, record in read():
        ids.add(record.id)
        yield record

    ids.check(((number, record.id) for number, record in read()), path)


class DistinctIds:
    """Ids of which only hashes are kept, 8 bytes each: a corpus may have 21 million of them."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, name: str) -> None:
        """Note an id."""
        self._hashes.append(hash(name))

    def check(self, numbered_ids: Iterable[tuple[int, str]], path: Path) -> None:
        """Raise RecordError where an id was noted twice; ``numbered_ids`` are read again only to find its lines."""
        sorted_N = np.sort(np.frombuffer(self._hashes, np.int64))
        repeated = set(sorted_N[1:][sorted_N[1:] == sorted_N[:-1]].tolist())
        if not repeated:
            return

        # Different ids may share a hash, so the texts decide.
        lines: dict[str, int] = {}
        for number, name in numbered_ids:
            if hash(name) not in repeated:
                continue

            first = lines.setdefault(name, number)
            if first != number:
                problem = f"{name!r} is the id of line {first}, too; remove one of them"
                raise RecordError(path, number, "id", problem)


def at_least_one(records: Iterable[ModelT], problem: str) -> Iterator[ModelT]:
    """Yield the records; raise ArtifactError with ``problem`` at the end where there was none."""
    record = None
    for record in records:
        yield record

    if record is None:
        raise ArtifactError(problem)


def missing(path: Path) -> str:
    """Return the error text about a file that does not exist."""
    return f"{path} does not exist; check the path, or run the stage that makes it (`dvc repro`)."


def write_jsonl(path: Path, records: Iterable[BaseModel]) -> int:
    """Write records as JSON Lines (UTF-8, one rename at the end) and return how many there were."""
    count = 0
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8") as out:
        for record in records:
            out.write(record.model_dump_json(exclude_none=True) + "\n")
            count += 1

    return count


def read_json(path: Path) -> Any:
    """Load a JSON file; raise ArtifactError if the file is missing or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(missing(path)) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} is not valid JSON: {error}.") from error


def read_record(path: Path, model: type[ModelT]) -> ModelT:
    """Return the record of a JSON file.

    Raise ArtifactError with the first field that does not fit ``model``.
    """
    value = read_json(path)

    try:
        return model.model_validate(value)
    except ValidationError as error:
        field, problem = first_problem(error)

        raise ArtifactError(
            f"{path}, field {field!r}: {problem}; fix it or, if a stage makes it, run that stage again."
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with sorted keys, by one rename."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    with atomic_file(path) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a hidden neighbour to write to; it becomes ``path`` when the block ends without an error.

    Each writer has a neighbour of its own. Of two that write the same path at once, the last one's
    file stays, whole. Raises ArtifactError with ``path`` where its disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partials(path)
    partial = path.with_name(f".{path.name}.{_MACHINE}-{os.getpid()}-{next(_WRITES)}.partial")

    try:
        with full_disk_named(path):
            yield partial

            # The name must not be on disk before the bytes are.
            _flush(partial)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partials(path: Path) -> None:
    """Remove what killed writers of ``path`` on this machine have left beside it."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{_MACHINE}-*.partial"):
        process = leftover.name.removesuffix(".partial").split("-")[-2]
        if not psutil.pid_exists(int(process)):
            leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield an empty hidden neighbour to fill; it replaces ``path`` when the block ends without an error.

    Where ``path`` leads through a link, the folder behind it is replaced. What was there before
    stands aside for a moment; where a kill comes between, it is put back when ``path`` is next
    made. Raises ConfigError if ``path`` is the working directory or holds it, or if another process
    or thread is making it; ArtifactError with ``path`` where its disk is full.
    """
    path = path.resolve()
    if Path.cwd().is_relative_to(path):
        fix = "name a folder inside it"
        raise ConfigError(f"{path} holds the working directory, so it cannot be replaced; {fix}.")

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    earlier = path.with_name(f".{path.name}.earlier")

    def put_back() -> None:
        if earlier.exists() and not path.exists():
            earlier.rename(path)

    with full_disk_named(path), only_writer(partial):
        # What a killed process has left
        put_back()
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)
        partial.mkdir()

        try:
            yield partial

            # All bytes are on disk before the name is: after a power cut the folder is complete, or
            # is not there.
            for path_inside in (*partial.rglob("*"), partial):
                if not path_inside.is_symlink() and (path_inside.is_file() or path_inside.is_dir()):
                    _flush(path_inside)

            # A rename takes a moment. Removing a large folder takes long, and half of it would be
            # there meanwhile.
            if path.exists():
                path.rename(earlier)

            partial.replace(path)
            _flush(path.parent)
        finally:
            put_back()
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(earlier, ignore_errors=True)


def _flush(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold the right to make ``path``, which a killed holder loses.

    Raise ConfigError with the process that has it.
    """
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
        # Before it is released: the next holder makes a new file.
        lock_path.unlink(missing_ok=True)
        lock.release()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def file_digests(folder: Path) -> dict[str, str]:
    """Hex SHA-256 of every file below a folder, by its path from there.

    Empty where there is no such folder.
    """
    digests: dict[str, str] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            digests[path.relative_to(folder).as_posix()] = sha256_file(path)

    return digests


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class AppendLog:
    """An append-only JSON Lines file that a killed writer can continue.

    Opening it cuts off a last line that was not finished, so that its record is made again. Every
    :meth:`append` is flushed to the operating system before it returns.
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
        """Return where the last finished line ends, in bytes."""
        # Block by block from the end, because not every disk can be mapped.
        last_block = (size - 1) // TAIL_BYTES * TAIL_BYTES
        for start in range(last_block, -1, -TAIL_BYTES):
            self._file.seek(start)
            newline = self._file.read(TAIL_BYTES).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1

        return 0

    def append(self, record: BaseModel) -> int:
        """Write one record as one line and return where in the file it begins, in bytes."""
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
