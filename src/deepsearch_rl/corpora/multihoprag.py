"""MultiHop-RAG (Tang & Yang 2024, arXiv 2401.15391): news articles and questions with evidence.

Read with the ``datasets`` library from a folder laid out as the repository ``yixuantt/MultiHopRAG`` is. Ids are
positions in its files, as in the splits of the published runs.
"""

import datetime
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from deepsearch_rl.corpora.card import DatasetCard
from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import parse_record
from deepsearch_rl.records import Document, Evidence, NonEmpty, Question, QuestionMetadata

ModelT = TypeVar("ModelT", bound=BaseModel)


class Article(BaseModel):
    """A row of the configuration ``corpus``."""

    model_config = ConfigDict(extra="allow")

    title: NonEmpty
    body: NonEmpty


class Query(BaseModel):
    """A row of the configuration ``MultiHopRAG``; ``evidence_list`` is null in copies where the evidence got lost."""

    query: NonEmpty
    answer: NonEmpty
    question_type: str
    evidence_list: tuple[dict[str, JsonValue], ...] | None


def read_documents(folder: Path) -> Iterator[Document]:
    """Yield the articles, in the order of the file."""
    for number, article in enumerate(_load(folder, "corpus", Article)):
        yield Document(id=str(number), contents=f"{article.title}\n{article.body}", metadata=article.model_extra or {})


def read_questions(folder: Path) -> Iterator[Question]:
    """Yield the questions, in the order of the file; evidence names its document by title and by id."""
    ids = {document.title: document.id for document in read_documents(folder)}
    for number, query in enumerate(_load(folder, "MultiHopRAG", Query)):
        evidence = None
        if query.evidence_list is not None:
            facts = (fact | {"doc_id": ids.get(str(fact.get("title")))} for fact in query.evidence_list)
            evidence = tuple(map(Evidence.model_validate, facts))
        metadata = QuestionMetadata(question_type=query.question_type, evidence_list=evidence)
        yield Question(id=str(number), question=query.query, golden_answers=(query.answer,), metadata=metadata)


def _load(folder: Path, configuration: str, model: type[ModelT]) -> Iterator[ModelT]:
    # Heavy, and needed for this source alone.
    from datasets import disable_progress_bars, load_dataset  # noqa: PLC0415
    from datasets.exceptions import DatasetGenerationError  # noqa: PLC0415

    if not folder.is_dir():
        raise ArtifactError(f"{folder} does not exist; it should hold a copy of the repository yixuantt/MultiHopRAG.")
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        try:
            rows = load_dataset(str(folder), configuration, split="train", cache_dir=cache)
        except (ValueError, FileNotFoundError, DatasetGenerationError) as error:
            raise ArtifactError(
                f"{folder} cannot be read as configuration {configuration!r} of yixuantt/MultiHopRAG: {error}."
            ) from error
        for number, row in enumerate(rows, 1):
            text = json.dumps(row, default=_time_text)
            yield parse_record(model, text, f"{folder / configuration}.json (counted in rows)", number)


def _time_text(time: datetime.datetime) -> str:
    """Return a time, which ``datasets`` parses, as ISO 8601 text again (they are UTC)."""
    return time.replace(tzinfo=time.tzinfo or datetime.UTC).isoformat()


CARD = DatasetCard(
    name="multihoprag",
    holds="609 news articles, and questions over two to four of them with gold evidence",
    paper="Tang & Yang 2024, arXiv 2401.15391",
    repository="yixuantt/MultiHopRAG",
    revision="71ac0d0bd1f951d2d6b70311f7d2ae404e1ffa82",
    files=("README.md", "corpus.json", "MultiHopRAG.json"),
    licence="ODC-BY 1.0",
    sample={
        "query": "Who ...?",
        "answer": "Sam Bankman-Fried",
        "question_type": "inference_query",
        "evidence_list": [
            {"title": "...", "source": "The Verge", "published_at": "2023-10-04T12:00:00+00:00", "fact": "..."}
        ],
    },
    read_questions=read_questions,
    read_documents=read_documents,
)
