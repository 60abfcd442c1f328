"""Question sets as their authors publish them, in tables and with keys of their own.

NQ, TriviaQA, PopQA and Bamboogle, also in FlashRAG's layout; FRAMES, whose links name the gold
articles; BrowseComp-Plus with its corpus; BEIR's queries and judgements, which have no answers and
score retrievers alone.
"""

import ast
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from deepsearch_rl.core.records import (
    Document,
    ForeignRecord,
    Question,
    QuestionMetadata,
    RequiredText,
    RowName,
    Text,
)
from deepsearch_rl.data.file_texts import front_matter
from deepsearch_rl.data.flashrag import DetailsT, QuestionRow, Row, read_rows

_LOG = logging.getLogger(__name__)
# Unknown queries that a warning names
_NAMED = 10


class PublishedRow(QuestionRow[DetailsT], Generic[DetailsT]):
    """A row of a set as published, or in FlashRAG's layout; without an id, its position is one."""

    KEYS: ClassVar[Mapping[str, str]] = {
        "question_id": "id",
        "Question": "question",
        "Prompt": "question",
        "Answer": "answer",
        "possible_answers": "golden_answers",
    }
    # Whole pages
    DROPPED: ClassVar[frozenset[str]] = frozenset({"entity_pages", "search_results"})

    id: RowName = ""

    @classmethod
    def _renamed(cls, values: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in values.items() if name not in cls.DROPPED}
        return super()._renamed({cls.KEYS.get(name, name): value for name, value in kept.items()})

    def numbered(self, position: int, metadata: QuestionMetadata) -> Question:
        """Return the row as a record with this metadata."""
        return self.model_copy(update={"id": self.id or str(position)}).record(metadata)


def read_typed(question_type: str, path: Path) -> Iterator[Question]:
    """Yield the questions of a file of NQ, TriviaQA, PopQA or Bamboogle, all of one type."""
    for position, row in enumerate(read_rows(path, PublishedRow[QuestionMetadata])):
        typed = row.metadata.model_copy(update={"question_type": question_type})
        yield row.numbered(position, typed)


def _printed_list(value: object) -> object:
    """Return a list that Python printed as a list."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError) as error:
        raise PydanticCustomError(
            "no_list", "this is no list of links as Python prints it"
        ) from error


class FramesDetails(QuestionMetadata):
    """Details of a question of FRAMES."""

    wiki_links: Annotated[tuple[RequiredText, ...], BeforeValidator(_printed_list)] = ()
    reasoning_types: Text = Field(default="", description="joined by |")


def read_frames(path: Path) -> Iterator[Question]:
    """Yield the questions of FRAMES; the articles that their links name are their gold documents."""
    for position, row in enumerate(read_rows(path, PublishedRow[FramesDetails])):
        details = row.metadata
        types = [name.strip() for name in details.reasoning_types.split("|") if name.strip()]
        kept = {
            "supporting_titles": list(dict.fromkeys(map(_title_of, details.wiki_links))) or None,
            "reasoning_types": types,
        }
        yield row.numbered(position, QuestionMetadata.model_validate(kept))


def _title_of(link: str) -> str:
    """Return the title of a Wikipedia article, or the link itself if it is none."""
    _, marker, name = link.partition("/wiki/")
    name = name.partition("#")[0].partition("?")[0]
    return unquote(name).replace("_", " ") if marker else link


class JudgedDocument(ForeignRecord):
    """A document in a row of BrowseComp-Plus."""

    docid: RowName


class BrowseCompDetails(QuestionMetadata):
    """Details of a question of BrowseComp-Plus."""

    evidence_docs: tuple[JudgedDocument, ...] = ()
    gold_docs: tuple[JudgedDocument, ...] = ()


class BrowseCompRow(PublishedRow[BrowseCompDetails]):
    """A decrypted row of BrowseComp-Plus."""

    KEYS: ClassVar[Mapping[str, str]] = {"query_id": "id", "query": "question"}
    DROPPED: ClassVar[frozenset[str]] = frozenset({"negative_docs"})

    @field_validator("question")
    @classmethod
    def _is_decrypted(cls, question: str) -> str:
        if " " not in question.strip():
            raise PydanticCustomError(
                "encrypted",
                "the rows are encrypted; decrypt them with the script of BrowseComp-Plus",
            )
        return question


def read_browsecomp(path: Path) -> Iterator[Question]:
    """Yield the questions of BrowseComp-Plus; their evidence documents are gold."""
    for position, row in enumerate(read_rows(path, BrowseCompRow)):
        documents = row.metadata.evidence_docs or row.metadata.gold_docs
        ids = tuple(dict.fromkeys(document.docid for document in documents))
        yield row.numbered(position, QuestionMetadata(supporting_doc_ids=ids or None))


class BrowseCompDocument(ForeignRecord):
    """A document of BrowseComp-Plus, whose text begins with its title as front matter."""

    docid: RowName
    text: RequiredText
    url: Text = ""


def read_browsecomp_corpus(path: Path) -> Iterator[Document]:
    """Yield the documents of BrowseComp-Plus."""
    for row in read_rows(path, BrowseCompDocument):
        title, _ = front_matter(row.text)
        yield Document(id=row.docid, contents=f"{title}\n{row.text}", metadata={"url": row.url})


class BeirQuery(Row):
    """A query of BEIR."""

    text: RequiredText


class BeirJudgement(ForeignRecord):
    """A row of BEIR's qrels."""

    query: RowName = Field(validation_alias="query-id")
    document: RowName = Field(validation_alias="corpus-id")
    score: int


def read_judged(queries: Path, qrels: Path) -> Iterator[Question]:
    """Yield the queries of BEIR; documents with a score above 0 are gold, and the answer is empty.

    Log the number of judged queries that are not in ``queries``.

    Raises:
        ArtifactError, RecordError: as :func:`.flashrag.numbered_rows`.
    """
    gold: dict[str, list[str]] = defaultdict(list)
    for row in read_rows(qrels, BeirJudgement):
        if row.score > 0:
            gold[row.query].append(row.document)

    for query in read_rows(queries, BeirQuery):
        metadata = QuestionMetadata(supporting_doc_ids=tuple(gold.pop(query.id, ())))
        yield Question(id=query.id, question=query.text, golden_answers=("",), metadata=metadata)

    if gold:
        named = ", ".join(list(gold)[:_NAMED])
        _LOG.warning("%s: %d judged queries are not in %s: %s", qrels, len(gold), queries, named)
