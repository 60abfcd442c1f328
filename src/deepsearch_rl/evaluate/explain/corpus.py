"""A corpus read once: which gold items it has, and the passages that a run was shown.

Passages are streamed, so that memory grows with the questions and not with the corpus. Facts are
looked for in blocks of passages, as text without white space; a separator that no text holds keeps
a fact from being found across two passages. Answers are looked up by their first word.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deepsearch_rl.core.records import Chunk
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.evaluate.explain.evidence import AnswerEvidence, padded
from deepsearch_rl.search.gold import Gold, chunk_title_key, without_space

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
