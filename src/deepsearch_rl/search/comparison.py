"""An index's retrievers over questions with gold evidence: means and 95 % intervals.

The hybrid is scored by cross-validation. Intervals are percentile bootstraps over questions (Efron
and Tibshirani 1993, ch. 13); a difference is taken question by question before it is resampled.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from deepsearch_rl.core.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.core.records import Chunk, Question, Record
from deepsearch_rl.search import learning as hybrid
from deepsearch_rl.search import manifest
from deepsearch_rl.search.gold import MRR, RANKED, Gold, score_retriever, with_gold
from deepsearch_rl.search.hybrid import CandidateFinder
from deepsearch_rl.search.missing_gold import MissingGold, find_missing
from deepsearch_rl.search.own_retriever import RETRIEVERS
from deepsearch_rl.search.ranking import LearningConfig
from deepsearch_rl.search.searcher import (
    Searcher,
    open_finder,
    open_retriever,
)
from deepsearch_rl.search.sentence_terms import write_sentence_terms

# What is compared, in the order of the tables, each with its name for :func:`open_retriever`
COMPARED: dict[str, str] = {"bm25": "bm25", "dense": "dense", "rrf": "reciprocal_ranks"}
COMPARED.update({name: name for name in RETRIEVERS})

# Chunk lengths are means over at most so many chunks, evenly spaced: reading every chunk of
# wiki-18 takes longer than scoring the questions.
MEASURED_CHUNKS = 10_000

# A score per question, by metric
Scores = dict[str, NDArray[np.float64]]


class MetricInterval(Record):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


class ChunkLength(Record):
    """Mean length of a chunk with its title: longer chunks hold more facts, which flatters every score."""

    words: float
    characters: float


class RetrieverComparison(Record):
    """The scores of every retriever."""

    questions: int
    # Questions by kind of gold evidence: facts, documents, titles
    gold: dict[str, int]
    # Titles and documents that no passage of the index has
    missing_gold: MissingGold
    chunks: int
    chunk_length: ChunkLength
    # By retriever and metric
    scores: dict[str, dict[str, MetricInterval]]
    # By metric, against whichever of bm25 and dense has the greater MRR@10; empty unless all three
    # are compared
    hybrid_minus_better_half: dict[str, MetricInterval]


def compare_retrievers(
    searcher: Searcher,
    index_dir: Path,
    questions: Sequence[Question],
    retrievers: Sequence[str],
    cutoffs: Sequence[int],
    learning: LearningConfig | None,
    seed: int,
    draws: int,
) -> RetrieverComparison:
    """Score retrievers of an index, out of ``COMPARED``, over the questions whose gold evidence is known.

    No ``retrievers`` means all that the index has the halves for; the hybrid is one of both halves,
    also where its name stands for one of them in an index of that half. ``searcher`` is any opened
    retriever of the index, for its chunks. ``learning`` says how the hybrid learns in every fold;
    None scores the ranking that the index stores. ``seed`` draws the folds and the ``draws``
    resamples. Raise ArtifactError for too little gold evidence, UnknownNameError for a retriever
    that is not there, ConfigError for one that needs a half which the index was built without.
    """
    chunks = searcher.chunks
    examples = with_gold(questions)
    built = manifest.read_manifest(index_dir)
    names = _names(retrievers, built, index_dir)

    _require_examples(len(examples), len(questions), learning if "hybrid" in names else None)
    scores: dict[str, Scores] = {}
    for name in names:
        ranking = look_up("retriever", name, COMPARED)
        if name == "hybrid" and learning is not None:
            rows = _score_held_out(index_dir, chunks, examples, cutoffs, learning, seed)
        else:
            retriever = open_retriever(index_dir, built.config, built.fusion_weights, ranking)
            rows = score_retriever(retriever, chunks, examples, cutoffs)
        scores[name] = _by_metric(rows)

    intervals_of: dict[str, dict[str, MetricInterval]] = {}
    for name, by_metric in scores.items():
        intervals_of[name] = intervals(by_metric, seed, draws)

    golds = [gold for _, gold in examples]
    kinds = Counter[str](gold.kind for gold in golds)
    return RetrieverComparison(
        questions=len(examples),
        gold=dict(kinds),
        missing_gold=find_missing(chunks, golds),
        chunks=len(chunks),
        chunk_length=chunk_length(chunks),
        scores=intervals_of,
        hybrid_minus_better_half=intervals(_hybrid_minus_better_half(scores), seed, draws),
    )


def _names(
    retrievers: Sequence[str], built: manifest.IndexManifest, index_dir: Path
) -> Sequence[str]:
    """Return what is compared; raise ConfigError for a hybrid of an index that has one half."""
    halves = built.config.halves
    if len(halves) > 1:
        return retrievers or list(COMPARED)
    if "hybrid" in retrievers:
        half = "".join(halves)
        raise ConfigError(
            f"the index in {index_dir} has the half {half} alone, and a hybrid is of both: compare "
            f"--retriever {half}, or build the index with both halves."
        )
    return retrievers or halves


def _require_examples(examples: int, questions: int, learning: LearningConfig | None) -> None:
    """Raise ArtifactError where too few questions have gold evidence, with ``learning`` for its folds."""
    found = (
        f"{examples} of {questions} questions have gold evidence (metadata.evidence_list, "
        "supporting_doc_ids or supporting_titles)"
    )
    if examples == 0:
        raise ArtifactError(f"{found}, so that there is nothing to compare retrievers by.")
    # A fold without a question could not be scored
    if learning is not None and examples < learning.folds:
        raise ArtifactError(
            f"{found}, too few for a hybrid that learns from {learning.folds} folds of them: take fewer "
            "(--folds), or compare bm25 and dense alone (--retriever bm25 --retriever dense)."
        )


def _score_held_out(
    index_dir: Path,
    chunks: Sequence[Chunk],
    questions: Sequence[tuple[str, Gold]],
    cutoffs: Sequence[int],
    learning: LearningConfig,
    seed: int,
) -> list[dict[str, float]]:
    """Return the scores of every question, by a hybrid that has not learnt from it."""
    with opened_finder(index_dir, chunks) as finder:
        examples = hybrid.gather(finder, chunks, questions, max((*cutoffs, RANKED)))

    folds = hybrid.drawn_folds(len(examples), learning.folds, seed)
    return hybrid.score_held_out(examples, learning.ridge, folds, cutoffs)


def _by_metric(rows: Sequence[dict[str, float]]) -> Scores:
    """Return the scores of at least one question as an array per metric."""
    scores: Scores = {}
    for metric in rows[0]:
        scores[metric] = np.array([row[metric] for row in rows])

    return scores


def _hybrid_minus_better_half(scores: dict[str, Scores]) -> Scores:
    """Return the differences of every question; nothing unless all three were compared."""
    differences: Scores = {}
    if {"bm25", "dense", "hybrid"} <= scores.keys():
        better = max(("bm25", "dense"), key=lambda name: sum(scores[name][MRR]))
        for metric, values_Q in scores["hybrid"].items():
            differences[metric] = values_Q - scores[better][metric]

    return differences


def chunk_length(chunks: Sequence[Chunk]) -> ChunkLength:
    """Return the mean length of at least one chunk."""
    places = np.linspace(0, len(chunks) - 1, min(len(chunks), MEASURED_CHUNKS))
    words: list[int] = []
    characters: list[int] = []

    for row in np.unique(places.astype(int)).tolist():
        text = chunks[row].contents
        words.append(len(text.split()))
        characters.append(len(text))

    return ChunkLength(words=round(fmean(words), 1), characters=round(fmean(characters), 1))


def intervals(scores: Scores, seed: int, draws: int) -> dict[str, MetricInterval]:
    """Return the mean of every metric with its interval, all from the same resamples."""
    result: dict[str, MetricInterval] = {}
    for metric, values_Q in scores.items():
        mean = float(values_Q.mean())
        size = len(values_Q)

        # A generator for each metric, so that all of them draw the same questions.
        generator = np.random.default_rng(seed)
        means = [values_Q[generator.integers(0, size, size)].mean() for _ in range(draws)]

        # Without draws the interval is the mean itself.
        low, high = np.percentile(means or [mean], (2.5, 97.5)).tolist()
        result[metric] = MetricInterval(mean=mean, low=low, high=high)

    return result


@contextmanager
def opened_finder(index_dir: Path, chunks: Sequence[Chunk]) -> Iterator[CandidateFinder]:
    """Yield an index's finder of candidates; missing sentence terms are made in a temporary folder."""
    config = manifest.read_manifest(index_dir).config
    terms = index_dir / manifest.TERMS_FOLDER

    with TemporaryDirectory(prefix="sentence-terms-") as folder:
        if not terms.is_dir():
            terms = Path(folder, "terms")
            write_sentence_terms(chunks, terms)

        yield open_finder(index_dir, config, terms)
