"""Random facts and the passages that state them.

Nothing here comes from a generated world. Names are put together anew for every document and facts are drawn at
random, so a model can learn how to read from them, and nothing about the world that it is tested on. The passages look
like the first results of a search: two parts of one article, and articles about subjects with similar names.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN, YEAR, Kind, Relation
from deepsearch_rl.retrieval.passages import format_passages

_SAME_SUBJECT, _SIMILAR_SUBJECT = 0.3, 0.4  # shares of further passages; the rest is about anything
_NEW_PARAGRAPH = 0.3  # share of sentences that open one
_STRANGE_WORDS = [word for kind in OUT_OF_DOMAIN.kinds.values() if kind.name != YEAR for word in kind.word_lists[0]]


class Fact(NamedTuple):
    """``relation`` leads from ``subject`` to ``object``."""

    relation: Relation
    subject: str
    object: str


class FactPassage(NamedTuple):
    """A passage about one subject and the facts that it states."""

    subject: str
    kind: Kind
    facts: list[Fact]
    contents: str


def draw_name(kind: Kind, strange_share: float, rng: random.Random) -> str:
    """Return a random name of ``kind``, or of two words of another language's names in ``strange_share`` of the draws.

    So each word of the vocabulary occurs and is copied. The two are first words of their names alone, so that no such
    name is one of that other world.
    """
    if rng.random() < strange_share:
        return " ".join(rng.sample(_STRANGE_WORDS, 2))
    return " ".join(rng.choice(words) for words in kind.word_lists)


def draw_similar_name(name: str, kind: Kind, strange_share: float, rng: random.Random) -> str:
    """Return a name of ``kind`` that differs from ``name`` in one word, where ``name`` has several."""
    words, other = name.split(), draw_name(kind, strange_share, rng).split()
    if len(words) != len(other) or len(words) == 1:
        return " ".join(other)
    place = rng.randrange(len(words))
    return " ".join([*words[:place], other[place], *words[place + 1 :]])


def relations_of(kind: Kind) -> list[Relation]:
    """Return the relations whose subjects are of ``kind``, in the grammar's order."""
    return [relation for relation in IN_DOMAIN.relations.values() if relation.subject_kind == kind.name]


@dataclass(slots=True)
class PassageSet:
    """The passages of one document, in which no subject states a relation twice.

    ``fact_range`` and ``filler_range`` are the fewest and most facts, and sentences without a fact, of a passage.
    """

    strange_share: float
    fact_range: tuple[int, int]
    filler_range: tuple[int, int]
    rng: random.Random
    passages: list[FactPassage] = field(default_factory=list)
    unstated: dict[str, list[Relation]] = field(default_factory=dict)
    """By subject: the relations that no passage states."""

    @property
    def facts(self) -> list[Fact]:
        """Every fact stated so far."""
        return [fact for passage in self.passages for fact in passage.facts]

    def text(self) -> str:
        """Return the passages as a search shows them."""
        return format_passages(self.passages)

    def state(self, relation: Relation, subject: str, hidden: bool = False) -> str:
        """Add a passage about ``subject`` that states ``relation``, among others, and return the object.

        If ``hidden``, have that relation stated nowhere, and return the answer that there is none.
        """
        kind = IN_DOMAIN.kinds[relation.subject_kind]
        if hidden:
            self.unstated.setdefault(subject, relations_of(kind)).remove(relation)
        self._add_about(subject, kind, () if hidden else [relation])
        return INSUFFICIENT if hidden else self.passages[-1].facts[0].object

    def add(self) -> None:
        """Add a passage about the first passage's subject, one of similar name, or any."""
        draw, first = self.rng.random(), self.passages[0] if self.passages else None
        if first and draw < _SAME_SUBJECT:
            self._add_about(first.subject, first.kind)
        elif first and draw < _SAME_SUBJECT + _SIMILAR_SUBJECT:
            self._add_about(draw_similar_name(first.subject, first.kind, self.strange_share, self.rng), first.kind)
        else:
            kind = self.rng.choice([kind for kind in IN_DOMAIN.kinds.values() if relations_of(kind)])
            self._add_about(draw_name(kind, self.strange_share, self.rng), kind)

    def _add_about(self, subject: str, kind: Kind, relations: Sequence[Relation] = ()) -> None:
        """Add a passage about ``subject`` that states ``relations`` first and others at random."""
        unstated = self.unstated.setdefault(subject, relations_of(kind))
        others = [relation for relation in unstated if relation not in relations]
        count = max(0, self.rng.randint(*self.fact_range) - len(relations))
        stated = [*relations, *self.rng.sample(others, min(count, len(others)))]
        self.unstated[subject] = [relation for relation in unstated if relation not in stated]
        facts = [Fact(relation, subject, self._draw_object(relation)) for relation in stated]
        self.passages.append(FactPassage(subject, kind, facts, f"{subject}\n{self._write(facts, kind)}"))

    def _draw_object(self, relation: Relation) -> str:
        """Draw a name that is no subject of the set, so that a chain of facts never returns to an earlier name."""
        kind = IN_DOMAIN.kinds[relation.object_kind]
        while (name := draw_name(kind, self.strange_share, self.rng)) in self.unstated:
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
