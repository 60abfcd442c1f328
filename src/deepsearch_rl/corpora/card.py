"""Source, licence, a sample row and the readers of a public data set."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from deepsearch_rl.records import Document, Question


@dataclass(frozen=True, slots=True)
class DatasetCard:
    """The facts that are stated beside the readers of a data set, and these readers."""

    name: str
    """Its ``format`` in ``download.folder``."""
    holds: str
    paper: str
    repository: str
    """On the Hugging Face hub."""
    revision: str | None
    """Commit that the readers were written for; None where none was seen, so that one must be chosen."""
    files: tuple[str, ...]
    """Paths in the repository that the readers read; empty where they were not seen there."""
    licence: str
    sample: Mapping[str, JsonValue]
    """A row in the form that the files have, shortened where it is long."""
    read_questions: Callable[[Path], Iterable[Question]] | None = None
    read_documents: Callable[[Path], Iterable[Document]] | None = None
