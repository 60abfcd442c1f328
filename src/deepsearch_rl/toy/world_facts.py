"""Facts of a world, drawn at random, and the articles that state them."""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.records import Document, Evidence
from deepsearch_rl.toy.grammar import STATEMENTS, Grammar

# Of an article: a long one makes several chunks, so that a search has to find the right one
MAX_PARAGRAPHS = 6
# Subject and relation
Fact = tuple[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """The facts and articles of a generated world."""

    grammar: Grammar
    # Kind -> names, in a fixed order
    entities: Mapping[str, tuple[str, ...]]
    # A fact that is not here is missing: no article states it
    objects: Mapping[Fact, str]
    # One article per entity, sorted by id
    documents: tuple[Document, ...]
    # Sentence and document of each fact
    evidence: Mapping[Fact, Evidence]

    def follow(self, chain: Sequence[str], head: str) -> list[str] | None:
        """Return the entities that a chain of relations visits after ``head``; None where a fact is missing."""
        visited = [head]
        for relation in chain:
            if (visited[-1], relation) not in self.objects:
                return None
            visited.append(self.objects[visited[-1], relation])

        return visited[1:]


def build_world(
    grammar: Grammar,
    counts: Mapping[str, int],
    missing: float,
    second_words: float,
    rng: random.Random,
) -> World:
    """Draw ``counts[kind]`` entities of each kind and one object per relation and subject, and write the articles.

    A fact is missing with probability ``missing``, and stated with the second word of its relation
    with probability ``second_words``. Raises ConfigError for a kind or number that cannot be.
    """
    entities: dict[str, tuple[str, ...]] = {}
    for kind, count in counts.items():
        entities[kind] = _draw_names(grammar, kind, count, rng)

    if kinds := sorted(set(grammar.kinds) - set(entities)):
        raise ConfigError(f"the generated world needs a number of entities for {', '.join(kinds)}.")

    facts: dict[Fact, str] = {}
    for noun, relation in grammar.relations.items():
        for subject in entities[relation.subject_kind]:
            # Nothing is its own teacher
            object_ = rng.choice(entities[relation.object_kind])
            while object_ == subject:
                object_ = rng.choice(entities[relation.object_kind])
            if rng.random() >= missing:
                facts[subject, noun] = object_

    documents, evidence = _write_articles(grammar, entities, facts, second_words, rng)
    return World(grammar, entities, facts, documents, evidence)


def _draw_names(grammar: Grammar, kind: str, count: int, rng: random.Random) -> tuple[str, ...]:
    word_lists = look_up("kind of entity", kind, grammar.kinds).word_lists
    available = math.prod(map(len, word_lists))

    if not 2 <= count <= available:
        raise ConfigError(
            f"a generated world can have 2 to {available} entities of kind {kind!r}, not {count}."
        )

    names = [" ".join(words) for words in itertools.product(*word_lists)]
    return tuple(rng.sample(names, count))


def _write_articles(
    grammar: Grammar,
    entities: Mapping[str, Sequence[str]],
    objects: Mapping[Fact, str],
    second_words: float,
    rng: random.Random,
) -> tuple[tuple[Document, ...], dict[Fact, Evidence]]:
    """Return the articles, and the sentence of each fact; every fact is one sentence of its subject's article."""
    documents: list[Document] = []
    evidence: dict[Fact, Evidence] = {}

    for kind, names in sorted(entities.items()):
        for number, name in enumerate(names):
            doc_id = f"{kind}-{number:04d}"
            sentences: list[str] = []

            for relation in grammar.relations_of(kind):
                fact = (name, relation.noun)
                # Some facts of the world are missing: questions about them have no answer
                if fact not in objects:
                    continue

                noun = relation.second if rng.random() < second_words else relation.noun
                statement = rng.choice(STATEMENTS)
                sentence = statement.format(noun=noun, subject=name, object=objects[fact])
                sentences.append(sentence)
                evidence[fact] = Evidence(fact=sentence, doc_id=doc_id, title=name)

            paragraphs = _write_paragraphs(sentences, grammar.fillers, rng)
            contents = "\n".join([name, *paragraphs])
            metadata = {"generated": True, "kind": kind}
            documents.append(Document(id=doc_id, contents=contents, metadata=metadata))

    return tuple(documents), evidence


def _write_paragraphs(
    facts: Sequence[str], fillers: Sequence[str], rng: random.Random
) -> list[str]:
    """Spread the facts over one to six paragraphs, at most two in each, and add one or two new fillers to each."""
    count = rng.randint(max(1, math.ceil(len(facts) / 2)), MAX_PARAGRAPHS)
    paragraphs: list[list[str]] = [[] for _ in range(count)]

    # Two places in every paragraph, in the order of the paragraphs.
    places = rng.sample(sorted([*range(count), *range(count)]), len(facts))
    for fact, place in zip(facts, places, strict=True):
        paragraphs[place].append(fact)

    padding = rng.sample(fillers, rng.randint(count, min(2 * count, len(fillers))))
    for number, filler in enumerate(padding):
        paragraphs[number % count].append(filler)

    # Position must not tell facts from fillers
    for sentences in paragraphs:
        rng.shuffle(sentences)
    return [" ".join(sentences) for sentences in paragraphs]
