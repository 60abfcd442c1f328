"""Both generated worlds from one config and one seed, and their questions about chains of facts and comparisons."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from deepsearch_rl import answers
from deepsearch_rl.corpora.world.facts import World, build_world
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN, Grammar
from deepsearch_rl.errors import ConfigError, look_up
from deepsearch_rl.records import Document, Evidence, Question, Record

IN_DOMAIN_HOPS: Mapping[str, tuple[int, ...]] = {"1_hop": (1,), "2_hop": (2,), "3_hop": (3,), "null": (1, 2, 3)}
"""Lengths of the chains of each question type, in equal parts."""

OUT_OF_DOMAIN_SETS: Mapping[str, Mapping[str, tuple[float, int]]] = {
    "musique": {"2_hop": (0.5, 2), "3_hop": (0.3, 3), "4_hop": (0.2, 4)},
    "2wikimultihopqa": {"compositional": (0.7, 2), "comparison": (0.3, 0)},
    "hotpotqa": {"bridge": (0.8, 2), "comparison": (0.2, 0)},
}
"""Share and chain length (0: no chain) of each question type of each set, as in the sets that they stand for."""
COMPARED_YEAR = "opening_year"
MAX_DRAWS = 50_000
Comparison = tuple[str, str, str]
"""A relation and the two names, sorted."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A head, the relations to follow from it and the entities visited; None where a fact of the chain is missing."""

    head: str
    relations: tuple[str, ...]
    visited: tuple[str, ...] | None


class WorldConfig(Record):
    """Sizes of the generated worlds."""

    in_domain: dict[str, int] = Field(description="kind -> number of entities of the world trained on")
    out_of_domain: dict[str, int] = Field(description="kind -> number of entities of the other world")
    missing: float = Field(ge=0, lt=1, description="probability that a fact is stated nowhere")
    questions: dict[str, int] = Field(description="split -> number of questions")
    mix: dict[str, float] = Field(description="question type -> share of every split")
    out_of_domain_questions: int = Field(ge=1, description="number of questions of each out-of-domain set")


class Generated(Record):
    """Documents by corpus, and questions by question set and split."""

    corpora: dict[str, tuple[Document, ...]]
    questions: dict[str, dict[str, tuple[Question, ...]]]


def generate(config: WorldConfig, seed: int) -> Generated:
    """Generate the corpora ``world`` and ``outworld`` and their question sets; equal arguments give equal records."""
    rng = random.Random(f"in-domain {seed}")
    world = build_world(IN_DOMAIN, config.in_domain, config.missing, rng)
    splits = in_domain_questions(world, config.questions, config.mix, rng)
    rng = random.Random(f"out-of-domain {seed}")
    outworld = build_world(OUT_OF_DOMAIN, config.out_of_domain, config.missing, rng)
    sets = out_of_domain_questions(outworld, config.out_of_domain_questions, rng)
    return Generated(
        corpora={"world": world.documents, "outworld": outworld.documents},
        questions={"multihoprag": splits, **{dataset: {"val": questions} for dataset, questions in sets.items()}},
    )


def in_domain_questions(
    world: World, sizes: Mapping[str, int], mix: Mapping[str, float], rng: random.Random
) -> dict[str, tuple[Question, ...]]:
    """Return ``sizes[split]`` questions per split of the types in ``mix``; no entity heads questions of two splits."""
    for question_type in mix:
        look_up("question type", question_type, {**IN_DOMAIN_HOPS, "comparison": ()})
    heads: dict[str, dict[str, list[str]]] = {split: {} for split in sizes}
    for kind, names in world.entities.items():
        shuffled = iter(rng.sample(names, len(names)))
        for split, count in apportion(len(names), sizes).items():
            heads[split][kind] = list(itertools.islice(shuffled, count))
    return {
        split: _number(_split_questions(world, size, heads[split], mix, rng), f"multihoprag-{split}", rng)
        for split, size in sizes.items()
    }


def out_of_domain_questions(world: World, size: int, rng: random.Random) -> dict[str, tuple[Question, ...]]:
    """Return the three stand-in sets, ``size`` questions each; raise ConfigError if the world is too small."""
    sets: dict[str, tuple[Question, ...]] = {}
    for dataset, types in OUT_OF_DOMAIN_SETS.items():
        questions: list[Question] = []
        for question_type, count in apportion(size, {name: share for name, (share, _) in types.items()}).items():
            if hops := types[question_type][1]:
                chains = _draw_chains(world, world.entities, hops, count, False, rng)
                questions += [
                    _ask(world, chain, world.grammar.questions[dataset], question_type, rng) for chain in chains
                ]
            else:
                questions += _earlier_questions(world, dataset, count, rng)
        sets[dataset] = _number(questions, f"{dataset}-val", rng)
    return sets


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return whole numbers that add up to ``total``, proportional to the weights (largest remainder first)."""
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    counts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def _split_questions(
    world: World, size: int, heads: Mapping[str, Sequence[str]], mix: Mapping[str, float], rng: random.Random
) -> list[Question]:
    questions: list[Question] = []
    for question_type, count in apportion(size, mix).items():
        if question_type == "comparison":
            questions += _same_object_questions(world, heads, count, rng)
            continue
        for hops, part in apportion(count, {str(length): 1.0 for length in IN_DOMAIN_HOPS[question_type]}).items():
            for chain in _draw_chains(world, heads, int(hops), part, question_type == "null", rng):
                answer_kind = world.grammar.relations[chain.relations[-1]].object_kind
                templates = world.grammar.questions["person" if answer_kind == "person" else "other"]
                questions.append(_ask(world, chain, templates, question_type, rng))
    return questions


def _number(questions: list[Question], prefix: str, rng: random.Random) -> tuple[Question, ...]:
    """Shuffle, so that the first n questions are a fair sample, and number from 0."""
    rng.shuffle(questions)
    return tuple(
        question.model_copy(update={"id": f"{prefix}-{number:05d}"}) for number, question in enumerate(questions)
    )


def _draw_chains(
    world: World, heads: Mapping[str, Sequence[str]], hops: int, count: int, broken: bool, rng: random.Random
) -> list[Chain]:
    """Draw different chains of one length, either all with a missing fact (``broken``) or all without."""
    candidates = [
        chain
        for kind, names in heads.items()
        for chain in _chains(world, names, kind, hops)
        if (chain.visited is None) == broken
    ]
    if len(candidates) < count:
        what = "with a missing fact" if broken else "with an answer"
        raise ConfigError(
            f"the generated world has {len(candidates)} chains of {hops} facts {what} for a split that needs {count}; "
            "raise the numbers of entities or lower the numbers of questions (download.world)."
        )
    return rng.sample(candidates, count)


def _chains(world: World, heads: Sequence[str], kind: str, hops: int) -> Iterator[Chain]:
    """Yield every chain of ``hops`` relations from the heads that visits no entity twice."""
    shapes = list(_chain_shapes(world.grammar, kind, hops))
    reverse_pairs = {(relation.name, relation.reverse) for relation in world.grammar.relations.values()}
    for head in heads:
        for relations in shapes:
            visited = world.follow(relations, head)
            if visited is None:
                if reverse_pairs.isdisjoint(itertools.pairwise(relations)):
                    yield Chain(head, relations, None)
            elif len({head, *visited}) == hops + 1:
                yield Chain(head, relations, tuple(visited))


def _chain_shapes(grammar: Grammar, kind: str, hops: int) -> Iterator[tuple[str, ...]]:
    """Yield every sequence of ``hops`` matching relations that starts at ``kind``, in the grammar's order."""
    if hops == 0:
        yield ()
        return
    for relation in grammar.relations.values():
        if relation.subject_kind == kind:
            for rest in _chain_shapes(grammar, relation.object_kind, hops - 1):
                yield (relation.name, *rest)


def _ask(world: World, chain: Chain, templates: Sequence[str], question_type: str, rng: random.Random) -> Question:
    """Ask for a chain's end; a missing fact makes the answer INSUFFICIENT."""
    text = rng.choice(templates).format(path=world.grammar.path(chain.relations, chain.head))
    if chain.visited is None:
        return _question(text, answers.INSUFFICIENT, question_type, [chain.relations], ())
    facts = zip((chain.head, *chain.visited), chain.relations, strict=False)
    evidence = tuple(world.evidence[fact] for fact in facts)
    return _question(text, chain.visited[-1], question_type, [chain.relations], evidence)


def _question(
    text: str, answer: str, question_type: str, plan: Sequence[tuple[str, ...]], evidence: tuple[Evidence, ...]
) -> Question:
    """Return a question without a number; ``plan`` holds a chain of relation names per entity that the text names."""
    metadata = {
        "question_type": question_type,
        "evidence_list": evidence,
        "generated": True,
        "hops": sum(map(len, plan)),
        "plan": [list(chain) for chain in plan],
    }
    return Question.model_validate(
        {"id": "unnumbered", "question": text, "golden_answers": (answer,), "metadata": metadata}
    )


def _same_object_questions(
    world: World, heads: Mapping[str, Sequence[str]], count: int, rng: random.Random
) -> list[Question]:
    """Ask whether two heads of a kind share an object ("yes" and "no" in turn)."""
    relations = [relation for relation in world.grammar.relations.values() if not relation.reverse]

    def draw(done: int) -> tuple[Comparison, Question] | None:
        """Return the next comparison, None where the drawn one has another answer than its turn needs."""
        relation = rng.choice(relations)
        names = heads.get(relation.subject_kind, ())
        if len(names) < 2:
            return None
        first, second = rng.sample(names, 2)
        objects = [world.objects.get((name, relation.name)) for name in (first, second)]
        answer = "yes" if done % 2 == 0 else "no"
        if None in objects or (objects[0] == objects[1]) != (answer == "yes"):
            return None
        template = rng.choice(world.grammar.comparisons["multihoprag"])
        text = template.format(first=first, second=second, noun=relation.noun)
        return _compare(world, text, answer, relation.name, first, second)

    return _draw_distinct(draw, count)


def _earlier_questions(world: World, dataset: str, count: int, rng: random.Random) -> list[Question]:
    """Ask which of two crossings opened first; the answer is its name."""
    years = {subject: year for (subject, relation), year in world.objects.items() if relation == COMPARED_YEAR}
    names = sorted(years)

    def draw(_done: int) -> tuple[Comparison, Question] | None:
        if len(names) < 2:
            return None
        first, second = rng.sample(names, 2)
        if years[first] == years[second]:
            return None
        answer = min(first, second, key=years.__getitem__)
        text = rng.choice(world.grammar.comparisons[dataset]).format(first=first, second=second)
        return _compare(world, text, answer, COMPARED_YEAR, first, second)

    return _draw_distinct(draw, count)


def _compare(
    world: World, text: str, answer: str, relation: str, first: str, second: str
) -> tuple[Comparison, Question]:
    evidence = (world.evidence[first, relation], world.evidence[second, relation])
    question = _question(text, answer, "comparison", [(relation,), (relation,)], evidence)
    return (relation, min(first, second), max(first, second)), question


def _draw_distinct(draw: Callable[[int], tuple[Comparison, Question] | None], count: int) -> list[Question]:
    """Draw until there are ``count`` different comparisons; ``draw`` is told how many there are."""
    questions: dict[Comparison, Question] = {}
    for _ in range(MAX_DRAWS):
        if len(questions) == count:
            return list(questions.values())
        if drawn := draw(len(questions)):
            questions.setdefault(*drawn)
    raise ConfigError(
        f"the generated world has entities for {len(questions)} comparison questions, not {count}; "
        "raise the numbers of entities or lower the share of comparisons (download.world)."
    )
