"""A world's entities and the facts between them, drawn from a grammar with a seeded generator."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepsearch_rl.corpora.world.language import Grammar, Relation
from deepsearch_rl.errors import ConfigError, UnknownNameError


@dataclass(frozen=True, slots=True)
class World:
    """What is true in a generated world.

    ``objects`` maps (subject, relation name) to the object; a pair that is not there is a missing fact, which no
    article states.
    """

    grammar: Grammar
    entities: Mapping[str, tuple[str, ...]]
    """Kind -> names, in a fixed order."""
    objects: Mapping[tuple[str, str], str]

    def follow(self, chain: Sequence[str], head: str) -> list[str] | None:
        """The entities that a chain of relations visits after ``head``; None where a fact is missing."""
        visited: list[str] = []
        subject = head
        for relation in chain:
            found = self.objects.get((subject, relation))
            if found is None:
                return None
            visited.append(found)
            subject = found
        return visited


def build_world(grammar: Grammar, counts: Mapping[str, int], missing: float, rng: random.Random) -> World:
    """Draw ``counts[kind]`` entities of each kind and one object per relation and subject, then lose some facts.

    A fact is lost with probability ``missing``; where a relation has a reverse, both directions are lost together, so
    that a missing fact cannot be read off the other entity's article.

    Raises:
        ConfigError: an unknown kind, or more entities than the kind has names.
    """
    entities = {kind: _draw_names(grammar, kind, count, rng) for kind, count in counts.items()}
    years = {"year": tuple(grammar.kinds["year"].word_lists[0])} if "year" in grammar.kinds else {}
    pools = entities | years
    if absent := sorted(set(grammar.kinds) - set(pools)):
        raise ConfigError(f"the generated world needs a number of entities for {', '.join(absent)}.")
    objects: dict[tuple[str, str], str] = {}
    # Relations with a reverse come last: they overrule what was drawn for the reverse relation on its own.
    for relation in sorted(grammar.relations.values(), key=lambda relation: bool(relation.reverse)):
        objects |= _draw_facts(relation, pools, rng)
    return World(grammar, entities, _lose_facts(grammar, objects, missing, rng))


def _draw_names(grammar: Grammar, kind: str, count: int, rng: random.Random) -> tuple[str, ...]:
    if kind not in grammar.kinds or kind == "year":
        raise UnknownNameError("kind of entity", kind, set(grammar.kinds) - {"year"})
    word_lists = grammar.kinds[kind].word_lists
    available = math.prod(map(len, word_lists))
    if not 2 <= count <= available:
        raise ConfigError(f"a generated world can have 2 to {available} entities of kind {kind!r}, not {count}.")
    return tuple(rng.sample([" ".join(name) for name in itertools.product(*word_lists)], count))


def _draw_facts(
    relation: Relation, pools: Mapping[str, tuple[str, ...]], rng: random.Random
) -> dict[tuple[str, str], str]:
    subjects, candidates = pools[relation.subject_kind], pools[relation.object_kind]
    if not relation.reverse:
        return {(subject, relation.name): _draw_other(subject, candidates, rng) for subject in subjects}
    drawn = rng.sample(candidates, min(len(candidates), len(subjects)))
    pairs = zip(drawn[::2], drawn[1::2], strict=False) if subjects == candidates else zip(subjects, drawn, strict=False)
    facts: dict[tuple[str, str], str] = {}
    for subject, found in pairs:
        facts[subject, relation.name] = found
        facts[found, relation.reverse] = subject
    return facts


def _draw_other(subject: str, candidates: Sequence[str], rng: random.Random) -> str:
    while (drawn := rng.choice(candidates)) == subject:
        pass
    return drawn


def _lose_facts(
    grammar: Grammar, objects: Mapping[tuple[str, str], str], missing: float, rng: random.Random
) -> dict[tuple[str, str], str]:
    lost: set[tuple[str, str]] = set()
    for subject, name in objects:
        if rng.random() < missing:
            lost.add((subject, name))
    for (subject, name), found in objects.items():
        reverse = grammar.relations[name].reverse
        if reverse and {(subject, name), (found, reverse)} & lost:
            lost |= {(subject, name), (found, reverse)}
    return {fact: found for fact, found in objects.items() if fact not in lost}
