"""A corpus read once: which gold items it has, and the passages that a run was shown.

Passages are streamed, so that memory grows with the questions and not with the corpus. Facts are
looked for in blocks of passages, as text without white space; a separator that no text holds keeps
a fact from being found across two passages. Answers are looked up by their first word.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from deepsearch_rl.core.answers import CLOSED_ANSWERS, normalise
from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.gold import Gold, chunk_title_key, gold_evidence, without_space

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


SEPARATOR = "\x00"
# Passages whose facts are looked for together
BLOCK = 2000
# A question's id, and the position of one of its gold items
Place = tuple[str, int]


@dataclass(slots=True)
class CorpusScan:
    """What one pass over the passages found."""

    passages: int = 0
    # The wanted passages by id
    chunks_by_id: dict[str, Chunk] = field(default_factory=dict)
    # The title of every gold document that is there, by its id
    titles: dict[str, str] = field(default_factory=dict)
    # The positions of the gold items that some passage holds, by question
    covered: dict[str, set[int]] = field(default_factory=dict)


def scan_corpus(
    chunks: Iterable[Chunk],
    evidence: Mapping[str, Gold | AnswerEvidence],
    wanted: Iterable[str] = (),
    documents: Iterable[str] = (),
) -> CorpusScan:
    """Read passages once and return what they hold of every question's evidence.

    ``wanted`` are ids of passages to keep, ``documents`` ids of documents whose titles are asked for.
    """
    scan = CorpusScan(covered={name: set() for name in evidence})
    wanted_ids = set(wanted)
    wanted_documents = set(documents)
    names = _names(evidence)
    answers = _answers(evidence)
    facts = _facts(evidence)

    for block in _blocks(chunks):
        scan.passages += len(block)

        for chunk in block:
            doc_id = chunk.metadata.doc_id
            if chunk.id in wanted_ids:
                scan.chunks_by_id[chunk.id] = chunk
            if doc_id in wanted_documents:
                scan.titles.setdefault(doc_id, chunk.title)
            for key in (("documents", doc_id), ("titles", chunk_title_key(chunk))):
                # Taken out: a document has many passages, and one of them is enough
                _cover(scan, names.pop(key, ()))
            if answers:
                _find_answers(scan, chunk, answers)

        if facts:
            _find_facts(scan, block, facts)

    return scan


def _blocks(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    block: list[Chunk] = []
    for chunk in chunks:
        block.append(chunk)
        if len(block) == BLOCK:
            yield block
            block = []

    if block:
        yield block


def _cover(scan: CorpusScan, places: Iterable[Place]) -> None:
    for question, position in places:
        scan.covered[question].add(position)


def _names(evidence: Mapping[str, Gold | AnswerEvidence]) -> dict[tuple[str, str], list[Place]]:
    """Return where gold documents and titles are needed, by kind and id or title key."""
    places: dict[tuple[str, str], list[Place]] = {}
    for question, gold in evidence.items():
        if gold.kind not in ("documents", "titles"):
            continue
        for position, item in enumerate(gold.items):
            name = item if gold.kind == "documents" else title_key(item)
            places.setdefault((gold.kind, name), []).append((question, position))

    return places


def _facts(evidence: Mapping[str, Gold | AnswerEvidence]) -> dict[str, list[Place]]:
    """Return where gold facts are needed, by the fact without white space."""
    places: dict[str, list[Place]] = {}
    for question, gold in evidence.items():
        if gold.kind == "facts":
            for position, item in enumerate(gold.items):
                places.setdefault(item, []).append((question, position))

    return places


def _find_facts(scan: CorpusScan, block: Sequence[Chunk], facts: dict[str, list[Place]]) -> None:
    """Remove from ``facts`` those that a passage of the block holds, and note them."""
    text = SEPARATOR.join(without_space(chunk.contents) for chunk in block)
    for fact in [fact for fact in facts if fact in text]:
        _cover(scan, facts.pop(fact))


def _answers(evidence: Mapping[str, Gold | AnswerEvidence]) -> dict[str, dict[str, list[str]]]:
    """Return the questions that look for an answer, by its first word and the answer."""
    questions: dict[str, dict[str, list[str]]] = {}
    for question, gold in evidence.items():
        if isinstance(gold, AnswerEvidence):
            for phrase in gold.phrases:
                first_word = phrase.partition(" ")[0]
                questions.setdefault(first_word, {}).setdefault(phrase, []).append(question)

    return questions


def _find_answers(scan: CorpusScan, chunk: Chunk, answers: dict[str, dict[str, list[str]]]) -> None:
    """Remove from ``answers`` those that a passage names as whole words, and note them."""
    text = padded(chunk.contents)
    for word in set(text.split()) & answers.keys():
        phrases = answers[word]
        for phrase in [phrase for phrase in phrases if f" {phrase} " in text]:
            _cover(scan, [(question, 0) for question in phrases.pop(phrase)])
        if not phrases:
            del answers[word]
