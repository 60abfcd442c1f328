r"""Corpora and question sets in FlashRAG's layout.

    corpus     {"id", "contents": "title\ntext", "metadata"?}   or   {"id", "title", "text"}
    questions  {"id", "question", "golden_answers": [...], "metadata"?}

Keys beside these count as metadata. https://github.com/RUC-NLPIR/FlashRAG#rocket-quick-start

Files are plain or gzipped JSON Lines, or a gzipped tar of them. No file is unpacked to disk or held in memory.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import parse_record
from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.records import Document, Evidence, NonEmpty, OpenRecord, Question

LINES_PER_REPORT = 4096


class Row(OpenRecord):
    """One line; keys under ``metadata`` are moved beside ``id``, where other copies of the data have them."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: NonEmpty

    @model_validator(mode="before")
    @classmethod
    def _lift_metadata(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("metadata"), dict):
            return values["metadata"] | {key: value for key, value in values.items() if key != "metadata"}
        return values


RowT = TypeVar("RowT", bound=BaseModel)


class DocumentRow(Row):
    """A line of a corpus file, in either form."""

    contents: NonEmpty | None = None
    title: str = ""
    text: str | None = None

    @model_validator(mode="after")
    def _check_contents(self) -> Self:
        if self.contents is None and self.text is None:
            raise ValueError("neither 'contents' nor 'text' is there")
        return self

    def document(self) -> Document:
        """Return the row as a record, its other keys as metadata."""
        contents = self.contents if self.contents is not None else f"{self.title}\n{self.text}"
        return Document(id=self.id, contents=contents, metadata=self.model_extra or {})


class QuestionRow(Row):
    """A line of a question file."""

    question: NonEmpty
    golden_answers: Annotated[tuple[str, ...], Field(min_length=1)]
    question_type: str = ""
    evidence_list: tuple[Evidence, ...] | None = None

    def record(self, **details: object) -> Question:
        """Return the row as a record with ``details`` as its metadata."""
        fields = {"id": self.id, "question": self.question, "golden_answers": self.golden_answers}
        return Question.model_validate(fields | {"metadata": details})


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a corpus file; chunking checks that their ids differ."""
    return (row.document() for row in read_rows(path, DocumentRow))


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file with all their keys."""
    for row in read_rows(path, QuestionRow):
        yield row.record(question_type=row.question_type, evidence_list=row.evidence_list, **(row.model_extra or {}))


def read_rows(path: Path, model: type[RowT]) -> Iterator[RowT]:
    """Yield the rows of a file one by one; raise ArtifactError if it is missing or damaged."""
    for number, line in _read_lines(path):
        yield parse_record(model, line, path, number)


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 1) and the bytes of every line that is not blank, showing progress through the file."""
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist.")
    try:
        with path.open("rb") as raw, ProgressBar(f"read {path.name}", path.stat().st_size, "bytes") as bar:
            read_bytes = 0
            for number, line in enumerate(_unpacked_lines(raw) if path.suffix == ".gz" else raw, 1):
                if number % LINES_PER_REPORT == 0:
                    bar.advance(raw.tell() - read_bytes)
                    read_bytes = raw.tell()
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise ArtifactError(f"{path} is damaged or not complete: {error}. Delete it and get it again.") from error


def _unpacked_lines(raw: BinaryIO) -> Iterable[bytes]:
    is_tar = gzip.GzipFile(fileobj=raw).read(512)[257:262] == b"ustar"  # the magic number of a tar's first block
    raw.seek(0)
    if not is_tar:
        yield from gzip.GzipFile(fileobj=raw)
        return
    with tarfile.open(fileobj=raw, mode="r|gz") as archive:
        for member in archive:
            yield from archive.extractfile(member) or ()
