"""Ranking on real question sets: BM25 plain and fielded, dense, reciprocal ranks and the learnt hybrid, with intervals.

    .venv/bin/python -m benchmarks.ranking                                   # all tables, some ten minutes on one core
    .venv/bin/python -m benchmarks.ranking --sets hotpotqa --questions 200 --tables scores

    scores     every retriever on every set; the hybrid by 5-fold cross-validation
    agent      the same with queries as agents write them: the steps of MuSiQue's questions ("Green performer"), or
               the pieces of a question; the hybrid learns from whole questions, as an index does, or from such queries
    ablation   the hybrid without one feature in turn, and with the first ones alone
    transfer   weights learnt on one set, tested on another
    speed      CPU milliseconds per query of every retriever, asked in turn

Documents are cut into chunks of at most ``--chunk-size`` tokens of the tokenizer ``words``, the
title not counted. Chunks, questions and indexes stay in ``--work``, where `deepsearch retrieve
eval` can read them too. A set's questions are those whose gold evidence is known and in its corpus.
Dense is TF-IDF + SVD; there are no neural weights.
"""

import argparse
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.measure import parse_options, publish, timed
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.search import learning
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.comparison import (
    MetricInterval,
    RetrieverComparison,
    Scores,
    compare_retrievers,
    intervals,
    opened_finder,
)
from deepsearch_rl.search.gold import (
    Gold,
    gold_evidence,
    mean_scores,
    score_retriever,
    with_gold,
)
from deepsearch_rl.search.hybrid import FEATURES, Floats, HybridRetriever
from deepsearch_rl.search.learning import QuestionExample, fit_weights, score_example
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.question_parts import SourceNames, split_question
from deepsearch_rl.search.ranking import LearningConfig, ReciprocalRankFusion, Retriever
from deepsearch_rl.search.searcher import open_index

SETS = {
    "multihoprag": ["queries"],
    "musique": ["train", "dev"],
    "2wikimultihopqa": ["dev"],
    "hotpotqa": ["train100", "dev"],
}
"""Question sets, and the files of their questions."""
PLAIN = {"contents": 1.0}
FIELDED = {"title": 1.0, "source": 1.0, "date": 1.0, "body": 1.0}
NAMES = {
    "bm25": "BM25F, title, source, date, body",
    "dense": "dense (TF-IDF + SVD)",
    "rrf": "reciprocal ranks of the two",
    "hybrid": "learnt hybrid, cross-validated",
}
# Sets whose files have the steps of a question
STEPPED = ("musique",)

METRICS = ("mrr@10", "map@10", "hits@4", "hits@10", "evidence_recall@10")
CUTOFFS = (4, 10)

# Resamples of an interval
DRAWS = 1000
LEARNING = LearningConfig(split="train", questions=5000, ridge=0.001, folds=5)
Table = tuple[Sequence[str], list[Sequence[object]]]


@dataclass(frozen=True)
class Prepared:
    """A question set with its indexes."""

    name: str
    questions: list[Question]
    plain: Path
    fielded: Path

    @cached_property
    def examples(self) -> list[QuestionExample]:
        """The candidates of every question in the fielded index."""
        chunks = open_index(self.fielded).chunks
        with opened_finder(self.fielded, chunks) as finder:
            return learning.gather(finder, chunks, with_gold(self.questions))


def prepare(name: str, options: argparse.Namespace) -> Prepared:
    """Chunk a set's corpus, keep the questions that it can answer, and index it twice, unless that is there already."""
    folder: Path = options.work / f"{name}-{options.chunk_size}"
    chunks = folder / "chunks" / "documents.jsonl"

    if not chunks.is_file():
        documents = list(data.read_documents(options.data / name))
        data.chunk_documents(documents, folder, "sentences", options.chunk_size)
        questions = data.read_questions(options.data / name, SETS[name], documents)
        write_jsonl(folder / "questions.jsonl", questions)

    for kind, fields in (("plain", PLAIN), ("fielded", FIELDED)):
        if not (folder / kind).is_dir():
            build_index(chunks, folder / kind, index_config(fields), seed=0)

    questions = list(read_jsonl(folder / "questions.jsonl", Question))[: options.questions]
    return Prepared(name, questions, folder / "plain", folder / "fielded")


def index_config(fields: dict[str, float]) -> IndexConfig:
    """Return the tiny profile's index with weighted fields, and equal weights of its halves."""
    section = data.params_section("index")
    bm25 = {**section["bm25"], "fields": fields}
    fusion = {**section["fusion"], "dense_weight": 1.0}
    return data.index_config(bm25=bm25, fusion=fusion)


def scores_table(own: Prepared) -> tuple[Table, str]:
    """Return the scores of every retriever on a set, and a note of its size."""
    plain = _compare(own.plain, own.questions, ("bm25",))
    fielded = _compare(own.fielded, own.questions, tuple(NAMES))

    rows: list[Sequence[object]] = [("BM25, title and body", *_cells(plain.scores["bm25"], ".3f"))]
    for name, scores in fielded.scores.items():
        rows.append((NAMES[name], *_cells(scores, ".3f")))
    rows.append(("hybrid minus its better half", *_cells(fielded.hybrid_minus_better_half, "+.3f")))

    length = fielded.chunk_length
    note = (
        f"{fielded.questions} questions ({', '.join(fielded.gold)}), {fielded.chunks} chunks of {length.words} "
        f"white-space words ({length.characters:.0f} characters) on average, titles included."
    )
    return (("retriever", *METRICS), rows), note


def _compare(
    index: Path, questions: Sequence[Question], retrievers: Sequence[str]
) -> RetrieverComparison:
    searcher = open_index(index)
    return compare_retrievers(
        searcher, index, questions, retrievers, CUTOFFS, LEARNING, seed=0, draws=DRAWS
    )


def _cells(scores: dict[str, MetricInterval], form: str) -> Iterator[str]:
    for metric in METRICS:
        own = scores[metric]
        yield f"{own.mean:{form}} [{own.low:{form}}, {own.high:{form}}]"


def ablation(own: Prepared) -> Table:
    """Return the scores of the hybrid with fewer features."""
    everything = frozenset(FEATURES)
    variants = {"all eight": everything}
    weights: dict[str, str] = {}
    for name, weight in zip(FEATURES, fit_weights(own.examples, LEARNING.ridge), strict=True):
        label = f"without {name}"
        variants[label] = everything - {name}
        weights[label] = f"{weight:+.2f}"

    halves = frozenset({"bm25", "dense"})
    variants |= {
        "without both source features": everything - {"source_passage", "source_sentence"},
        "without both sentence features": everything - {"sentence", "source_sentence"},
        "bm25 and dense alone": halves,
        "without bm25 and dense": everything - halves,
    }

    rows: list[Sequence[object]] = []
    for label, names in variants.items():
        masked = _masked(own.examples, names)
        rows.append((label, weights.get(label, ""), *_held_out(masked)))

    return ("features", "weight", *METRICS), rows


def _masked(examples: Sequence[QuestionExample], names: Collection[str]) -> list[QuestionExample]:
    """Return examples in which the features of other names are 0."""
    mask_F = np.array([name in names for name in FEATURES], dtype=float)
    masked: list[QuestionExample] = []
    for example in examples:
        features_CF = example.candidates.features_CF * mask_F
        candidates = replace(example.candidates, features_CF=features_CF)
        masked.append(replace(example, candidates=candidates))

    return masked


def _held_out(examples: Sequence[QuestionExample]) -> list[str]:
    fold_Q = learning.drawn_folds(len(examples), LEARNING.folds, 0)
    return _means(learning.score_held_out(examples, LEARNING.ridge, fold_Q, CUTOFFS))


def _means(scores: Sequence[dict[str, float]]) -> list[str]:
    means = mean_scores(scores)
    return [f"{means[metric]:.3f}" for metric in METRICS]


def agent(own: Prepared, folder: Path) -> Table:
    """Return the scores for queries as agents write them, means over those of a question, and the hybrid's differences.

    No query is ranked with weights that have learnt from its question.
    """
    queries: list[tuple[str, Gold]] = []
    question_of: list[int] = []
    for number, own_queries in enumerate(_agent_queries(own, folder)):
        queries += own_queries
        question_of += [number] * len(own_queries)

    chunks = open_index(own.fielded).chunks
    with opened_finder(own.fielded, chunks) as finder:
        examples = learning.gather(finder, chunks, queries)
        fusion = ReciprocalRankFusion(finder.bm25, finder.dense, finder.config)
        rows = {
            "bm25": score_retriever(finder.bm25, chunks, queries, CUTOFFS),
            "dense": score_retriever(finder.dense, chunks, queries, CUTOFFS),
            "rrf": score_retriever(fusion, chunks, queries, CUTOFFS),
        }

    fold_Q = learning.drawn_folds(len(own.questions), LEARNING.folds, 0)
    fold_N = fold_Q[question_of]
    whole = "hybrid, learnt from whole questions"
    same = "hybrid, learnt from such queries"
    rows[whole] = _score_by_folds(own.examples, fold_Q, examples, fold_N)
    rows[same] = learning.score_held_out(examples, LEARNING.ridge, fold_N, CUTOFFS)

    scores = {name: _by_question(values, question_of) for name, values in rows.items()}
    lines: list[Sequence[object]] = []
    for name, own_scores in scores.items():
        lines.append((NAMES.get(name, name), *_cells(intervals(own_scores, 0, DRAWS), ".3f")))

    for name, other in ((whole, "rrf"), (whole, "bm25"), (same, "rrf"), (same, "bm25")):
        differences = {metric: scores[name][metric] - scores[other][metric] for metric in METRICS}
        cells = _cells(intervals(differences, 0, DRAWS), "+.3f")
        lines.append((f"{name}, minus {other}", *cells))

    return (f"{len(queries)} queries", *METRICS), lines


def _agent_queries(own: Prepared, folder: Path) -> Iterator[list[tuple[str, Gold]]]:
    """Yield the queries of every question, each with the evidence that it looks for.

    They are the steps of a question where its set has them, earlier answers filled in; otherwise
    the pieces between its marks and conjunctions, with the sources that they name.
    """
    steps = data.read_steps(folder, SETS[own.name])
    no_sources = SourceNames.of(())

    for question in own.questions:
        gold = gold_evidence(question)
        if question.id in steps:
            yield [(text, Gold("documents", (doc_id,))) for text, doc_id in steps[question.id]]
        elif gold is None or own.name in STEPPED:
            yield []
        else:
            yield [(part, gold) for part in split_question(question.question, no_sources).parts]


def _score_by_folds(
    learnt: Sequence[QuestionExample],
    fold_Q: NDArray[np.int64],
    tested: Sequence[QuestionExample],
    fold_N: NDArray[np.int64],
) -> list[dict[str, float]]:
    """Return the scores of N examples, ranked with weights learnt from others of other folds."""
    weights: dict[int, Floats] = {}
    for fold in range(LEARNING.folds):
        others = [example for example, own in zip(learnt, fold_Q, strict=True) if own != fold]
        weights[fold] = fit_weights(others, LEARNING.ridge)

    scores: list[dict[str, float]] = []
    for example, fold in zip(tested, fold_N.tolist(), strict=True):
        scores.append(score_example(example, weights[fold], CUTOFFS))

    return scores


def _by_question(rows: Sequence[dict[str, float]], question_of: Sequence[int]) -> Scores:
    """Return an array of every metric over the questions that have queries."""
    grouped: dict[int, list[dict[str, float]]] = {}
    for row, number in zip(rows, question_of, strict=True):
        grouped.setdefault(number, []).append(row)

    means = [mean_scores(own) for own in grouped.values()]
    scores: Scores = {}
    for metric in METRICS:
        scores[metric] = np.array([row[metric] for row in means])

    return scores


def transfer(prepared: Sequence[Prepared]) -> Table:
    """Return the scores of weights learnt on one set, tested on every other; on their own set, cross-validated."""
    rows: list[Sequence[object]] = []
    for learnt, tested in product(prepared, repeat=2):
        if learnt is tested:
            scores = _held_out(tested.examples)
        else:
            weights_F = fit_weights(learnt.examples, LEARNING.ridge)
            rankings = [score_example(example, weights_F, CUTOFFS) for example in tested.examples]
            scores = _means(rankings)

        rows.append((learnt.name, tested.name, *scores))

    return ("learnt on", "tested on", *METRICS), rows


def speed(prepared: Sequence[Prepared]) -> Table:
    """CPU milliseconds per query, one query a call, of 200 queries."""
    rows: list[Sequence[object]] = []
    for own in prepared:
        queries = [text for text, _ in with_gold(own.questions)[:200]]
        with opened_finder(own.fielded, open_index(own.fielded).chunks) as finder:
            hybrid = HybridRetriever(finder, np.ones(len(FEATURES)))
            retrievers = {"bm25": finder.bm25, "dense": finder.dense, "hybrid": hybrid}
            for name, retriever in retrievers.items():
                # The first search maps files and loads libraries.
                retriever.search(queries[:5], 10)
                cpu_s, _ = timed(partial(_search_one_by_one, retriever, queries))
                rows.append((own.name, name, f"{cpu_s / len(queries) * 1e3:.2f}"))

    return ("set", "retriever", "CPU ms per query"), rows


def _search_one_by_one(retriever: Retriever, queries: Sequence[str]) -> None:
    for query in queries:
        retriever.search([query], 10)


def main() -> None:
    """Parse the command line and print the tables that it names."""
    kinds = ["scores", "agent", "ablation", "transfer", "speed"]
    options = parse_options(
        __doc__,
        sets=(list(SETS), "", SETS),
        tables=(kinds, "", kinds),
        data=(data.DATA, "folder of the real data"),
        work=data.WORK / "ranking",
        chunk_size=(256, "tokens of a chunk, the title not counted"),
        questions=(5000, "at most so many of a set, the first ones"),
    )
    prepared = [prepare(name, options) for name in options.sets]
    for own in prepared if "scores" in options.tables else ():
        table, note = scores_table(own)
        publish(options, f"ranking scores_{own.name}", *table, after=note)

    for own in prepared if "agent" in options.tables else ():
        publish(options, f"ranking agent_{own.name}", *agent(own, options.data / own.name))

    tables = {
        f"ablation_{prepared[0].name}": lambda: ablation(prepared[0]),
        "transfer": lambda: transfer(prepared),
        "speed": lambda: speed(prepared),
    }
    for name, table in tables.items():
        if name.partition("_")[0] in options.tables:
            publish(options, f"ranking {name}", *table())


if __name__ == "__main__":
    main()
