"""Both generated worlds from one config and one seed."""

import random

from pydantic import Field

from deepsearch_rl.corpora.world.facts import build_world
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN
from deepsearch_rl.corpora.world.questions import in_domain_questions, out_of_domain_questions
from deepsearch_rl.records import Document, Question, Record


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
    """Generate the corpora ``world`` and ``outworld`` and their question sets; equal arguments give equal records.

    Raises ConfigError if sizes do not fit together, or a kind or question type is unknown.
    """
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
