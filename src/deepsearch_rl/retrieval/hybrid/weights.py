"""What a hybrid has learnt, as the index manifest keeps it."""

from typing import Literal

from pydantic import Field

from deepsearch_rl.records import NonEmpty, Record

RankingName = Literal["learned", "bm25", "dense"]


class LearningConfig(Record):
    """How the weights are learnt."""

    split: NonEmpty = Field(description="questions of this split are learnt from, of every dataset of the corpus")
    questions: int = Field(ge=1, description="at most so many of them, drawn by seed")
    ridge: float = Field(gt=0, description="strength of the penalty on squared weights")
    folds: int = Field(ge=2, description="parts that the questions are dealt into to compare with both halves")


class FusionWeights(Record):
    """Which ranking an index's hybrid gives, and why."""

    ranking: RankingName
    """``learned``, or the better half where learning does not beat it on questions held out."""
    weights: dict[str, float]
    """By feature (:mod:`.features`); learnt from all the questions."""
    questions: int
    """Learnt from, and scored on while held out."""
    held_out: dict[str, dict[str, float]]
    """MRR@10 and MAP@10 of ``learned``, ``bm25`` and ``dense``; the first from weights of the other folds."""
