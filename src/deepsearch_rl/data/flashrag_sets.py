"""The public question sets, in FlashRAG's layout and in that of their official files.

Gold evidence counts as not known: the sentences of HotpotQA and 2WikiMultihopQA come from Wikipedia
dumps of their own, the paragraphs of MuSiQue are its own, and neither stands word for word in
another corpus. The titles of the supporting articles are kept. Other keys of rows without such
titles are kept as they are.

The rows of three sets hold paragraphs, which make a small corpus for their questions: the ten of
HotpotQA (as its full-wiki retriever found them, so that some gold ones are missing) and of
2WikiMultihopQA, and of MuSiQue the gold ones or, in its official files, all twenty.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from pydantic import AliasChoices, Field, model_validator

from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import (
    Document,
    ForeignRecord,
    Question,
    QuestionMetadata,
    RequiredText,
    Text,
)
from deepsearch_rl.data.flashrag import QuestionRow, read_rows


class SupportingFacts(ForeignRecord):
    """Parallel lists: the title of an article and the position of a sentence in it."""

    title: tuple[RequiredText, ...]


class Context(ForeignRecord):
    """Parallel lists: the titles of paragraphs and their sentences, which HotpotQA and 2WikiMultihopQA name unlike."""

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
    """What HotpotQA and 2WikiMultihopQA say about a question; the official files have lists of pairs."""

    type: Text = ""
    supporting_facts: SupportingFacts | tuple[tuple[RequiredText, int], ...] = ()

    @property
    def gold_titles(self) -> tuple[str, ...]:
        """The titles of the supporting articles, each once."""
        facts = self.supporting_facts
        titles = facts.title if isinstance(facts, SupportingFacts) else (fact[0] for fact in facts)
        return tuple(dict.fromkeys(titles)) or self.supporting_titles or ()


class HotpotContext(HotpotDetails):
    """The same with the paragraphs."""

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
    """Yield paragraphs, titles and texts, as documents, numbered in the order in which they first occur."""
    distinct: dict[str, None] = {}
    for title, text in paragraphs:
        if text.strip():
            distinct[f"{title}\n{text}"] = None

    if not distinct:
        raise ArtifactError(
            f"the questions of {path} come without paragraphs, so they make no corpus."
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
    """One step of a question's decomposition: its gold paragraph, or the number of that."""

    support_paragraph: Paragraph | None = None
    paragraph_support_idx: int | None = None


class MusiqueDetails(QuestionMetadata):
    """What MuSiQue says about a question; in the official files, ``paragraphs`` are all that come with it."""

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

        # FlashRAG's rows hold the paragraph in the step, the official ones its number. Copies
        # without the steps have the marks alone.
        supporting = [paragraph for paragraph in self.paragraphs if paragraph.is_supporting]
        return of_steps or of_numbers or supporting

    @property
    def gold_titles(self) -> tuple[str, ...]:
        """The titles of the gold paragraphs, each once."""
        titles = dict.fromkeys(paragraph.title for paragraph in self.gold_paragraphs)
        titles.pop("", None)
        return tuple(titles) or self.supporting_titles or ()


def read_musique(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; ``question_type`` is "2_hop", "3_hop" or "4_hop" where the steps are given.

    A question of MuSiQue-Full that its paragraphs do not answer has no evidence and the golden
    answer of unanswerable questions; its id ends in ``-unanswerable``, because its answerable twin
    has the same.
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
    """Yield the questions of a file that are all of one type, with their other keys."""
    for row in read_rows(path, QuestionRow[QuestionMetadata]):
        yield row.record(row.metadata.model_copy(update={"question_type": question_type}))
