"""Facts of a world, drawn at random, and the articles that state them."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepsearch_rl.corpora.world.grammar import YEAR, Grammar, Relation
from deepsearch_rl.errors import ConfigError, UnknownNameError
from deepsearch_rl.records import Document, Evidence

MAX_PARAGRAPHS = 6  # of an article
Fact = tuple[str, str]
"""Subject and relation name."""


@dataclass(frozen=True, slots=True)
class World:
    """The facts and articles of a generated world."""

    grammar: Grammar
    entities: Mapping[str, tuple[str, ...]]
    """Kind -> names, in a fixed order."""
    objects: Mapping[Fact, str]
    """A fact that is not here is missing: no article states it."""
    documents: tuple[Document, ...]
    """One article per entity, sorted by id."""
    evidence: Mapping[Fact, Evidence]
    """Sentence and document of each fact."""

    def follow(self, chain: Sequence[str], head: str) -> list[str] | None:
        """Return the entities that a chain of relations visits after ``head``; None where a fact is missing."""
        visited = [head]
        for relation in chain:
            if (visited[-1], relation) not in self.objects:
                return None
            visited.append(self.objects[visited[-1], relation])
        return visited[1:]


def build_world(grammar: Grammar, counts: Mapping[str, int], missing: float, rng: random.Random) -> World:
    """Draw ``counts[kind]`` entities of each kind and one object per relation and subject, and write the articles.

    A fact is missing with probability ``missing``. Where a relation has a reverse, both directions are, so that the
    other entity's article does not state the missing fact. Raises ConfigError for a kind or number that cannot be.
    """
    entities = {kind: _draw_names(grammar, kind, count, rng) for kind, count in counts.items()}
    years = {YEAR: grammar.kinds[YEAR].word_lists[0]} if YEAR in grammar.kinds else {}
    pools = entities | years
    if kinds := sorted(set(grammar.kinds) - set(pools)):
        raise ConfigError(f"the generated world needs a number of entities for {', '.join(kinds)}.")
    objects: dict[Fact, str] = {}
    # Relations with a reverse come last: they replace what was drawn for the reverse relation on its own.
    for relation in sorted(grammar.relations.values(), key=lambda relation: bool(relation.reverse)):
        objects |= _draw_facts(relation, pools, rng)
    removed = {fact for fact in objects if rng.random() < missing}
    for (subject, name), object_ in objects.items():
        reverse = grammar.relations[name].reverse
        both = {(subject, name), (object_, reverse)}
        if reverse and both & removed:
            removed |= both
    facts = {fact: object_ for fact, object_ in objects.items() if fact not in removed}
    return World(grammar, entities, facts, *_write_articles(grammar, entities, facts, rng))


def _draw_names(grammar: Grammar, kind: str, count: int, rng: random.Random) -> tuple[str, ...]:
    if kind not in grammar.kinds or kind == YEAR:
        raise UnknownNameError("kind of entity", kind, set(grammar.kinds) - {YEAR})
    word_lists = grammar.kinds[kind].word_lists
    available = math.prod(map(len, word_lists))
    if not 2 <= count <= available:
        raise ConfigError(f"a generated world can have 2 to {available} entities of kind {kind!r}, not {count}.")
    return tuple(rng.sample([" ".join(name) for name in itertools.product(*word_lists)], count))


def _draw_facts(relation: Relation, pools: Mapping[str, tuple[str, ...]], rng: random.Random) -> dict[Fact, str]:
    subjects, candidates = pools[relation.subject_kind], pools[relation.object_kind]
    facts: dict[Fact, str] = {}
    if not relation.reverse:
        for subject in subjects:
            while (drawn := rng.choice(candidates)) == subject:
                pass
            facts[subject, relation.name] = drawn
        return facts
    partners = rng.sample(candidates, min(len(candidates), len(subjects)))
    pairs = zip(*((partners[::2], partners[1::2]) if subjects == candidates else (subjects, partners)), strict=False)
    for subject, partner in pairs:
        facts[subject, relation.name] = partner
        facts[partner, relation.reverse] = subject
    return facts


def _write_articles(
    grammar: Grammar, entities: Mapping[str, Sequence[str]], objects: Mapping[Fact, str], rng: random.Random
) -> tuple[tuple[Document, ...], dict[Fact, Evidence]]:
    """Return the articles, and the sentence of each fact; every fact is one sentence of its subject's article."""
    documents: list[Document] = []
    evidence: dict[Fact, Evidence] = {}
    for kind, names in sorted(entities.items()):
        relations = [relation for relation in grammar.relations.values() if relation.subject_kind == kind]
        for number, name in enumerate(names):
            doc_id = f"{kind}-{number:04d}"
            sentences: list[str] = []
            for relation in relations:
                if object_ := objects.get((name, relation.name)):
                    sentences.append(rng.choice(relation.statements).format(subject=name, object=object_))
                    evidence[name, relation.name] = Evidence(fact=sentences[-1], doc_id=doc_id, title=name)
            paragraphs = _write_paragraphs(sentences, grammar.kinds[kind].fillers, rng)
            metadata = {"generated": True, "kind": kind}
            documents.append(Document(id=doc_id, contents="\n".join([name, *paragraphs]), metadata=metadata))
    return tuple(documents), evidence


def _write_paragraphs(facts: Sequence[str], fillers: Sequence[str], rng: random.Random) -> list[str]:
    """Spread the facts over one to six paragraphs, at most two in each, and add one or two new fillers to each."""
    count = rng.randint(max(1, -(-len(facts) // 2)), MAX_PARAGRAPHS)
    paragraphs: list[list[str]] = [[] for _ in range(count)]
    places = rng.sample([place for place in range(count) for _ in range(2)], len(facts))
    for fact, place in zip(facts, places, strict=True):
        paragraphs[place].append(fact)
    padding = rng.sample(fillers, rng.randint(count, min(2 * count, len(fillers))))
    for number, filler in enumerate(padding):
        paragraphs[number % count].append(filler)
    for sentences in paragraphs:
        rng.shuffle(sentences)
    return [" ".join(sentences) for sentences in paragraphs]
