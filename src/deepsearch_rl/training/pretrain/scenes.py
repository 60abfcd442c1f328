"""Random facts and the passages that state them: what lessons are about.

Nothing here comes from a generated world. Names are put together anew for every lesson and facts are drawn at random,
so a model can learn from them how to read, and nothing about the world that it is tested on.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepsearch_rl.corpora.world.grammar import Grammar, Kind, Relation
from deepsearch_rl.records import Chunk, ChunkMetadata


@dataclass(frozen=True, slots=True)
class Fact:
    """``relation`` leads from ``subject`` to ``object``."""

    relation: Relation
    subject: str
    object: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage about one subject and the facts that it states."""

    subject: str
    kind: Kind
    facts: tuple[Fact, ...]
    text: str

    @property
    def chunk(self) -> Chunk:
        """The passage as retrieval would return it."""
        metadata = ChunkMetadata(doc_id="lesson", doc_chunks=1, doc_chunk_id=0)
        return Chunk(id="lesson", contents=f"{self.subject}\n{self.text}", metadata=metadata)


@dataclass(frozen=True, slots=True)
class Names:
    """Draws names for a grammar's kinds.

    ``strange_words`` are words of other languages' names. A share of the names is made of two of them, whatever the
    kind, so that each word of the vocabulary has been read and copied; lists hold first words alone, so that no such
    name is one of another world.
    """

    strange_words: Sequence[str]
    strange_share: float

    def draw(self, kind: Kind, rng: random.Random) -> str:
        """A random name of ``kind``."""
        if rng.random() < self.strange_share:
            return " ".join(rng.sample(self.strange_words, 2))
        return " ".join(rng.choice(words) for words in kind.word_lists)


def draw_passage(grammar: Grammar, names: Names, facts: range, fillers: range, rng: random.Random) -> Passage:
    """A passage about a random subject with as many facts and fillers as the ranges allow, in random order."""
    kind = rng.choice([kind for kind in grammar.kinds.values() if relations_of(grammar, kind)])
    return passage_about(grammar, names, kind, names.draw(kind, rng), {}, facts, fillers, rng)


def passage_about(
    grammar: Grammar,
    names: Names,
    kind: Kind,
    subject: str,
    objects: Mapping[str, str],
    facts: range,
    fillers: range,
    rng: random.Random,
) -> Passage:
    """A passage about ``subject``; ``objects`` (relation name -> object) are stated, other facts are drawn."""
    relations = [grammar.relations[name] for name in objects]
    others = [relation for relation in relations_of(grammar, kind) if relation.name not in objects]
    missing = max(0, rng.choice(facts) - len(relations))
    relations += rng.sample(others, min(missing, len(others)))
    stated = tuple(
        Fact(relation, subject, objects.get(relation.name) or names.draw(grammar.kinds[relation.object_kind], rng))
        for relation in relations
    )
    sentences = [rng.choice(fact.relation.statements).format(subject=subject, object=fact.object) for fact in stated]
    sentences += rng.sample(kind.fillers, min(rng.choice(fillers), len(kind.fillers)))
    rng.shuffle(sentences)
    return Passage(subject, kind, stated, " ".join(sentences))


def relations_of(grammar: Grammar, kind: Kind) -> list[Relation]:
    """The relations whose subjects are of ``kind``, in the grammar's order."""
    return [relation for relation in grammar.relations.values() if relation.subject_kind == kind.name]
