"""Ranking on real question sets: BM25 plain and fielded, dense, reciprocal ranks and the learnt hybrid, with intervals.

    .venv/bin/python -m benchmarks.ranking                                   # all tables, some ten minutes on one core
    .venv/bin/python -m benchmarks.ranking --sets hotpotqa --questions 200 --tables scores

    scores     every retriever on every set; the hybrid by 5-fold cross-validation
    ablation   the hybrid without one feature in turn, and with the first ones alone
    transfer   weights learnt on one set, tested on another
    speed      CPU milliseconds per query of every retriever, asked in turn

Documents are cut into chunks of at most ``--chunk-size`` tokens of the tokenizer ``words``, the
title not counted. Chunks, questions and indexes stay in ``--work``, where `deepsearch retrieve
eval` can read them too. A set's questions are those whose gold evidence is known and in its corpus.
Dense is TF-IDF + SVD; there are no neural weights.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks import data
from benchmarks.measure import parse_options, publish, timed
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.records import Question
from deepsearch_rl.indexing import learning
from deepsearch_rl.indexing.build import build_index
from deepsearch_rl.indexing.learning import Example, fit_weights, score_example
from deepsearch_rl.measurement.comparison import (
    Interval,
    compare_retrievers,
    opened_finder,
)
from deepsearch_rl.retrieval.hybrid.retriever import FEATURES, HybridRetriever
from deepsearch_rl.retrieval.ranking.gold import with_gold
from deepsearch_rl.retrieval.ranking.ranking import LearningConfig
from deepsearch_rl.retrieval.search.manifest import IndexConfig
from deepsearch_rl.retrieval.search.searcher import open_index

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
METRICS = ("mrr@10", "map@10", "hits@4", "hits@10", "evidence_recall@10")
CUTOFFS = (4, 10)
DRAWS = 1000
"""Resamples of an interval."""
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
    def examples(self) -> list[Example]:
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
    plain, fielded = (
        compare_retrievers(
            open_index(index), index, own.questions, retrievers, CUTOFFS, LEARNING, 0, DRAWS
        )
        for index, retrievers in ((own.plain, ("bm25",)), (own.fielded, tuple(NAMES)))
    )
    rows: list[Sequence[object]] = [("BM25, title and body", *_cells(plain.scores["bm25"], ".3f"))]
    rows += [(NAMES[name], *_cells(scores, ".3f")) for name, scores in fielded.scores.items()]
    rows.append(("hybrid minus its better half", *_cells(fielded.hybrid_minus_better_half, "+.3f")))
    length = fielded.chunk_length
    note = (
        f"{fielded.questions} questions ({', '.join(fielded.gold)}), {fielded.chunks} chunks of {length.words} "
        f"white-space words ({length.characters:.0f} characters) on average, titles included."
    )
    return (("retriever", *METRICS), rows), note


def _cells(scores: dict[str, Interval], form: str) -> Iterator[str]:
    for metric in METRICS:
        own = scores[metric]
        yield f"{own.mean:{form}} [{own.low:{form}}, {own.high:{form}}]"


def ablation(own: Prepared) -> Table:
    """Return the scores of the hybrid with fewer features."""
    variants = {"all eight": FEATURES}
    variants |= {
        f"without {name}": tuple(other for other in FEATURES if other != name) for name in FEATURES
    }
    variants |= {
        "without both source features": tuple(
            name for name in FEATURES if not name.startswith("source_")
        ),
        "without both sentence features": tuple(
            name for name in FEATURES if "sentence" not in name
        ),
        "bm25 and dense alone": ("bm25", "dense"),
        "without bm25 and dense": tuple(name for name in FEATURES if name not in ("bm25", "dense")),
    }
    fitted = zip(FEATURES, fit_weights(own.examples, LEARNING.ridge), strict=True)
    weights = {f"without {name}": f"{weight:+.2f}" for name, weight in fitted}
    rows: list[Sequence[object]] = []

    for label, names in variants.items():
        mask_F = np.array([name in names for name in FEATURES], dtype=float)
        masked = [
            replace(
                example, candidates=replace(candidates, features_CF=candidates.features_CF * mask_F)
            )
            for example in own.examples
            for candidates in [example.candidates]
        ]
        rows.append((label, weights.get(label, ""), *_held_out(masked)))

    return ("features", "weight", *METRICS), rows


def _held_out(examples: Sequence[Example]) -> list[str]:
    fold_Q = learning.drawn_folds(len(examples), LEARNING.folds, 0)
    return _means(learning.score_held_out(examples, LEARNING.ridge, fold_Q, CUTOFFS))


def _means(scores: Sequence[dict[str, float]]) -> list[str]:
    return [f"{fmean(row[metric] for row in scores):.3f}" for metric in METRICS]


def transfer(prepared: Sequence[Prepared]) -> Table:
    """Return the scores of weights learnt on one set, tested on every other; on their own set, cross-validated."""
    rows: list[Sequence[object]] = []
    for learnt, tested in product(prepared, repeat=2):
        if learnt is tested:
            scores = _held_out(tested.examples)
        else:
            weights_F = fit_weights(learnt.examples, LEARNING.ridge)
            scores = _means(
                [score_example(example, weights_F, CUTOFFS) for example in tested.examples]
            )

        rows.append((learnt.name, tested.name, *scores))

    return ("learnt on", "tested on", *METRICS), rows


def speed(prepared: Sequence[Prepared]) -> Table:
    """CPU milliseconds per query, one query a call, of 200 queries."""
    rows: list[Sequence[object]] = []
    for own in prepared:
        queries = [text for text, _ in with_gold(own.questions)[:200]]
        with opened_finder(own.fielded, open_index(own.fielded).chunks) as finder:
            hybrid = HybridRetriever(finder, np.ones(len(FEATURES)))
            for name, retriever in (
                ("bm25", finder.bm25),
                ("dense", finder.dense),
                ("hybrid", hybrid),
            ):
                retriever.search(queries[:5], 10)
                cpu_s, _ = timed(
                    lambda r=retriever, q=queries: [r.search([query], 10) for query in q]
                )
                rows.append((own.name, name, f"{cpu_s / len(queries) * 1e3:.2f}"))

    return ("set", "retriever", "CPU ms per query"), rows


def main() -> None:
    """Parse the command line and print the tables that it names."""
    kinds = ["scores", "ablation", "transfer", "speed"]
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
