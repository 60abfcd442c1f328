"""HotpotQA, 2WikiMultihopQA and MuSiQue, in FlashRAG's layout and in their official files; GraphRAG-Bench.

The supporting titles are the gold of the first three. MuSiQue's decompositions and the triples of
2WikiMultihopQA become gold steps. Gold sentences are not kept as evidence, because each set has a
Wikipedia dump of its own and no other corpus contains them word for word. The paragraphs in their
rows make a small corpus: ten a question in HotpotQA (in the full-wiki setting, and so in FlashRAG's
files, those of a retriever: some gold ones are missing) and 2WikiMultihopQA, twenty in the official
files of MuSiQue, the gold ones alone in FlashRAG's. All other keys of a row become metadata.

GraphRAG-Bench is a medical handbook and twenty novels (arXiv 2506.05690). Its answers are
sentences, so that token F1 is low for every system and comparable only between systems. Its
evidence is paraphrased and counts as unknown.
"""

import html
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, JsonValue, model_validator

from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import (
    Document,
    ForeignRecord,
    GoldStep,
    OptionalText,
    Question,
    QuestionMetadata,
    Record,
    RequiredText,
    Text,
)
from deepsearch_rl.data.flashrag import QuestionRow, Row, read_rows
from deepsearch_rl.data.titles import title_key

# Of a row, beside those that have a field of their own
PARAGRAPH_KEYS = frozenset({"context", "context_doc_ids", "paragraphs"})


@dataclass(frozen=True, slots=True)
class OwnParagraph:
    """A paragraph that comes with a question, and whether the question needs it."""

    title: str
    text: str
    gold: bool

    @property
    def contents(self) -> str:
        """Title and text as a document holds them."""
        return f"{self.title}\n{self.text}"


# The id of a question, and its paragraphs, which are read during iteration
QuestionParagraphs = tuple[str, Iterable[OwnParagraph]]


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


class Triples(ForeignRecord):
    """Parallel lists of Wikidata triples, as FlashRAG writes them: subject, relation and object."""

    fact: tuple[Text, ...]
    relation: tuple[Text, ...]
    entity: tuple[Text, ...]


class HotpotDetails(QuestionMetadata):
    """Details of a question; the official files have lists of pairs and of triples."""

    type: Text = ""
    supporting_facts: SupportingFacts | tuple[tuple[RequiredText, int], ...] = ()
    evidences: Triples | tuple[tuple[Text, Text, Text], ...] = ()

    @property
    def gold_titles(self) -> tuple[str, ...]:
        """The titles of the supporting articles, each once."""
        return tuple(dict.fromkeys(self._fact_titles())) or self.supporting_titles or ()

    def steps(self) -> tuple[GoldStep, ...] | None:
        """Return the triples as steps, a subject that an earlier step found as its number; None without triples."""
        titles = self._fact_titles()
        numbers: dict[str, str] = {}
        steps: list[GoldStep] = []
        triples = self._triples()

        for place, (subject, relation, found) in enumerate(triples):
            asked = f"{numbers.get(title_key(subject), subject)} >> {relation}"
            # A triple is of the fact at its place, unless some sentence proves two
            title = titles[place] if len(titles) == len(triples) else None
            steps.append(GoldStep(question=asked, answer=found, title=title))
            numbers.setdefault(title_key(found), f"#{place + 1}")

        return tuple(steps) or None

    def _fact_titles(self) -> list[str]:
        facts = self.supporting_facts
        titles = facts.title if isinstance(facts, SupportingFacts) else [fact[0] for fact in facts]
        # The official titles of HotpotQA are escaped
        return [html.unescape(title) for title in titles]

    def _triples(self) -> list[tuple[str, str, str]]:
        triples = self.evidences
        if isinstance(triples, Triples):
            return list(zip(triples.fact, triples.relation, triples.entity, strict=True))
        return list(triples)


class HotpotContext(HotpotDetails):
    """Details of a question with its paragraphs."""

    context: Context | tuple[tuple[Text, tuple[Text, ...]], ...] = ()

    def paragraphs(self) -> Iterator[OwnParagraph]:
        """Yield the question's paragraphs."""
        gold = set(map(title_key, self.gold_titles))
        for title, sentences in self._titled_sentences():
            text = " ".join(map(str.strip, sentences))
            yield OwnParagraph(html.unescape(title), text, title_key(title) in gold)

    def _titled_sentences(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        if isinstance(self.context, Context):
            return zip(self.context.title, self.context.sentences, strict=True)
        return self.context


def read_hotpotqa(path: Path) -> Iterator[Question]:
    """Yield the questions of a HotpotQA or 2WikiMultihopQA file; ``question_type`` is the set's own ``type``."""
    for row in read_rows(path, QuestionRow[HotpotDetails]):
        details = row.metadata
        yield row.record(_metadata(details, details.type, details.gold_titles, details.steps()))


def _metadata(
    details: QuestionMetadata,
    question_type: str,
    titles: tuple[str, ...],
    steps: tuple[GoldStep, ...] | None,
) -> QuestionMetadata:
    """Return what is kept of a row: its gold and its small keys."""
    others = details.model_extra or {}
    kept = {name: value for name, value in others.items() if name not in PARAGRAPH_KEYS}
    return QuestionMetadata(
        question_type=question_type,
        supporting_doc_ids=details.supporting_doc_ids,
        supporting_titles=titles or None,
        gold_steps=steps or details.gold_steps,
        **kept,
    )


def hotpotqa_paragraphs(path: Path) -> Iterator[QuestionParagraphs]:
    """Yield ids and paragraphs of the questions of a HotpotQA or 2WikiMultihopQA file."""
    for row in read_rows(path, QuestionRow[HotpotContext]):
        yield row.id, row.metadata.paragraphs()


def read_hotpotqa_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    return _distinct_paragraphs(path, hotpotqa_paragraphs(path))


def _distinct_paragraphs(path: Path, read: Iterable[QuestionParagraphs]) -> Iterator[Document]:
    """Yield paragraphs as documents, numbered in the order of their first use."""
    distinct: dict[str, None] = {}
    for _, paragraphs in read:
        for paragraph in paragraphs:
            if paragraph.text.strip():
                distinct[paragraph.contents] = None

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

    question: OptionalText = None
    answer: OptionalText = None
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
        of_steps = [paragraph for paragraph in self._step_paragraphs() if paragraph]
        # Copies without steps have only the marks
        return of_steps or [paragraph for paragraph in self.paragraphs if paragraph.is_supporting]

    @property
    def gold_titles(self) -> tuple[str, ...]:
        """The titles of the gold paragraphs, each once."""
        titles = dict.fromkeys(paragraph.title for paragraph in self.gold_paragraphs)
        titles.pop("", None)
        return tuple(titles) or self.supporting_titles or ()

    def steps(self) -> tuple[GoldStep, ...] | None:
        """Return the decomposition; None where a step is not in words."""
        steps: list[GoldStep] = []
        hops = self.question_decomposition
        for hop, paragraph in zip(hops, self._step_paragraphs(), strict=True):
            if hop.question is None:
                return None
            title = paragraph and paragraph.title
            steps.append(GoldStep(question=hop.question, answer=hop.answer, title=title))

        return tuple(steps) or None

    def own_paragraphs(self) -> Iterator[OwnParagraph]:
        """Yield the question's paragraphs, or the gold ones where it has no others."""
        gold = self.gold_paragraphs
        for paragraph in self.paragraphs or gold:
            yield OwnParagraph(paragraph.title, paragraph.paragraph_text, paragraph in gold)

    def _step_paragraphs(self) -> list[Paragraph | None]:
        """Return the gold paragraph of each step: FlashRAG's rows hold it, official ones its number."""
        by_number = {paragraph.idx: paragraph for paragraph in self.paragraphs}
        by_number.pop(None, None)
        hops = self.question_decomposition
        return [hop.support_paragraph or by_number.get(hop.paragraph_support_idx) for hop in hops]


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
                _metadata(details, question_type, details.gold_titles, details.steps())
            )
        else:
            twin = row.model_copy(update={"id": _id(row), "golden_answers": (INSUFFICIENT,)})
            yield twin.record(QuestionMetadata(question_type=question_type, evidence_list=()))


def _id(row: QuestionRow[MusiqueDetails]) -> str:
    return row.id if row.metadata.answerable else f"{row.id}-unanswerable"


def musique_paragraphs(path: Path) -> Iterator[QuestionParagraphs]:
    """Yield ids and paragraphs of the questions of a MuSiQue file."""
    for row in read_rows(path, QuestionRow[MusiqueDetails]):
        yield _id(row), row.metadata.own_paragraphs()


def read_musique_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    return _distinct_paragraphs(path, musique_paragraphs(path))


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
