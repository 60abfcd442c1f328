"""GraphRAG-Bench: a medical handbook and twenty novels (arXiv 2506.05690).

Answers are sentences, not spans, so that token F1 is low for every system and comparable only
between systems. The gold evidence is paraphrased in nearly every row, so it counts as unknown;
``evidence`` keeps it as the source has it.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, JsonValue

from deepsearch_rl.core.records import Document, Question, Record, RequiredText
from deepsearch_rl.data.flashrag import Row, read_rows


class CorpusRow(Record):
    """A row of a corpus file."""

    corpus_name: RequiredText
    context: RequiredText


class BenchQuestionRow(Row):
    """A row of a question file; the relations beside ``evidence`` have another name in each domain."""

    source: RequiredText = Field(description="`corpus_name` of the document that answers it")
    question: RequiredText
    answer: RequiredText
    question_type: RequiredText
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a corpus file, named as the questions' ``source`` names them."""
    for row in read_rows(path, CorpusRow):
        yield Document(id=row.corpus_name, contents=f"{row.corpus_name}\n{row.context}")


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; an id that the source repeats gets its count as a suffix."""
    uses = Counter[str]()
    for row in read_rows(path, BenchQuestionRow):
        uses[row.id] += 1
        id_ = row.id if uses[row.id] == 1 else f"{row.id}-{uses[row.id]}"
        metadata = {"question_type": row.question_type, "source": row.source, **row.metadata}
        question = {
            "id": id_,
            "question": row.question,
            "golden_answers": [row.answer],
            "metadata": metadata,
        }
        yield Question.model_validate(question)
