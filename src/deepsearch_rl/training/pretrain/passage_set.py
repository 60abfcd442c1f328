"""Random facts and the passages that state them.

Nothing here comes from a generated world. Names are put together anew for every document and facts are drawn at
random, so a model can learn how to read from them, and nothing about the world that it is tested on. The passages look
like the first results of a search: two parts of one article, and articles about subjects with similar names.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import YEAR, Grammar, Kind, Relation
from deepsearch_rl.records import Chunk, ChunkMetadata
from deepsearch_rl.retrieval.passages import format_passages

_SAME_SUBJECT, _SIMILAR_SUBJECT = 0.3, 0.4  # shares of further passages; the rest is about anything
_NEW_PARAGRAPH = 0.3  # share of sentences that open one


@dataclass(frozen=True, slots=True)
class Fact:
    """``relation`` leads from ``subject`` to ``object``."""

    relation: Relation
    subject: str
    object: str


@dataclass(frozen=True, slots=True)
class FactPassage:
    """A passage about one subject and the facts that it states."""

    subject: str
    kind: Kind
    facts: tuple[Fact, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Names:
    """Draws names for a grammar's kinds.

    ``strange_words`` are words of another language's names. A share of the names is made of two of them, whatever the
    kind, so that each word of the vocabulary occurs and is copied; they are first words of their names alone, so that
    no such name is one of that other world.
    """

    strange_words: Sequence[str]
    strange_share: float

    def draw(self, kind: Kind, rng: random.Random) -> str:
        """Return a random name of ``kind``."""
        if rng.random() < self.strange_share:
            return " ".join(rng.sample(self.strange_words, 2))
        return " ".join(rng.choice(words) for words in kind.word_lists)

    def draw_similar(self, name: str, kind: Kind, rng: random.Random) -> str:
        """Return a name of ``kind`` that differs from ``name`` in one word, where ``name`` has several."""
        words, other = name.split(), self.draw(kind, rng).split()
        if len(words) != len(other) or len(words) == 1:
            return " ".join(other)
        place = rng.randrange(len(words))
        return " ".join([*words[:place], other[place], *words[place + 1 :]])


@dataclass(slots=True)
class PassageSet:
    """The passages of one document, in which no subject states a relation twice.

    ``fact_range`` and ``filler_range`` are the fewest and most facts, and sentences without a fact, of a passage.
    """

    grammar: Grammar
    names: Names
    fact_range: tuple[int, int]
    filler_range: tuple[int, int]
    rng: random.Random
    passages: list[FactPassage] = field(default_factory=list)
    _unstated: dict[str, list[Relation]] = field(default_factory=dict)

    @property
    def facts(self) -> list[Fact]:
        """Every fact stated so far."""
        return [fact for passage in self.passages for fact in passage.facts]

    def text(self) -> str:
        """Return the passages as a search shows them."""
        metadata = ChunkMetadata(doc_id="pretraining", doc_chunks=1, doc_chunk_id=0)
        contents = [f"{passage.subject}\n{passage.text}" for passage in self.passages]
        return format_passages([Chunk(id="pretraining", contents=text, metadata=metadata) for text in contents])

    def state(self, relation: Relation, subject: str, hidden: bool = False) -> str:
        """Add a passage about ``subject`` that states ``relation``, among others, and return the object.

        If ``hidden``, have that relation stated nowhere, and return the answer that there is none.
        """
        kind = self.grammar.kinds[relation.subject_kind]
        if hidden:
            self._relations(subject, kind).remove(relation)
        self.add_about(subject, kind, () if hidden else [relation])
        objects = [fact.object for fact in self.facts if fact.relation is relation and fact.subject == subject]
        return INSUFFICIENT if hidden else objects[0]

    def add(self) -> None:
        """Add a passage about the first passage's subject, one of similar name, or any."""
        draw, first = self.rng.random(), self.passages[0] if self.passages else None
        if first and draw < _SAME_SUBJECT:
            self.add_about(first.subject, first.kind)
        elif first and draw < _SAME_SUBJECT + _SIMILAR_SUBJECT:
            self.add_about(self.names.draw_similar(first.subject, first.kind, self.rng), first.kind)
        else:
            kinds = [kind for kind in self.grammar.kinds.values() if relations_of(self.grammar, kind)]
            kind = self.rng.choice(kinds)
            self.add_about(self.names.draw(kind, self.rng), kind)

    def add_about(self, subject: str, kind: Kind, relations: Sequence[Relation] = ()) -> None:
        """Add a passage about ``subject`` that states ``relations`` and others at random."""
        unstated = self._relations(subject, kind)
        others = [relation for relation in unstated if relation not in relations]
        count = max(0, self.rng.randint(*self.fact_range) - len(relations))
        stated = [*relations, *self.rng.sample(others, min(count, len(others)))]
        self._unstated[subject] = [relation for relation in unstated if relation not in stated]
        facts = tuple(Fact(relation, subject, self._draw_object(relation)) for relation in stated)
        self.passages.append(FactPassage(subject, kind, facts, self._write(facts, kind)))

    def shuffle(self) -> None:
        """Put the passages into random order, in three sets of ten."""
        if self.rng.random() < 0.3:
            self.rng.shuffle(self.passages)

    def _relations(self, subject: str, kind: Kind) -> list[Relation]:
        return self._unstated.setdefault(subject, relations_of(self.grammar, kind))

    def _draw_object(self, relation: Relation) -> str:
        """Draw a name that is no subject of the set, so that a chain of facts never returns to an earlier name."""
        while (name := self.names.draw(self.grammar.kinds[relation.object_kind], self.rng)) in self._unstated:
            pass
        return name

    def _write(self, facts: Sequence[Fact], kind: Kind) -> str:
        rng = self.rng
        sentences = [
            rng.choice(fact.relation.statements).format(subject=fact.subject, object=fact.object) for fact in facts
        ]
        fillers = max(rng.randint(*self.filler_range), 0 if facts else 1)
        sentences += rng.sample(kind.fillers, min(fillers, len(kind.fillers)))
        rng.shuffle(sentences)
        return "".join(sentence + ("\n" if rng.random() < _NEW_PARAGRAPH else " ") for sentence in sentences).strip()


def relations_of(grammar: Grammar, kind: Kind) -> list[Relation]:
    """Return the relations whose subjects are of ``kind``, in the grammar's order."""
    return [relation for relation in grammar.relations.values() if relation.subject_kind == kind.name]


def strange_words(grammar: Grammar) -> tuple[str, ...]:
    """Return the first words of the names of another world, without years."""
    lists = [kind.word_lists[0] for kind in grammar.kinds.values() if kind.name != YEAR]
    return tuple(word for words in lists for word in words)
