"""The gold evidence of questions, and the scores of a ranking against it.

    facts       ``metadata.evidence_list``: a chunk is relevant if it contains a fact, white space stripped
                (MultiHop-RAG's official rule)
    documents   ``metadata.supporting_doc_ids``: a chunk is relevant if it belongs to one of the documents
    titles      ``metadata.supporting_titles``: likewise by title, for sets that name documents no other way; titles are
                compared by :func:`title_key`

The first of these that a question has counts; each fact, document or title is an item. Scores are
those of MultiHop-RAG's official script (Tang and Yang 2024), and evidence recall, the share of the
items that the top k hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pydantic import JsonValue

from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.corpora.reading.titles import title_key
from deepsearch_rl.retrieval.ranking.ranking import Retriever

RANKED = 10  # depth of MRR@10 and MAP@10
MRR = f"mrr@{RANKED}"
MAP = f"map@{RANKED}"


@dataclass(frozen=True, slots=True)
class Gold:
    """The items of a question's evidence."""

    kind: Literal["facts", "documents", "titles"]
    items: tuple[str, ...]

    def found_in(self, chunk: Chunk) -> set[int]:
        """Return the positions of the items that a chunk holds."""
        match self.kind:
            case "facts":
                text = without_space(chunk.contents)
                return {position for position, fact in enumerate(self.items) if fact in text}
            case "documents":
                name = chunk.metadata.doc_id
            case "titles":
                name = chunk_title_key(chunk)
                return {
                    position for position, item in enumerate(self.items) if title_key(item) == name
                }

        return {position for position, item in enumerate(self.items) if item == name}


def gold_evidence(question: Question) -> Gold | None:
    """Return the gold evidence of a question; None where it is not known or empty."""
    facts = [without_space(evidence.fact) for evidence in question.metadata.evidence_list or ()]
    if facts:
        return Gold("facts", tuple(facts))
    documents = tuple(dict.fromkeys(question.metadata.supporting_doc_ids or ()))
    if documents:
        return Gold("documents", documents)
    titles = {
        title_key(title): title for title in reversed(question.metadata.supporting_titles or ())
    }
    titles.pop("", None)
    return Gold("titles", tuple(reversed(titles.values()))) if titles else None


def chunk_title_key(chunk: Chunk) -> str:
    """Return the key of a chunk's title, or of that in its metadata where the passage has none."""
    title: JsonValue = chunk.title or (chunk.metadata.model_extra or {}).get("title")
    return title_key(title) if isinstance(title, str) else ""


def with_gold(questions: Iterable[Question]) -> list[tuple[str, Gold]]:
    """Return the texts and gold evidence of the questions that have any."""
    return [
        (question.question, gold) for question in questions if (gold := gold_evidence(question))
    ]


def without_space(text: str) -> str:
    """Return the text without any white space; facts and passages are compared so."""
    return "".join(text.split())


def score_retriever(
    retriever: Retriever,
    chunks: Sequence[Chunk],
    questions: Sequence[tuple[str, Gold]],
    cutoffs: Sequence[int] = (),
) -> list[dict[str, float]]:
    """Return the scores of every question (:func:`score_facts`) as a retriever ranks."""
    rankings = retriever.search([text for text, _ in questions], max((*cutoffs, RANKED)))
    return [
        score_facts(
            [gold.found_in(chunks[row]) for row in ranking.rows_K.tolist()],
            len(gold.items),
            cutoffs,
        )
        for ranking, (_, gold) in zip(rankings, questions, strict=True)
    ]


def mean_scores(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of every score over at least one question."""
    return {name: round(fmean(row[name] for row in rows), 4) for name in rows[0]}


def score_facts(
    found_by_rank: Sequence[set[int]], facts: int, cutoffs: Sequence[int]
) -> dict[str, float]:
    """Return the scores of a question whose ranked chunks hold the given items (by position, of ``facts`` in all).

    MAP@10 is the sum over ranks of newly found items / rank, divided by min(facts, 10). All scores
    are in [0, 1], but this one can pass 1 where a question has more than 10 items and a chunk holds
    several.
    """
    ranks = list(enumerate(found_by_rank[:RANKED], 1))
    earlier = set[int]()
    gain = 0.0
    for rank, items in ranks:
        gain += len(items - earlier) / rank
        earlier |= items

    held = {cutoff: set().union(*found_by_rank[:cutoff]) for cutoff in sorted(cutoffs)}
    return {
        MRR: next((1 / rank for rank, items in ranks if items), 0.0),
        MAP: gain / min(facts, RANKED),
        **{f"hits@{cutoff}": float(bool(items)) for cutoff, items in held.items()},
        **{f"evidence_recall@{cutoff}": len(items) / facts for cutoff, items in held.items()},
    }
