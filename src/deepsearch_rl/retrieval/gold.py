"""What a question's passages must hold to count as found, whichever way a question set says so.

    facts       ``metadata.evidence_list``: a chunk is relevant if it contains a fact, white space stripped
                (MultiHop-RAG's official rule)
    documents   ``metadata.supporting_doc_ids``: a chunk is relevant if it belongs to one of the documents
    titles      ``metadata.supporting_titles``: likewise by title, for sets that name documents no other way

The first of these that a question has counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deepsearch_rl.records import Chunk, Question


@dataclass(frozen=True, slots=True)
class Gold:
    """The items that a question's evidence consists of."""

    kind: Literal["facts", "documents", "titles"]
    items: tuple[str, ...]

    def found_in(self, chunk: Chunk) -> set[int]:
        """The positions of the items that a chunk holds."""
        match self.kind:
            case "facts":
                text = without_space(chunk.contents)
                return {position for position, fact in enumerate(self.items) if fact in text}
            case "documents":
                return {position for position, item in enumerate(self.items) if item == chunk.metadata.doc_id}
            case "titles":
                title = _bare_title(chunk.title)
                return {position for position, item in enumerate(self.items) if item == title}

    def found_by_rank(self, chunks: Sequence[Chunk]) -> list[set[int]]:
        """The items that each of the ranked chunks holds."""
        return [self.found_in(chunk) for chunk in chunks]


def gold_of(question: Question) -> Gold | None:
    """The gold evidence of a question; None where it is not known, or where there is none to be found."""
    facts = [without_space(evidence.fact) for evidence in question.metadata.evidence_list or ()]
    if facts:
        return Gold("facts", tuple(facts))
    documents = _strings(question, "supporting_doc_ids")
    if documents:
        return Gold("documents", documents)
    titles = tuple(dict.fromkeys(_bare_title(title) for title in _strings(question, "supporting_titles")))
    return Gold("titles", titles) if titles else None


def _strings(question: Question, name: str) -> tuple[str, ...]:
    """The distinct strings of a list in the metadata."""
    value = (question.metadata.model_extra or {}).get(name)
    return tuple(dict.fromkeys(str(item) for item in value)) if isinstance(value, list | tuple) else ()


def without_space(text: str) -> str:
    """The text without any white space, as facts and passages are compared."""
    return "".join(text.split())


def _bare_title(title: str) -> str:
    """A title without the quotes that wiki-18 puts around it."""
    return title.strip().strip('"')
