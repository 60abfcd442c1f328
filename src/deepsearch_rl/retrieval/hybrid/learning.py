"""Learning the hybrid's weights from questions whose gold evidence is known.

For a question with candidates c, features x_c and relevant candidates R, the loss is the cross entropy between the
softmax of the scores w.x_c and equal shares for all of R (ListNet's top-one loss, Cao et al. 2007), averaged over
questions, plus ridge / 2 * |w|^2. It is convex, so that L-BFGS finds the one minimum whatever the start. Eight weights
cannot learn a question by heart, but whether they help is still asked of questions held out: the questions are dealt
into folds, each is ranked with weights from the other folds, and unless MRR@10 and MAP@10 are then both at least the
better half's, the hybrid gives that half's ranking.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.progress import track
from deepsearch_rl.records import Chunk, Question
from deepsearch_rl.retrieval.gold import Gold, gold_of
from deepsearch_rl.retrieval.hybrid.features import FEATURES, Floats
from deepsearch_rl.retrieval.hybrid.retriever import CandidateFinder, Candidates, order
from deepsearch_rl.retrieval.hybrid.weights import FusionWeights, LearningConfig, RankingName
from deepsearch_rl.retrieval.ranking import Retriever
from deepsearch_rl.retrieval.scores import RANKED, score_facts

logger = logging.getLogger(__name__)

MRR, MAP = f"mrr@{RANKED}", f"map@{RANKED}"
DIGITS = 6
"""Decimals of a stored weight, so that machines that round differently store the same."""


@dataclass(frozen=True, slots=True)
class Example:
    """A question's candidates and what each holds of its gold evidence, which has ``items`` items."""

    candidates: Candidates
    found_C: tuple[frozenset[int], ...]
    items: int

    @property
    def relevant_C(self) -> NDArray[np.bool_]:
        """Which candidates hold an item."""
        return np.array([bool(found) for found in self.found_C], dtype=np.bool_)


def gather(finder: CandidateFinder, chunks: Sequence[Chunk], questions: Sequence[tuple[str, Gold]]) -> list[Example]:
    """An example for every question, given as its text and its gold evidence."""
    return [
        _example(candidates, chunks, gold)
        for text, gold in track(questions, "gather candidates", len(questions), "questions")
        for candidates in finder.find([text], RANKED)
    ]


def _example(candidates: Candidates, chunks: Sequence[Chunk], gold: Gold) -> Example:
    found_C = tuple(frozenset(gold.found_in(chunks[row])) for row in candidates.rows_C.tolist())
    return Example(candidates, found_C, len(gold.items))


def fit_weights(examples: Sequence[Example], ridge: float) -> Floats:
    """The weights_F of least loss; zeros where no example has a relevant candidate."""
    from scipy.optimize import minimize  # noqa: PLC0415 - costs 0.2 s, and searching does without

    usable = [example for example in examples if any(example.found_C)]
    if not usable:
        return np.zeros(len(FEATURES))
    starts_Q = np.cumsum([0, *(len(example.found_C) for example in usable[:-1])])
    features_CF = np.concatenate([example.candidates.features_CF for example in usable])
    target_C = np.concatenate([example.relevant_C / example.relevant_C.sum() for example in usable])
    sizes_Q = np.diff(starts_Q, append=len(target_C))

    def loss(weights_F: Floats) -> tuple[float, Floats]:
        scores_C = features_CF @ weights_F
        scores_C -= np.repeat(np.maximum.reduceat(scores_C, starts_Q), sizes_Q)
        normaliser_C = np.repeat(np.add.reduceat(np.exp(scores_C), starts_Q), sizes_Q)
        log_shares_C = scores_C - np.log(normaliser_C)
        slope_F = features_CF.T @ (np.exp(log_shares_C) - target_C) / len(usable) + ridge * weights_F
        return float(-(target_C @ log_shares_C) / len(usable) + ridge / 2 * weights_F @ weights_F), slope_F

    return np.asarray(minimize(loss, np.zeros(features_CF.shape[1]), jac=True, method="L-BFGS-B").x)


def held_out_weights(examples: Sequence[Example], ridge: float, folds: int, seed: int) -> list[Floats]:
    """For every example, weights learnt from the other folds; which fold a question is in is drawn by seed."""
    fold_Q = np.random.default_rng(seed).permutation(len(examples)) % folds
    by_fold = [
        fit_weights([example for example, own in zip(examples, fold_Q, strict=True) if own != fold], ridge)
        for fold in range(folds)
    ]
    return [by_fold[fold] for fold in fold_Q.tolist()]


def learn_fusion(
    finder: CandidateFinder, chunks: Sequence[Chunk], questions: Sequence[Question], config: LearningConfig, seed: int
) -> FusionWeights | None:
    """Learn from the questions whose gold evidence is known; None where those are too few to deal into folds."""
    asked = _drawn([(one.question, gold) for one in questions if (gold := gold_of(one))], config.questions, seed)
    if len(asked) < config.folds:
        logger.info("no hybrid is learnt: %d questions with gold evidence, %d folds", len(asked), config.folds)
        return None
    examples = gather(finder, chunks, asked)
    held_out = held_out_weights(examples, config.ridge, config.folds, seed)
    scores = {"learned": _means([_scores(one, weights_F) for one, weights_F in zip(examples, held_out, strict=True)])}
    for name, half in (("bm25", finder.bm25), ("dense", finder.dense)):
        scores[name] = _means(_half_scores(half, chunks, asked))
    weights_F = fit_weights(examples, config.ridge).round(DIGITS).tolist()
    return FusionWeights(
        ranking=choose(scores),
        weights=dict(zip(FEATURES, weights_F, strict=True)),
        questions=len(asked),
        held_out=scores,
    )


def choose(scores: Mapping[str, Mapping[str, float]]) -> RankingName:
    """``learned`` if it is below the better half in neither score and above it in one, else that half."""
    halves: tuple[RankingName, RankingName] = ("bm25", "dense")
    better = max(halves, key=lambda half: scores[half][MRR] + scores[half][MAP])
    learned, half = scores["learned"], scores[better]
    never_below = all(learned[name] >= half[name] for name in (MRR, MAP))
    return "learned" if never_below and learned != half else better


def _drawn(asked: list[tuple[str, Gold]], most: int, seed: int) -> list[tuple[str, Gold]]:
    if len(asked) <= most:
        return asked
    chosen = np.sort(np.random.default_rng(seed).choice(len(asked), most, replace=False))
    return [asked[position] for position in chosen.tolist()]


def _scores(example: Example, weights_F: Floats) -> dict[str, float]:
    found_by_row = dict(zip(example.candidates.rows_C.tolist(), example.found_C, strict=True))
    ranking = order(example.candidates, weights_F, RANKED)
    return score_facts([set(found_by_row[row]) for row in ranking.rows_K.tolist()], example.items, ())


def _half_scores(half: Retriever, chunks: Sequence[Chunk], asked: Sequence[tuple[str, Gold]]) -> list[dict[str, float]]:
    rankings = half.search([text for text, _ in asked], RANKED)
    return [
        score_facts([gold.found_in(chunks[row]) for row in ranking.rows_K.tolist()], len(gold.items), ())
        for ranking, (_, gold) in zip(rankings, asked, strict=True)
    ]


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(fmean(row[name] for row in rows), 4) for name in (MRR, MAP)}
