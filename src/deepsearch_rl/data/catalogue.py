"""The corpora and question sets that can be read: a reader per format, and a card of facts per public data set."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from pydantic import Field, JsonValue, TypeAdapter

from deepsearch_rl.core.profile import read_values
from deepsearch_rl.core.records import Document, NonEmpty, Question, Record
from deepsearch_rl.data import benchmarks, flashrag, multihoprag, question_sets
from deepsearch_rl.data.documents import DocumentFolder

# By name, the ``format`` in ``download.folder``
CORPUS_FORMATS: Mapping[str, Callable[[Path], Iterable[Document]]] = {
    "flashrag": flashrag.read_documents,
    "multihoprag": multihoprag.read_documents,
    "graphrag_bench": question_sets.read_graphrag_corpus,
    "wiki18": flashrag.read_documents,
    "musique_paragraphs": question_sets.read_musique_paragraphs,
    "hotpotqa_paragraphs": question_sets.read_hotpotqa_paragraphs,
    "2wikimultihopqa_paragraphs": question_sets.read_hotpotqa_paragraphs,
    "browsecomp_plus": benchmarks.read_browsecomp_corpus,
    "documents": DocumentFolder,
}
QUESTION_FORMATS: Mapping[str, Callable[[Path], Iterable[Question]]] = {
    "flashrag": flashrag.read_questions,
    "multihoprag": multihoprag.read_questions,
    "musique": question_sets.read_musique,
    "2wikimultihopqa": question_sets.read_hotpotqa,
    "hotpotqa": question_sets.read_hotpotqa,
    **dict.fromkeys(("nq", "triviaqa", "popqa"), partial(benchmarks.read_typed, "1_hop")),
    "bamboogle": partial(benchmarks.read_typed, "2_hop"),
    "frames": benchmarks.read_frames,
    "browsecomp_plus": benchmarks.read_browsecomp,
    "graphrag_bench": question_sets.read_graphrag_questions,
}

# The paragraphs that come with the questions of a format
PARAGRAPHS: Mapping[str, Callable[[Path], Iterable[question_sets.QuestionParagraphs]]] = {
    "musique": question_sets.musique_paragraphs,
    "2wikimultihopqa": question_sets.hotpotqa_paragraphs,
    "hotpotqa": question_sets.hotpotqa_paragraphs,
}


class DatasetCard(Record):
    """One public data set."""

    holds: NonEmpty
    paper: NonEmpty
    repository: NonEmpty = Field(description="on the Hugging Face hub")
    revision: str | None = Field(
        description="commit that the readers were written for; null if you have to choose one"
    )
    files: tuple[str, ...] = Field(
        description="paths in the repository that the readers read; empty if unknown"
    )
    licence: NonEmpty
    sample: dict[str, JsonValue] = Field(description="a row of the files, shortened if it is long")


CARDS: Mapping[str, DatasetCard] = TypeAdapter(dict[str, DatasetCard]).validate_python(
    read_values(Path(__file__).with_name("cards.yaml"))
)
