"""GraphRAG-Bench: a medical handbook and twenty novels (arXiv 2506.05690).

Answers are sentences, not spans, so that token F1 is low for every system and comparable only between systems. The gold
evidence is paraphrased in nearly every row, so it counts as unknown; ``evidence`` keeps it as the source has it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from deepsearch_rl.corpora.flashrag import Row, RowT, read_rows
from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.files import parse_record
from deepsearch_rl.records import Document, NonEmpty, Question, Record


class CorpusRow(Record):
    """A row of a corpus file."""

    corpus_name: NonEmpty
    context: NonEmpty


class QuestionRow(Row):
    """A row of a question file; the relations beside ``evidence`` have another name in each domain."""

    source: NonEmpty = Field(description="`corpus_name` of the document that answers it")
    question: NonEmpty
    answer: NonEmpty
    question_type: str


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a corpus file (Parquet, or JSON Lines), named as the questions' ``source`` names them."""
    for row in _read_rows(path, CorpusRow):
        yield Document(id=row.corpus_name, contents=f"{row.corpus_name}\n{row.context}")


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; an id that the source repeats gets its count as a suffix."""
    uses = Counter[str]()
    for row in _read_rows(path, QuestionRow):
        uses[row.id] += 1
        id_ = row.id if uses[row.id] == 1 else f"{row.id}-{uses[row.id]}"
        metadata = {"question_type": row.question_type, "source": row.source, **(row.model_extra or {})}
        question = {"id": id_, "question": row.question, "golden_answers": [row.answer], "metadata": metadata}
        yield Question.model_validate(question)


def _read_rows(path: Path, model: type[RowT]) -> Iterator[RowT]:
    if path.suffix != ".parquet":
        yield from read_rows(path, model)
        return
    # Half a second to import, needed for this source alone.
    import pyarrow.parquet as parquet  # noqa: PLC0415
    from pyarrow import ArrowException  # noqa: PLC0415

    try:
        rows = (row for batch in parquet.ParquetFile(path).iter_batches() for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield parse_record(model, json.dumps(row), path, number)
    except (OSError, ArrowException) as error:
        raise ArtifactError(f"{path} cannot be read as a Parquet file: {error}.") from error
