"""Articles about random facts, in the form of search results.

The passages of a result look like the first results of a search: parts of one article, articles
about subjects with similar names that state the relation that was asked for, and articles that name
the subject as the object of a fact. The same seed gives the same articles.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import JsonValue

from deepsearch_rl.chat.chat_messages import format_passages
from deepsearch_rl.toy.curriculum import CurriculumStage
from deepsearch_rl.toy.grammar import STATEMENTS, Grammar, Relation

# A message of a document, as the chat template takes it
Turn = dict[str, JsonValue]

# Share of further passages in which the searched name is the object of a fact
_LEADING_THERE = 0.2
# Shares of the other passages; the rest is about anything
_SAME_SUBJECT = 0.3
_SIMILAR_SUBJECT = 0.5
# Share of passages about similar subjects that state the searched relation
_SAME_RELATION = 0.8
# Share of sentences that open one
_NEW_PARAGRAPH = 0.3
# Share of results in random order; the others begin with the passage that was searched for.
# So it stands first in 93 %, as in searches of the agent (docs/experiments.md, 38)
_SHUFFLED = 0.1


class Fact(NamedTuple):
    """``relation`` leads from ``subject`` to ``object``."""

    relation: Relation
    subject: str
    object: str


class FactPassage(NamedTuple):
    """A passage about one subject and the facts that it states."""

    subject: str
    kind: str
    facts: list[Fact]
    contents: str


def draw_name(grammar: Grammar, kind: str, rng: random.Random) -> str:
    """Return a random name of ``kind``."""
    return " ".join(rng.choice(words) for words in grammar.kinds[kind].word_lists)


def draw_similar_name(grammar: Grammar, name: str, kind: str, rng: random.Random) -> str:
    """Return a name of ``kind`` that differs from ``name`` in one word, where ``name`` has several."""
    words = name.split()
    other = draw_name(grammar, kind, rng).split()
    if len(words) == 1:
        return other[0]
    place = rng.randrange(len(words))
    return " ".join([*words[:place], other[place], *words[place + 1 :]])


def write_statement(fact: Fact, noun: str, rng: random.Random) -> str:
    """Return a sentence that states a fact and calls its relation by ``noun``."""
    statement = rng.choice(STATEMENTS)
    return statement.format(noun=noun, subject=fact.subject, object=fact.object)


@dataclass(slots=True)
class Articles:
    """What the searches of one document find; what one passage states of a subject, no other contradicts."""

    grammar: Grammar
    stage: CurriculumStage
    second_words: float
    rng: random.Random
    # Names that no fact leads to, so that a chain never returns to an earlier one
    visited: set[str]
    _objects: dict[tuple[str, Relation], str] = field(default_factory=dict)

    def find_facts(
        self, subject: str, chain: Sequence[Relation], hidden: bool = False, word: str | None = None
    ) -> tuple[Turn, list[str]]:
        """Return a result with the facts of a chain from ``subject``, and the names that they lead to.

        If ``hidden``, the chain has one fact: the result lacks it, and there are no names. ``word``
        is that of the chain's relations in the text; None draws it, and nothing has it if ``hidden``.
        """
        rng = self.rng
        stated: set[tuple[str, Relation]] = set()
        names: list[str] = []
        steps: list[tuple[str, Relation]] = []
        passages: list[FactPassage] = []

        for relation in chain:
            steps.append((subject, relation))
            # Also where it is hidden: then no passage states it
            stated.add((subject, relation))
            kind = relation.subject_kind
            if hidden:
                passages.append(self._passage(subject, kind, [], stated))
            else:
                passages.append(self._passage(subject, kind, [relation], stated, word))
                subject = passages[-1].facts[0].object
                names.append(subject)
                self.visited.add(subject)

        while len(passages) < self.stage.results:
            passages.append(self._further_passage(*rng.choice(steps), stated))

        if len(chain) > 1 or rng.random() < _SHUFFLED:
            rng.shuffle(passages)
        return {"role": "tool", "content": format_passages(passages)}, names

    def _further_passage(
        self, name: str, relation: Relation, stated: set[tuple[str, Relation]]
    ) -> FactPassage:
        """Return a passage that a search for a fact of ``name`` also finds."""
        rng = self.rng
        kind = relation.subject_kind
        if rng.random() < _LEADING_THERE:
            leading = self._leading_passage(name, kind, stated)
            if leading is not None:
                return leading

        # In this order: models are made from these draws
        draw = rng.random()
        also: list[Relation] = []

        if draw >= _SAME_SUBJECT + _SIMILAR_SUBJECT:
            kind = rng.choice(list(self.grammar.kinds))
            name = draw_name(self.grammar, kind, rng)
        elif draw >= _SAME_SUBJECT:
            name = draw_similar_name(self.grammar, name, kind, rng)
            if rng.random() < _SAME_RELATION and (name, relation) not in stated:
                also.append(relation)

        return self._passage(name, kind, also, stated)

    def _leading_passage(
        self, name: str, kind: str, stated: set[tuple[str, Relation]]
    ) -> FactPassage | None:
        """Return a passage in which a fact leads to ``name``; None where none can, or other passages contradict it."""
        relations = [each for each in self.grammar.relations.values() if each.object_kind == kind]
        if not relations:
            return None

        relation = self.rng.choice(relations)
        subject = draw_name(self.grammar, relation.subject_kind, self.rng)
        fact = (subject, relation)
        if subject == name or fact in stated or fact in self._objects:
            return None

        self._objects[fact] = name
        return self._passage(subject, relation.subject_kind, [relation], stated)

    def _passage(
        self,
        subject: str,
        kind: str,
        relations: Sequence[Relation],
        stated: set[tuple[str, Relation]],
        word: str | None = None,
    ) -> FactPassage:
        """Return a passage that states ``relations`` first, and others at random that the result has not ``stated``."""
        others: list[Relation] = []
        for other in self.grammar.relations_of(kind):
            if (subject, other) not in stated and other not in relations:
                others.append(other)

        count = max(0, self.rng.randint(*self.stage.facts) - len(relations))
        chosen = [*relations, *self.rng.sample(others, min(count, len(others)))]
        stated.update((subject, relation) for relation in chosen)
        facts = [Fact(relation, subject, self._object(subject, relation)) for relation in chosen]
        return FactPassage(subject, kind, facts, f"{subject}\n{self._write(facts, word)}")

    def _object(self, subject: str, relation: Relation) -> str:
        # Drawn until it is new: nothing could follow a chain that comes back to a name
        while (subject, relation) not in self._objects:
            name = draw_name(self.grammar, relation.object_kind, self.rng)
            if name != subject and name not in self.visited:
                self._objects[subject, relation] = name

        return self._objects[subject, relation]

    def _write(self, facts: Sequence[Fact], word: str | None) -> str:
        rng = self.rng
        sentences: list[str] = []

        for fact in facts:
            # Drawn also where a word is given, so that the next draws are the same
            second = rng.random() < self.second_words
            random_word = fact.relation.second if second else fact.relation.noun
            sentences.append(write_statement(fact, word or random_word, rng))
            # It is that of the first fact alone
            word = None

        # A passage without a fact has a sentence at least
        fillers = max(rng.randint(*self.stage.fillers), 0 if facts else 1)
        sentences += rng.sample(self.grammar.fillers, fillers)
        rng.shuffle(sentences)

        text = ""
        for sentence in sentences:
            text += sentence + ("\n" if rng.random() < _NEW_PARAGRAPH else " ")

        return text.strip()
