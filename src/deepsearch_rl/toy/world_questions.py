"""The two generated worlds, and their questions about chains of facts."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import Field

from deepsearch_rl.core import answers
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.records import Document, Evidence, Question, Record
from deepsearch_rl.toy.grammar import IN_DOMAIN, OUT_OF_DOMAIN, STYLES, Grammar, ask
from deepsearch_rl.toy.world_facts import World, build_world

# What a total is dealt out to: a split, a question type, a length
PartT = TypeVar("PartT")
IN_DOMAIN_SET = "multihoprag"
# Lengths of the chains of each question type, in equal parts
IN_DOMAIN_HOPS: Mapping[str, tuple[int, ...]] = {
    "1_hop": (1,),
    "2_hop": (2,),
    "3_hop": (3,),
    "null": (1, 2, 3),
}

# The question type in which one noun means two relations, such as "grandteacher"
INFERENCE = "inference"

# Share and chain length of each question type, as in the real sets but without comparisons
OUT_OF_DOMAIN_SETS: Mapping[str, Mapping[str, tuple[float, int]]] = {
    "musique": {"2_hop": (0.5, 2), "3_hop": (0.3, 3), "4_hop": (0.2, 4)},
    "2wikimultihopqa": {"compositional": (0.6, 2), INFERENCE: (0.4, 2)},
    "hotpotqa": {"bridge": (1.0, 2)},
}


@dataclass(frozen=True, slots=True)
class Chain:
    """A head, the relations to follow from it and the entities visited; None where a fact of the chain is missing."""

    head: str
    relations: tuple[str, ...]
    visited: tuple[str, ...] | None


class WorldConfig(Record):
    """Sizes of the generated worlds."""

    in_domain: dict[str, int] = Field(
        description="kind -> number of entities of the world trained on"
    )
    out_of_domain: dict[str, int] = Field(
        description="kind -> number of entities of the other world"
    )
    missing: float = Field(ge=0, lt=1, description="probability that a fact is stated nowhere")
    second_words: float = Field(
        ge=0, le=1, description="probability that a fact's sentence says its second word"
    )
    questions: dict[str, int] = Field(description="split -> number of questions")
    mix: dict[str, float] = Field(description="question type -> share of every split")
    out_of_domain_questions: int = Field(
        ge=1, description="number of questions of each out-of-domain set"
    )


class Generated(Record):
    """Documents by corpus, and questions by question set and split."""

    corpora: dict[str, tuple[Document, ...]]
    questions: dict[str, dict[str, tuple[Question, ...]]]


def generate(config: WorldConfig, seed: int) -> Generated:
    """Generate the corpora ``world`` and ``outworld`` and their question sets; equal arguments give equal records."""
    rng = random.Random(f"in-domain {seed}")
    world = build_world(IN_DOMAIN, config.in_domain, config.missing, config.second_words, rng)
    questions = {IN_DOMAIN_SET: in_domain_questions(world, config.questions, config.mix, rng)}

    # Its own generator, so that the sizes of one world do not change the other
    rng = random.Random(f"out-of-domain {seed}")
    outworld = build_world(
        OUT_OF_DOMAIN, config.out_of_domain, config.missing, config.second_words, rng
    )
    sets = out_of_domain_questions(outworld, config.out_of_domain_questions, rng)
    for dataset, items in sets.items():
        questions[dataset] = {"val": items}

    return Generated(
        corpora={"world": world.documents, "outworld": outworld.documents}, questions=questions
    )


def in_domain_questions(
    world: World, sizes: Mapping[str, int], mix: Mapping[str, float], rng: random.Random
) -> dict[str, tuple[Question, ...]]:
    """Return ``sizes[split]`` questions per split of the types in ``mix``; no entity heads questions of two splits."""
    for question_type in mix:
        look_up("question type", question_type, IN_DOMAIN_HOPS)

    # A question of one split must not be part of a question of another
    heads: dict[str, dict[str, list[str]]] = {split: {} for split in sizes}
    for kind, names in world.entities.items():
        shuffled = iter(rng.sample(names, len(names)))
        for split, count in apportion(len(names), sizes).items():
            heads[split][kind] = list(itertools.islice(shuffled, count))

    splits: dict[str, tuple[Question, ...]] = {}
    for split, size in sizes.items():
        questions = _split_questions(world, size, heads[split], mix, rng)
        splits[split] = _shuffle_and_number(questions, f"{IN_DOMAIN_SET}-{split}", rng)

    return splits


def out_of_domain_questions(
    world: World, size: int, rng: random.Random
) -> dict[str, tuple[Question, ...]]:
    """Return the three stand-in sets, ``size`` questions each; raise ConfigError if the world is too small."""
    sets: dict[str, tuple[Question, ...]] = {}
    for dataset, types in OUT_OF_DOMAIN_SETS.items():
        questions: list[Question] = []
        shares = {name: share for name, (share, _) in types.items()}
        for question_type, count in apportion(size, shares).items():
            _, hops = types[question_type]
            inferred = question_type == INFERENCE
            chains = _draw_chains(world, world.entities, hops, count, rng, inferred=inferred)
            for chain in chains:
                questions.append(_ask(world, chain, dataset, question_type, rng))

        sets[dataset] = _shuffle_and_number(questions, f"{dataset}-val", rng)

    return sets


def apportion(total: int, weights: Mapping[PartT, float]) -> dict[PartT, int]:
    """Return whole numbers that add up to ``total``, proportional to the weights (largest remainder first)."""
    counts: dict[PartT, int] = {}
    remainders: dict[PartT, float] = {}
    for name, weight in weights.items():
        share = total * weight / sum(weights.values())
        counts[name] = int(share)
        remainders[name] = share - counts[name]

    # sorted is stable: of equal remainders, the one named first gets the next unit
    by_remainder = sorted(remainders, key=lambda name: -remainders[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1

    return counts


def _split_questions(
    world: World,
    size: int,
    heads: Mapping[str, Sequence[str]],
    mix: Mapping[str, float],
    rng: random.Random,
) -> list[Question]:
    questions: list[Question] = []
    for question_type, count in apportion(size, mix).items():
        # A type has as many questions of each of its lengths
        equal_shares = dict.fromkeys(IN_DOMAIN_HOPS[question_type], 1.0)
        for hops, part in apportion(count, equal_shares).items():
            broken = question_type == "null"
            chains = _draw_chains(world, heads, hops, part, rng, broken=broken)
            for chain in chains:
                questions.append(_ask(world, chain, IN_DOMAIN_SET, question_type, rng))

    return questions


def _shuffle_and_number(
    questions: list[Question], prefix: str, rng: random.Random
) -> tuple[Question, ...]:
    """Return the questions shuffled, so that the first n are a fair sample, and numbered from 0."""
    rng.shuffle(questions)
    numbered: list[Question] = []
    for number, question in enumerate(questions):
        numbered.append(question.model_copy(update={"id": f"{prefix}-{number:05d}"}))

    return tuple(numbered)


def _draw_chains(
    world: World,
    heads: Mapping[str, Sequence[str]],
    hops: int,
    count: int,
    rng: random.Random,
    *,
    broken: bool = False,
    inferred: bool = False,
) -> list[Chain]:
    """Draw different chains of one length: all with a missing fact (``broken``) or none, all ``inferred`` or none."""
    candidates: list[Chain] = []
    for kind, names in heads.items():
        for chain in _chains(world, names, kind, hops):
            is_broken = chain.visited is None
            is_inferred = chain.relations in world.grammar.inferences.values()
            if is_broken == broken and is_inferred == inferred:
                candidates.append(chain)

    if len(candidates) < count:
        what = "with a missing fact" if broken else "with an answer"
        raise ConfigError(
            f"the generated world has {len(candidates)} chains of {hops} facts {what} for a split "
            f"that needs {count}; raise the numbers of entities or lower the numbers of questions "
            "(download.world)."
        )

    return rng.sample(candidates, count)


def _chains(world: World, heads: Sequence[str], kind: str, hops: int) -> Iterator[Chain]:
    """Yield every chain of ``hops`` relations from the heads that visits no entity twice."""
    shapes = list(_chain_shapes(world.grammar, kind, hops))
    for head in heads:
        for relations in shapes:
            visited = world.follow(relations, head)
            if visited is None:
                yield Chain(head, relations, None)
            elif len({head, *visited}) == hops + 1:
                yield Chain(head, relations, tuple(visited))


def _chain_shapes(grammar: Grammar, kind: str, hops: int) -> Iterator[tuple[str, ...]]:
    """Yield every sequence of ``hops`` matching relations that starts at ``kind``, in the grammar's order."""
    if hops == 0:
        yield ()
        return

    for relation in grammar.relations_of(kind):
        for rest in _chain_shapes(grammar, relation.object_kind, hops - 1):
            yield (relation.noun, *rest)


def _ask(
    world: World, chain: Chain, dataset: str, question_type: str, rng: random.Random
) -> Question:
    """Ask for a chain's end; a missing fact makes the answer INSUFFICIENT."""
    style = STYLES[dataset]
    nouns = world.grammar.nouns(chain.relations, infer=question_type == INFERENCE)

    # A chain with a missing fact has no evidence: nothing in the corpus answers the question.
    evidence: tuple[Evidence, ...] = ()
    if chain.visited:
        subjects = (chain.head, *chain.visited[:-1])
        facts = zip(subjects, chain.relations, strict=True)
        evidence = tuple(world.evidence[fact] for fact in facts)

    metadata = {
        "question_type": question_type,
        "evidence_list": evidence,
        "generated": True,
        "hops": len(chain.relations),
        "plan": list(chain.relations),
    }
    text = ask(style, rng.choice(style.questions), nouns, chain.head)
    answer = chain.visited[-1] if chain.visited else answers.INSUFFICIENT
    return Question.model_validate(
        {"id": "unnumbered", "question": text, "golden_answers": (answer,), "metadata": metadata}
    )
