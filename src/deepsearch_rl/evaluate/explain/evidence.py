"""What an answer needs: gold facts, documents or titles, or in their place the golden answers themselves.

Gold evidence is that of :mod:`deepsearch_rl.search.gold`. Where a question has none, its answer
stands in: a passage counts that holds a golden answer as whole words, both normalised. That is
weaker on both sides, because a passage may name the answer for another reason, and a chain's first
passage does not name it. Answers that every passage may hold (yes, no, none at all) are no evidence.
"""

from dataclasses import dataclass
from typing import Literal

from deepsearch_rl.core.answers import CLOSED_ANSWERS, normalise
from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.search.gold import Gold, gold_evidence

EvidenceKind = Literal["facts", "documents", "titles", "answer"]
# Golden answers, normalised, of questions that the corpus cannot answer
UNANSWERABLE = frozenset({"insufficient information", "noanswer"})


@dataclass(frozen=True, slots=True)
class AnswerEvidence:
    """The golden answers as one item; ``items`` holds the first of them, for people to read."""

    items: tuple[str, ...]
    phrases: tuple[str, ...]
    kind: EvidenceKind = "answer"

    def found_in(self, chunk: Chunk) -> set[int]:
        """Return ``{0}`` where a chunk, its title included, holds one of the answers as whole words."""
        text = padded(chunk.contents)
        return {0} if any(f" {phrase} " in text for phrase in self.phrases) else set()


def padded(text: str) -> str:
    """Return a normalised text between blanks, in which ``" word "`` finds whole words."""
    return f" {normalise(text)} "


def is_unanswerable(question: Question) -> bool:
    """Return whether the right answer is that there is none."""
    return any(normalise(gold) in UNANSWERABLE for gold in question.golden_answers)


def evidence_of(question: Question, ids_known: bool = True) -> Gold | AnswerEvidence | None:
    """Return what a question needs; None where nothing can say it.

    Gold titles take the place of gold documents where a question has more of them, because ids name
    only what some corpus has; and without ``ids_known``, where it is unknown of which documents the
    passages are that a run shows. Without titles the answer stands in for these.
    """
    if is_unanswerable(question):
        return None

    gold = gold_evidence(question)
    if gold is not None and gold.kind == "documents":
        without_ids = question.metadata.model_copy(update={"supporting_doc_ids": None})
        titles = gold_evidence(question.model_copy(update={"metadata": without_ids}))
        if not ids_known or (titles is not None and len(titles.items) > len(gold.items)):
            gold = titles
    if gold is not None:
        return gold

    # A dictionary in place of a set: it keeps the order
    phrases: dict[str, None] = {}
    for phrase in map(normalise, question.golden_answers):
        # Yes and no are words of any passage
        if phrase and phrase not in CLOSED_ANSWERS:
            phrases[phrase] = None

    return AnswerEvidence(question.golden_answers[:1], tuple(phrases)) if phrases else None


def gold_titles(question: Question) -> tuple[str, ...]:
    """Return the titles of the gold documents, as far as the question names them."""
    metadata = question.metadata
    titles = [evidence.title for evidence in metadata.evidence_list or () if evidence.title]
    titles += metadata.supporting_titles or ()
    return tuple(dict.fromkeys(titles))


def gold_documents(question: Question) -> tuple[str, ...]:
    """Return the ids of the gold documents, as far as the question names them."""
    metadata = question.metadata
    names = [evidence.doc_id for evidence in metadata.evidence_list or () if evidence.doc_id]
    names += metadata.supporting_doc_ids or ()
    return tuple(dict.fromkeys(names))


def hops_of(question: Question) -> str:
    """Return how many hops a question has; where its set does not say, how many gold documents; empty if unknown."""
    hops = (question.metadata.model_extra or {}).get("hops")
    if isinstance(hops, int) and not isinstance(hops, bool):
        return str(hops)

    documents = gold_documents(question) or gold_titles(question)
    return str(len(documents)) if documents else ""
