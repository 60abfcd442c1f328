"""MultiHop-RAG (Tang & Yang 2024, arXiv 2401.15391): news articles and questions with evidence.

Read with the ``datasets`` library from a folder laid out as the repository ``yixuantt/MultiHopRAG``
is. Ids are positions in its files, as in the splits of the published runs. A folder with
``corpus.jsonl.gz`` and ``queries.jsonl.gz`` holds the same rows, a part of them perhaps, with ids of
its own (``doc_id`` and ``id``); other keys of a query become metadata.
"""

import datetime
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from pydantic import BaseModel, JsonValue

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.files import parse_record
from deepsearch_rl.core.records import (
    Document,
    OpenRecord,
    OptionalRowName,
    Question,
    RequiredText,
    Text,
)
from deepsearch_rl.data.flashrag import read_rows
from deepsearch_rl.data.titles import title_key

# The rows of a configuration as JSON Lines
LINES = {"corpus": "corpus.jsonl.gz", "MultiHopRAG": "queries.jsonl.gz"}

ModelT = TypeVar("ModelT", bound=BaseModel)
Fact: TypeAlias = dict[str, JsonValue]


class Article(OpenRecord):
    """A row of the configuration ``corpus``."""

    title: RequiredText
    body: RequiredText
    doc_id: OptionalRowName = None


class Query(OpenRecord):
    """A row of the configuration ``MultiHopRAG``; ``evidence_list`` is null in copies that lost the evidence."""

    id: OptionalRowName = None
    query: RequiredText
    answer: RequiredText
    question_type: Text
    evidence_list: tuple[Fact, ...] | None


def read_documents(folder: Path) -> Iterator[Document]:
    """Yield the articles, in the order of the file."""
    for number, article in enumerate(_load(folder, "corpus", Article)):
        yield Document(
            id=article.doc_id or str(number),
            contents=f"{article.title}\n{article.body}",
            metadata=article.model_extra or {},
        )


def read_questions(folder: Path) -> Iterator[Question]:
    """Yield the questions, in the order of the file; evidence names its document by title and by id."""
    # The set identifies evidence by title alone
    ids = {title_key(document.title): document.id for document in read_documents(folder)}
    for number, query in enumerate(_load(folder, "MultiHopRAG", Query)):
        evidence = query.evidence_list
        if evidence is not None:
            evidence = _with_document_ids(evidence, ids)
        own = {"question_type": query.question_type, "evidence_list": evidence}
        metadata = (query.model_extra or {}) | own
        question = {
            "id": query.id or str(number),
            "question": query.query,
            "golden_answers": [query.answer],
            "metadata": metadata,
        }
        yield Question.model_validate(question)


def _with_document_ids(facts: Iterable[Fact], ids: Mapping[str, str]) -> tuple[Fact, ...]:
    """Return a question's facts with the ids of their documents (``ids`` by title key), null if unknown."""
    completed: list[Fact] = []
    for fact in facts:
        key = title_key(str(fact.get("title")))
        completed.append({**fact, "doc_id": ids.get(key)})

    return tuple(completed)


def _load(folder: Path, configuration: str, model: type[ModelT]) -> Iterator[ModelT]:
    if (lines := folder / LINES[configuration]).is_file():
        yield from read_rows(lines, model)
        return

    # Heavy, and needed for this source alone.
    from datasets import disable_progress_bars, load_dataset  # noqa: PLC0415
    from datasets.exceptions import DatasetGenerationError  # noqa: PLC0415

    if not folder.is_dir():
        raise ArtifactError(
            f"{folder} does not exist; put a copy of the repository yixuantt/MultiHopRAG there."
        )

    disable_progress_bars()

    # The library's own cache would grow with every revision
    with tempfile.TemporaryDirectory() as cache:
        try:
            rows = load_dataset(str(folder), configuration, split="train", cache_dir=cache)
        except (ValueError, FileNotFoundError, DatasetGenerationError) as error:
            raise ArtifactError(
                f"{folder} cannot be read as configuration {configuration!r} of "
                f"yixuantt/MultiHopRAG: {error}."
            ) from error

        for number, row in enumerate(rows, 1):
            text = json.dumps(row, default=_time_text)
            yield parse_record(
                model, text, f"{folder / configuration}.json (counted in rows)", number
            )


def _time_text(time: datetime.datetime) -> str:
    """Return a time that ``datasets`` parsed as ISO 8601 text again; the file's times are UTC."""
    return time.replace(tzinfo=time.tzinfo or datetime.UTC).isoformat()
