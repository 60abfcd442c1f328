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

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pydantic import JsonValue

from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.ranking import Retriever

# The depth of MultiHop-RAG's official MRR and MAP
RANKED = 10
MRR = f"mrr@{RANKED}"
MAP = f"map@{RANKED}"
# Missing items that a warning names, and how much of one
LISTED = 20
LISTED_CHARS = 80
# Beginnings of facts that are looked up at every place of a passage
BEGINNING_CHARS = 16
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gold:
    """The items of a question's evidence."""

    kind: Literal["facts", "documents", "titles"]
    items: tuple[str, ...]

    def found_in(self, chunk: Chunk) -> set[int]:
        """Return the positions of the items that a chunk holds."""
        # One comprehension for each kind: a call for every item would take twice the time, and every
        # candidate of a question is asked.
        items = enumerate(self.items)
        match self.kind:
            case "facts":
                text = without_space(chunk.contents)
                return {position for position, fact in items if fact in text}
            case "documents":
                doc_id = chunk.metadata.doc_id
                return {position for position, document in items if document == doc_id}
            case "titles":
                key = chunk_title_key(chunk)
                return {position for position, title in items if title_key(title) == key}


def gold_evidence(question: Question) -> Gold | None:
    """Return the gold evidence of a question; None where it is not known or empty."""
    metadata = question.metadata
    stripped = [without_space(evidence.fact) for evidence in metadata.evidence_list or ()]
    # A fact of white space alone would be in every chunk.
    facts = [fact for fact in stripped if fact]
    if facts:
        return Gold("facts", tuple(facts))

    # An item counts once, however often a set names it.
    documents = tuple(dict.fromkeys(metadata.supporting_doc_ids or ()))
    if documents:
        return Gold("documents", documents)

    titles: dict[str, str] = {}
    for title in metadata.supporting_titles or ():
        titles.setdefault(title_key(title), title)

    # A title of punctuation alone would match every passage without a title.
    titles.pop("", None)
    return Gold("titles", tuple(titles.values())) if titles else None


def chunk_title_key(chunk: Chunk) -> str:
    """Return the key of a chunk's title, or of that in its metadata where the passage has none."""
    title: JsonValue = chunk.title or (chunk.metadata.model_extra or {}).get("title")
    return title_key(title) if isinstance(title, str) else ""


def with_gold(questions: Iterable[Question]) -> list[tuple[str, Gold]]:
    """Return the texts and gold evidence of the questions that have any."""
    examples: list[tuple[str, Gold]] = []
    for question in questions:
        gold = gold_evidence(question)
        if gold is not None:
            examples.append((question.question, gold))

    return examples


def warn_of_missing(chunks: Iterable[Chunk], questions: Iterable[Question], what: str) -> None:
    """Log the gold facts, titles and documents of ``what`` that no chunk has, and how many questions have no gold.

    Every score that a missing item counts in is lower than the retriever deserves. The chunks are
    read once.
    """
    all_questions = list(questions)
    golds = [gold for _, gold in with_gold(all_questions)]
    unknown = sum(map(_has_unknown_gold, all_questions))
    if golds and unknown:
        _LOG.warning(
            "%s: the gold evidence of %d of %d questions is not known; no score counts them",
            what,
            unknown,
            len(all_questions),
        )

    facts: dict[str, str] = {}
    titles: dict[str, str] = {}
    ids: dict[str, None] = {}
    for question in all_questions:
        for evidence in question.metadata.evidence_list or ():
            facts[without_space(evidence.fact)] = evidence.fact
    facts.pop("", None)
    for gold in golds:
        if gold.kind == "titles":
            titles.update((title_key(title), title) for title in gold.items)
        elif gold.kind == "documents":
            ids.update(dict.fromkeys(gold.items))

    numbers = len(facts), len(titles) + len(ids)
    finder = _FactFinder(facts)
    for chunk in chunks if any(numbers) else ():
        titles.pop(chunk_title_key(chunk), None)
        ids.pop(chunk.metadata.doc_id, None)
        for fact in finder.found_in(chunk):
            facts.pop(fact, None)

    _warn_of_items(what, facts.values(), numbers[0], "facts are in no passage")
    missing = [*titles.values(), *ids]
    _warn_of_items(what, missing, numbers[1], "documents are not in the corpus")


def _has_unknown_gold(question: Question) -> bool:
    """Return whether a question says neither what its gold evidence is nor that there is none."""
    return gold_evidence(question) is None and question.metadata.evidence_list != ()


def _warn_of_items(what: str, missing: Collection[str], items: int, problem: str) -> None:
    if missing:
        listed = ", ".join(f"{item[:LISTED_CHARS]!r}" for item in [*missing][:LISTED])
        unlisted = len(missing) - LISTED
        rest = f" and {unlisted} more" if unlisted > 0 else ""
        _LOG.warning("%s: %d of %d gold %s: %s%s", what, len(missing), items, problem, listed, rest)


class _FactFinder:
    """Finds which of many facts a chunk contains, in time that hardly grows with their number."""

    def __init__(self, facts: Iterable[str]) -> None:
        self._beginnings: dict[str, list[str]] = {}
        self._length = min((len(fact) for fact in facts), default=0)
        self._length = min(self._length, BEGINNING_CHARS)
        for fact in facts:
            self._beginnings.setdefault(fact[: self._length], []).append(fact)

    def found_in(self, chunk: Chunk) -> list[str]:
        """Return the facts that a chunk contains."""
        if not self._beginnings:
            return []

        text = without_space(chunk.contents)
        length = self._length
        pieces = {text[place : place + length] for place in range(len(text) - length + 1)}
        found: list[str] = []
        for beginning in pieces & self._beginnings.keys():
            found += [fact for fact in self._beginnings[beginning] if fact in text]

        return found


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
    scores: list[dict[str, float]] = []

    for ranking, (_, gold) in zip(rankings, questions, strict=True):
        items_by_rank = [gold.found_in(chunks[row]) for row in ranking.rows_K.tolist()]
        scores.append(score_facts(items_by_rank, len(gold.items), cutoffs))

    return scores


def mean_scores(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of every score over at least one question."""
    means: dict[str, float] = {}
    for name in rows[0]:
        means[name] = round(fmean(row[name] for row in rows), 4)

    return means


def score_facts(
    items_by_rank: Sequence[set[int]], facts: int, cutoffs: Sequence[int]
) -> dict[str, float]:
    """Return the scores of a question.

    ``items_by_rank`` has the items that each ranked chunk holds, by position, of ``facts`` in all.
    MAP@10 is the sum over ranks of newly found items / rank, divided by min(facts, 10). All scores
    are in [0, 1], but this one can pass 1 where a question has more than 10 items and a chunk holds
    several.
    """
    reciprocal_rank = 0.0
    gain = 0.0
    earlier = set[int]()

    for rank, items in enumerate(items_by_rank[:RANKED], 1):
        if items and not earlier:
            reciprocal_rank = 1 / rank
        # An item counts at the first rank that shows it
        gain += len(items - earlier) / rank
        earlier |= items

    hits: dict[str, float] = {}
    recalls: dict[str, float] = {}
    for cutoff in sorted(cutoffs):
        items = set[int]().union(*items_by_rank[:cutoff])
        hits[f"hits@{cutoff}"] = float(bool(items))
        recalls[f"evidence_recall@{cutoff}"] = len(items) / facts

    return {MRR: reciprocal_rank, MAP: gain / min(facts, RANKED), **hits, **recalls}
