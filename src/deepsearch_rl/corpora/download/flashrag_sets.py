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
from deepsearch_rl.corpora.reading.flashrag import QuestionRow, read_rows


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
        titles = (
            facts.title if isinstance(facts, SupportingFacts) else [title for title, _ in facts]
        )
        return tuple(dict.fromkeys(titles)) or self.supporting_titles or ()


class HotpotContext(HotpotDetails):
    """The same with the paragraphs."""

    context: Context | tuple[tuple[Text, tuple[Text, ...]], ...] = ()

    def paragraphs(self) -> Iterator[tuple[str, str]]:
        """Yield titles and texts."""
        context = self.context
        pairs = (
            zip(context.title, context.sentences, strict=True)
            if isinstance(context, Context)
            else context
        )
        for title, sentences in pairs:
            yield title, " ".join(map(str.strip, sentences))


def read_hotpotqa(path: Path) -> Iterator[Question]:
    """Yield the questions of a HotpotQA or 2WikiMultihopQA file; ``question_type`` is the set's own ``type``."""
    for row in read_rows(path, QuestionRow[HotpotDetails]):
        details = row.metadata
        yield row.record(
            QuestionMetadata(question_type=details.type, supporting_titles=details.gold_titles)
        )


def read_hotpotqa_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    rows = read_rows(path, QuestionRow[HotpotContext])
    return _paragraphs(path, (pair for row in rows for pair in row.metadata.paragraphs()))


def _paragraphs(path: Path, paragraphs: Iterable[tuple[str, str]]) -> Iterator[Document]:
    distinct = dict.fromkeys(f"{title}\n{text}" for title, text in paragraphs if text.strip())
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
        given = [
            hop.support_paragraph for hop in self.question_decomposition if hop.support_paragraph
        ]
        by_number = {
            paragraph.idx: paragraph for paragraph in self.paragraphs if paragraph.idx is not None
        }
        numbers = [hop.paragraph_support_idx for hop in self.question_decomposition]
        named = [
            by_number[number] for number in numbers if number is not None and number in by_number
        ]
        return (
            given
            or named
            or [paragraph for paragraph in self.paragraphs if paragraph.is_supporting]
        )

    @property
    def gold_titles(self) -> tuple[str, ...]:
        """The titles of the gold paragraphs, each once."""
        titles = dict.fromkeys(
            paragraph.title for paragraph in self.gold_paragraphs if paragraph.title
        )
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
    details = (row.metadata for row in read_rows(path, QuestionRow[MusiqueDetails]))
    paragraphs = (
        paragraph for each in details for paragraph in each.paragraphs or each.gold_paragraphs
    )
    return _paragraphs(
        path, ((paragraph.title, paragraph.paragraph_text) for paragraph in paragraphs)
    )


def read_typed(question_type: str, path: Path) -> Iterator[Question]:
    """Yield the questions of a file that are all of one type, with their other keys."""
    for row in read_rows(path, QuestionRow[QuestionMetadata]):
        yield row.record(row.metadata.model_copy(update={"question_type": question_type}))
