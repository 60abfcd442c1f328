"""The public question sets that are read in FlashRAG's layout.

Gold evidence counts as not known: the sentences of HotpotQA and 2WikiMultihopQA come from Wikipedia dumps of their own,
the paragraphs of MuSiQue are its own, and neither stands word for word in another corpus. The titles of the supporting
articles are kept. Other keys of rows without such titles are kept as they are.

The rows of three sets hold paragraphs, which make a small corpus for their questions: the ten of HotpotQA (as its
full-wiki retriever found them, so that some gold ones are missing) and of 2WikiMultihopQA, the gold ones of MuSiQue.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import AliasChoices, Field

from deepsearch_rl.corpora.flashrag import QuestionRow, read_rows
from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.records import Document, ForeignRecord, Question


class SupportingFacts(ForeignRecord):
    """Parallel lists: the title of an article and the position of a sentence in it."""

    title: tuple[str, ...]


class Context(ForeignRecord):
    """Parallel lists: the titles of paragraphs and their sentences, which HotpotQA and 2WikiMultihopQA name unlike."""

    title: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...] = Field(validation_alias=AliasChoices("sentences", "content"))


class HotpotRow(QuestionRow):
    """A line of HotpotQA or 2WikiMultihopQA; ``supporting_facts`` is as FlashRAG or as the original release has it."""

    type: str = ""
    supporting_facts: SupportingFacts | tuple[tuple[str, int], ...] = ()


class HotpotContextRow(HotpotRow):
    """Such a line with its paragraphs."""

    context: Context = Context(title=(), sentences=())


def read_hotpotqa(path: Path) -> Iterator[Question]:
    """Yield the questions of a HotpotQA or 2WikiMultihopQA file; ``question_type`` is the set's own ``type``."""
    for row in read_rows(path, HotpotRow):
        facts = row.supporting_facts
        titles = facts.title if isinstance(facts, SupportingFacts) else [title for title, _ in facts]
        yield row.record(question_type=row.type, supporting_titles=tuple(dict.fromkeys(titles)))


def read_hotpotqa_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    contexts = (row.context for row in read_rows(path, HotpotContextRow))
    pairs = (pair for context in contexts for pair in zip(context.title, context.sentences, strict=True))
    return _paragraphs(path, ((title, " ".join(map(str.strip, sentences))) for title, sentences in pairs))


def _paragraphs(path: Path, paragraphs: Iterable[tuple[str, str]]) -> Iterator[Document]:
    distinct = dict.fromkeys(f"{title}\n{text}" for title, text in paragraphs if text.strip())
    if not distinct:
        raise ArtifactError(f"the questions of {path} come without paragraphs, so they make no corpus.")
    for number, contents in enumerate(distinct):
        yield Document(id=str(number), contents=contents)


class Paragraph(ForeignRecord):
    """A gold paragraph of MuSiQue."""

    title: str
    paragraph_text: str = ""


class Hop(ForeignRecord):
    """One step of a question's decomposition."""

    support_paragraph: Paragraph | None = None


class MusiqueRow(QuestionRow):
    """A line of a MuSiQue file."""

    question_decomposition: tuple[Hop, ...] = ()
    supporting_titles: tuple[str, ...] = ()


def read_musique(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; ``question_type`` is "2_hop", "3_hop" or "4_hop" where the steps are given."""
    for row in read_rows(path, MusiqueRow):
        hops = row.question_decomposition
        question_type = f"{len(hops)}_hop" if hops else ""
        titles = [hop.support_paragraph.title for hop in hops if hop.support_paragraph]
        yield row.record(question_type=question_type, supporting_titles=titles or row.supporting_titles)


def read_musique_paragraphs(path: Path) -> Iterator[Document]:
    """Yield the gold paragraphs of a file's questions, each once; raise ArtifactError where there are none."""
    hops = (hop for row in read_rows(path, MusiqueRow) for hop in row.question_decomposition)
    paragraphs = (hop.support_paragraph for hop in hops if hop.support_paragraph)
    return _paragraphs(path, ((paragraph.title, paragraph.paragraph_text) for paragraph in paragraphs))


def read_typed(question_type: str, path: Path) -> Iterator[Question]:
    """Yield the questions of a file that are all of one type, with their other keys."""
    for row in read_rows(path, QuestionRow):
        yield row.record(question_type=question_type, **(row.model_extra or {}))
