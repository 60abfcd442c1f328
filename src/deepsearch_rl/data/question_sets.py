"""HotpotQA, 2WikiMultihopQA and MuSiQue, in FlashRAG's layout and in their official files; GraphRAG-Bench.

The supporting titles are the gold of the first three. Their gold sentences are not kept as
evidence, because each set has a Wikipedia dump of its own and no other corpus contains them word
for word. The paragraphs in their rows make a small corpus: ten a question in HotpotQA (of the
full-wiki retriever, so some gold ones are missing) and 2WikiMultihopQA, twenty in the official
files of MuSiQue, the gold ones alone in FlashRAG's.

GraphRAG-Bench is a medical handbook and twenty novels (arXiv 2506.05690). Its answers are
sentences, so that token F1 is low for every system and comparable only between systems. Its
evidence is paraphrased and counts as unknown.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, JsonValue, model_validator

from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import (
    Document,
    ForeignRecord,
    Question,
    QuestionMetadata,
    Record,
    RequiredText,
    Text,
)
from deepsearch_rl.data.flashrag import QuestionRow, Row, read_rows


class SupportingFacts(ForeignRecord):
    """Parallel lists: the title of an article and the position of a sentence in it."""

    title: tuple[RequiredText, ...]


class Context(ForeignRecord):
    """Parallel lists: titles and sentences of paragraphs; 2WikiMultihopQA calls the latter ``content``."""

    title: tuple[Text, ...]
    sentences: tuple[tuple[Text, ...], ...] = Field(
        validation_alias=AliasChoices("sentences", "content")
    )

    @model_validator(mode="after")
    def _are_parallel(self) -> Self:
        if len(self.title) != len(self.sentences):
            raise ValueError(
                f"{len(self.title)} titles for the sentences of {len(self.sentences)} paragraphs"
            )

        return self


class HotpotDetails(QuestionMetadata):
    """Details of a question; the official files have lists of pairs."""

    type: Text = ""
    supporting_facts: SupportingFacts | tuple[tuple[RequiredText, int], ...] = ()

    @property
    def gold_titles(self) -> tuple[str, ...]:
        """The titles of the supporting articles, each once."""
        facts = self.supporting_facts
        titles = facts.title if isinstance(facts, SupportingFacts) else (fact[0] for fact in facts)
        return tuple(dict.fromkeys(titles)) or self.supporting_titles or ()


class HotpotContext(HotpotDetails):
    """Details of a question with its paragraphs."""

    context: Context | tuple[tuple[Text, tuple[Text, ...]], ...] = ()

    def paragraphs(self) -> Iterator[tuple[str, str]]:
        """Yield titles and texts."""
        for title, sentences in self._titled_sentences():
            yield title, " ".join(map(str.strip, sentences))

    def _titled_sentences(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        if isinstance(self.context, Context):
            return zip(self.context.title, self.context.sentences, strict=True)
        return self.context


def read_hotpotqa(path: Path) -> Iterator[Question]:
    """Yield the questions of a HotpotQA or 2WikiMultihopQA file; ``question_type`` is the set's own ``type``."""
    for row in read_rows(path, QuestionRow[HotpotDetails]):
        titles = row.metadata.gold_titles
        yield row.record(
            QuestionMetadata(question_type=row.metadata.type, supporting_titles=titles)
        )


def read_hotpotqa_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    return _distinct_paragraphs(path, _hotpotqa_paragraphs(path))


def _hotpotqa_paragraphs(path: Path) -> Iterator[tuple[str, str]]:
    for row in read_rows(path, QuestionRow[HotpotContext]):
        yield from row.metadata.paragraphs()


def _distinct_paragraphs(path: Path, paragraphs: Iterable[tuple[str, str]]) -> Iterator[Document]:
    """Yield paragraphs (title, text) as documents, numbered in the order of their first use."""
    distinct: dict[str, None] = {}
    for title, text in paragraphs:
        if text.strip():
            distinct[f"{title}\n{text}"] = None

    if not distinct:
        raise ArtifactError(
            f"{path}: these questions come without paragraphs, so they make no corpus."
        )

    for number, contents in enumerate(distinct):
        yield Document(id=str(number), contents=contents)


class Paragraph(ForeignRecord):
    """A paragraph of MuSiQue; the official files number them and mark the gold ones."""

    idx: int | None = None
    title: Text = ""
    paragraph_text: Text = ""
    is_supporting: bool = False


class Hop(ForeignRecord):
    """One step of a question's decomposition, with its gold paragraph or the paragraph's number."""

    support_paragraph: Paragraph | None = None
    paragraph_support_idx: int | None = None


class MusiqueDetails(QuestionMetadata):
    """Details of a MuSiQue question."""

    question_decomposition: tuple[Hop, ...] = ()
    paragraphs: tuple[Paragraph, ...] = ()
    answerable: bool = True

    @property
    def gold_paragraphs(self) -> list[Paragraph]:
        """The gold paragraphs in the order of the steps."""
        by_number = {paragraph.idx: paragraph for paragraph in self.paragraphs}
        of_steps: list[Paragraph] = []
        of_numbers: list[Paragraph] = []

        for hop in self.question_decomposition:
            number = hop.paragraph_support_idx
            if hop.support_paragraph:
                of_steps.append(hop.support_paragraph)
            if number is not None and number in by_number:
                of_numbers.append(by_number[number])

        # FlashRAG's rows have the paragraph in the step, official ones its number, and copies
        # without steps only the marks
        supporting = [paragraph for paragraph in self.paragraphs if paragraph.is_supporting]
        return of_steps or of_numbers or supporting

    @property
    def gold_titles(self) -> tuple[str, ...]:
        """The titles of the gold paragraphs, each once."""
        titles = dict.fromkeys(paragraph.title for paragraph in self.gold_paragraphs)
        titles.pop("", None)
        return tuple(titles) or self.supporting_titles or ()


def read_musique(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; ``question_type`` is "2_hop", "3_hop" or "4_hop" if the steps are given.

    Unanswerable questions of MuSiQue-Full have no evidence and the golden answer INSUFFICIENT;
    their ids end in ``-unanswerable``, because each has an answerable twin of the same id.
    """
    for row in read_rows(path, QuestionRow[MusiqueDetails]):
        details = row.metadata
        hops = details.question_decomposition
        question_type = f"{len(hops)}_hop" if hops else ""

        if details.answerable:
            yield row.record(
                QuestionMetadata(question_type=question_type, supporting_titles=details.gold_titles)
            )
        else:
            twin = row.model_copy(
                update={"id": f"{row.id}-unanswerable", "golden_answers": (INSUFFICIENT,)}
            )
            yield twin.record(QuestionMetadata(question_type=question_type, evidence_list=()))


def read_musique_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    return _distinct_paragraphs(path, _musique_paragraphs(path))


def _musique_paragraphs(path: Path) -> Iterator[tuple[str, str]]:
    for row in read_rows(path, QuestionRow[MusiqueDetails]):
        details = row.metadata
        for paragraph in details.paragraphs or details.gold_paragraphs:
            yield paragraph.title, paragraph.paragraph_text


def read_typed(question_type: str, path: Path) -> Iterator[Question]:
    """Yield the questions of a file, all of one type."""
    for row in read_rows(path, QuestionRow[QuestionMetadata]):
        yield row.record(row.metadata.model_copy(update={"question_type": question_type}))


class GraphragDocumentRow(Record):
    """A document."""

    corpus_name: RequiredText
    context: RequiredText


class GraphragQuestionRow(Row):
    """A question; its relations have a different key in each domain and become metadata."""

    source: RequiredText = Field(description="`corpus_name` of the document that answers it")
    question: RequiredText
    answer: RequiredText
    question_type: RequiredText
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


def read_graphrag_corpus(path: Path) -> Iterator[Document]:
    """Yield the documents of a corpus; their ids are what the questions' ``source`` names."""
    for row in read_rows(path, GraphragDocumentRow):
        yield Document(id=row.corpus_name, contents=f"{row.corpus_name}\n{row.context}")


def read_graphrag_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; a repeated id gets its count as a suffix."""
    uses = Counter[str]()
    for row in read_rows(path, GraphragQuestionRow):
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
