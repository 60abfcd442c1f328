"""Learn the hybrid's weights from questions whose gold evidence is known.

A question has candidates c with features x_c and scores s_c = w.x_c; R of them are relevant. Each
relevant one should rank above all the irrelevant ones, wherever the other relevant ones are: the
loss is the mean over r in R of

    log(1 + sum over irrelevant j of exp(s_j - s_r))

averaged over questions, plus ridge / 2 * |w|^2. That is the cross entropy of a softmax as in
ListNet (Cao et al. 2007), without the competition among relevant candidates. It is convex, so that
L-BFGS finds the one minimum.

Whether the weights help is measured on questions held out: the questions are dealt into folds, each
is ranked with weights from the other folds, and unless MRR@10 and MAP@10 are then both at least the
better half's, the hybrid gives that half's ranking.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Chunk, Question
from deepsearch_rl.search.gold import (
    MAP,
    MRR,
    RANKED,
    Gold,
    mean_scores,
    score_facts,
    score_retriever,
    with_gold,
)
from deepsearch_rl.search.hybrid import (
    FEATURES,
    CandidateFinder,
    Candidates,
    Floats,
)
from deepsearch_rl.search.ranking import FusionWeights, LearningConfig, RankingName, rank

logger = logging.getLogger(__name__)

# Questions that are searched for at once, since an exact vector index is read whole for every call
BATCH_QUESTIONS = 64

# Decimals of a stored weight, so that machines that round differently store the same
DIGITS = 6


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question's candidates, and which items of its gold evidence, ``items`` in all, each of them holds."""

    candidates: Candidates
    items_C: tuple[frozenset[int], ...]
    items: int


def gather(
    finder: CandidateFinder,
    chunks: Sequence[Chunk],
    questions: Sequence[tuple[str, Gold]],
    depth: int = RANKED,
) -> list[QuestionExample]:
    """Return an example for every question, with candidates for a ranking of at least ``depth`` rows."""
    examples: list[QuestionExample] = []
    with ProgressBar("gather candidates", len(questions), "questions") as progress:
        for start in range(0, len(questions), BATCH_QUESTIONS):
            batch = questions[start : start + BATCH_QUESTIONS]
            candidates_Q = finder.find([text for text, _ in batch], depth)

            for candidates, (_, gold) in zip(candidates_Q, batch, strict=True):
                items_C: list[frozenset[int]] = []
                for row in candidates.rows_C.tolist():
                    items_C.append(frozenset(gold.found_in(chunks[row])))
                examples.append(QuestionExample(candidates, tuple(items_C), len(gold.items)))

            progress.advance(len(batch))

    return examples


def fit_weights(examples: Sequence[QuestionExample], ridge: float) -> Floats:
    """Return the weights_F of least loss; zeros where no example has a relevant candidate."""
    from scipy.optimize import minimize  # noqa: PLC0415 - costs 0.2 s, and searching does without

    # A question whose candidates are all irrelevant has no pair to learn from.
    usable = [example for example in examples if any(example.items_C)]
    start_F = np.zeros(len(FEATURES))
    if not usable:
        return start_F

    solution = minimize(ranking_loss(usable, ridge), start_F, jac=True, method="L-BFGS-B")
    return np.asarray(solution.x)


def ranking_loss(
    examples: Sequence[QuestionExample], ridge: float
) -> Callable[[Floats], tuple[float, Floats]]:
    """Return the loss and its derivative as a function of weights_F; each example has a relevant candidate."""
    # The C candidates of Q questions, one question after the other.
    features: list[Floats] = []
    relevant: list[NDArray[np.bool_]] = []
    shares: list[Floats] = []

    for example in examples:
        mask_C = np.array(list(map(bool, example.items_C)))
        features.append(example.candidates.features_CF)
        relevant.append(mask_C)
        shares.append(mask_C / mask_C.sum())

    features_CF = np.concatenate(features)
    relevant_C = np.concatenate(relevant)
    share_C = np.concatenate(shares)
    sizes_Q = np.array(list(map(len, relevant)))
    starts_Q = np.cumsum(sizes_Q) - sizes_Q

    def loss_and_slope(weights_F: Floats) -> tuple[float, Floats]:
        """Return the loss and its derivative; the module gives the formula."""
        # Differences of scores alone count, so the greatest becomes 0 and no exp overflows.
        scores_C = features_CF @ weights_F
        scores_C -= np.repeat(np.maximum.reduceat(scores_C, starts_Q), sizes_Q)

        # A question without an irrelevant candidate has next to nothing in place of its weight.
        irrelevant_C = np.where(relevant_C, 0.0, np.exp(scores_C))
        irrelevant_Q = np.add.reduceat(irrelevant_C, starts_Q)
        irrelevant_Q = np.maximum(irrelevant_Q, np.finfo(np.float64).tiny)

        # log(exp(s_r) + sum over irrelevant j of exp(s_j)) of every candidate r.
        log_irrelevant_C = np.repeat(np.log(irrelevant_Q), sizes_Q)
        log_all_C = np.logaddexp(scores_C, log_irrelevant_C)
        penalty = ridge / 2 * weights_F @ weights_F
        loss = share_C @ (log_all_C - scores_C) / len(sizes_Q) + penalty

        # The probability that r is not first, which pulls r up and the irrelevant ones down.
        lost_C = share_C * np.exp(log_irrelevant_C - log_all_C)
        lost_Q = np.add.reduceat(lost_C, starts_Q)
        slope_C = irrelevant_C * np.repeat(lost_Q / irrelevant_Q, sizes_Q) - lost_C
        return float(loss), slope_C @ features_CF / len(sizes_Q) + ridge * weights_F

    return loss_and_slope


def drawn_folds(questions: int, folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold_Q of every question, of equal sizes, drawn by seed."""
    return np.random.default_rng(seed).permutation(questions) % folds


def score_held_out(
    examples: Sequence[QuestionExample],
    ridge: float,
    fold_Q: NDArray[np.int64],
    cutoffs: Sequence[int] = (),
) -> list[dict[str, float]]:
    """Return the scores of every example, ranked with weights learnt from the other folds."""
    pairs = list(zip(examples, fold_Q.tolist(), strict=True))
    weights_by_fold: dict[int, Floats] = {}
    for held_out in set(fold_Q.tolist()):
        others = [example for example, fold in pairs if fold != held_out]
        weights_by_fold[held_out] = fit_weights(others, ridge)

    return [score_example(example, weights_by_fold[fold], cutoffs) for example, fold in pairs]


def learn_fusion(
    finder: CandidateFinder,
    chunks: Sequence[Chunk],
    questions: Sequence[Question],
    config: LearningConfig,
    seed: int,
) -> FusionWeights | None:
    """Learn from the questions whose gold evidence is known; None where those are too few to deal into folds."""
    sample = with_gold(questions)
    if len(sample) > config.questions:
        places = np.random.default_rng(seed).choice(len(sample), config.questions, replace=False)
        sample = [sample[place] for place in np.sort(places).tolist()]

    if len(sample) < config.folds:
        logger.info(
            "no hybrid is learnt: %d questions with gold evidence, %d folds",
            len(sample),
            config.folds,
        )
        return None

    examples = gather(finder, chunks, sample)
    folds = drawn_folds(len(sample), config.folds, seed)
    scores = {
        "learned": mean_scores(score_held_out(examples, config.ridge, folds)),
        "bm25": mean_scores(score_retriever(finder.bm25, chunks, sample)),
        "dense": mean_scores(score_retriever(finder.dense, chunks, sample)),
    }

    # The scores are of weights that did not see the question; what is stored learnt from all.
    weights_F = fit_weights(examples, config.ridge).round(DIGITS).tolist()
    return FusionWeights(
        ranking=choose(scores),
        weights=dict(zip(FEATURES, weights_F, strict=True)),
        questions=len(sample),
        held_out=scores,
    )


def choose(scores: Mapping[str, Mapping[str, float]]) -> RankingName:
    """Return ``learned`` if it is below the better half in neither score and above it in one, else that half."""
    halves: tuple[RankingName, RankingName] = ("bm25", "dense")
    better = max(halves, key=lambda half: scores[half][MRR] + scores[half][MAP])
    learned = scores["learned"]
    half = scores[better]
    never_below = all(learned[name] >= half[name] for name in (MRR, MAP))
    return "learned" if never_below and learned != half else better


def score_example(
    example: QuestionExample, weights_F: Floats, cutoffs: Sequence[int] = ()
) -> dict[str, float]:
    """Return the scores of a question whose candidates are ranked with these weights."""
    candidates = example.candidates
    items_by_row = dict(zip(candidates.rows_C.tolist(), example.items_C, strict=True))
    depth = max((*cutoffs, RANKED))
    ranking = rank(candidates.rows_C, candidates.scores(weights_F), depth)
    items_by_rank = [set(items_by_row[row]) for row in ranking.rows_K.tolist()]
    return score_facts(items_by_rank, example.items, cutoffs)
