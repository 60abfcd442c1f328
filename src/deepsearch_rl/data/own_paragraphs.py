"""A corpus of the paragraphs that come with questions.

A set's own paragraphs are a corpus of the right size for a small machine: ten or twenty a question,
the gold ones among them, in place of a Wikipedia dump. Only the paragraphs of the questions that the
splits hold are read into it, so that 2,000 of HotpotQA's 90,447 train questions make 20,000 documents.
"""

from collections.abc import Collection, Iterable

from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.data.question_sets import OwnParagraph, QuestionParagraphs
from deepsearch_rl.data.titles import title_key

# The title key and id of each gold document of a question
GoldDocuments = list[tuple[str, str]]


class ParagraphCorpus:
    """Paragraphs, each once, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def add(
        self, read: Iterable[QuestionParagraphs], questions: Collection[str], id_prefix: str
    ) -> dict[str, GoldDocuments]:
        """Add the paragraphs of the questions with these ids, and return their gold documents by id.

        ``read`` has the paragraphs of a whole file, under ids without ``id_prefix``.
        """
        gold: dict[str, GoldDocuments] = {}
        for name, paragraphs in read:
            if id_prefix + name in questions:
                gold[id_prefix + name] = self._add(paragraphs)

        return gold

    def documents(self) -> list[Document]:
        """Return the corpus."""
        return [Document(id=id_, contents=contents) for contents, id_ in self._ids.items()]

    def _add(self, paragraphs: Iterable[OwnParagraph]) -> GoldDocuments:
        gold: GoldDocuments = []
        for paragraph in paragraphs:
            if not paragraph.text.strip():
                continue
            id_ = self._ids.setdefault(paragraph.contents, str(len(self._ids)))
            if paragraph.gold:
                gold.append((title_key(paragraph.title), id_))

        return gold


def with_documents(question: Question, gold: GoldDocuments) -> Question:
    """Return a question with the ids of its gold documents, in the order of its gold titles.

    Where a gold title has no paragraph, the titles alone name the documents.
    """
    keys = [title_key(title) for title in question.metadata.supporting_titles or ()]
    ids = [id_ for key in keys for title, id_ in gold if title == key]
    found = set(keys) <= {title for title, _ in gold}
    names = {"supporting_doc_ids": tuple(dict.fromkeys(ids)) if ids and found else None}
    metadata = question.metadata.model_copy(update=names)
    return question.model_copy(update={"metadata": metadata})
