"""Ranking on real question sets: BM25 plain and fielded, dense, reciprocal ranks and the learnt hybrid, with intervals.

    .venv/bin/python -m benchmarks.ranking                                   # all tables, some ten minutes on one core
    .venv/bin/python -m benchmarks.ranking --sets multihoprag --tables scores ablation
    .venv/bin/python -m benchmarks.ranking --sets hotpotqa --questions 200 --tables scores
    .venv/bin/python -m benchmarks.ranking --docs docs/retrieval.md

    scores     every retriever on every set; the hybrid by 5-fold cross-validation
    ablation   the hybrid without one feature in turn, and with the first ones alone
    folds      the hybrid with folds drawn by question, and with questions that share a gold article in one fold
    transfer   weights learnt on one set, tested on another
    speed      CPU milliseconds per query of every retriever, asked in turn

Documents are cut into chunks of at most ``--chunk-size`` tokens of the tokenizer ``words`` (runs of word characters,
and every other visible character alone), the title not counted; the mean chunk length stands below each table of
scores. Chunks, questions and indexes stay in ``--work``, where `deepsearch retrieve eval` can read them too. A set's
questions are those whose gold evidence is known and in its corpus. Dense is TF-IDF + SVD; there are no neural weights.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets import DATA, chunk_config, read_documents, read_questions
from benchmarks.measure import option_parser, publish, timed
from deepsearch_rl.corpora.chunking import chunk_corpora
from deepsearch_rl.files import read_jsonl, write_jsonl
from deepsearch_rl.records import Question
from deepsearch_rl.retrieval.build import build_index
from deepsearch_rl.retrieval.fusion import LearningConfig
from deepsearch_rl.retrieval.gold import Gold, with_gold
from deepsearch_rl.retrieval.hybrid.learning import (
    Example,
    drawn_folds,
    fit_weights,
    gather,
    held_out_weights,
    score_example,
)
from deepsearch_rl.retrieval.hybrid.retriever import FEATURES, HybridRetriever
from deepsearch_rl.retrieval.manifest import IndexConfig
from deepsearch_rl.retrieval.measurement.comparison import Comparison, Interval, compare_retrievers, opened_finder
from deepsearch_rl.retrieval.searcher import Searcher, open_index

SETS = ("multihoprag", "musique", "2wikimultihopqa", "hotpotqa")
QUESTION_FILES = {
    "multihoprag": ("queries",),
    "musique": ("train", "dev"),
    "2wikimultihopqa": ("dev",),
    "hotpotqa": ("train100", "dev"),
}
PLAIN = {"contents": 1.0}
FIELDED = {"title": 1.0, "source": 1.0, "date": 1.0, "body": 1.0}
METRICS = ("mrr@10", "map@10", "hits@4", "hits@10", "evidence_recall@10")
CUTOFFS = (4, 10)
DRAWS = 1000
"""Resamples of an interval."""
LEARNING = LearningConfig(split="train", questions=5000, ridge=0.001, folds=5)
Table = tuple[Sequence[str], list[Sequence[object]]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A question set with its indexes."""

    name: str
    questions: list[Question]
    plain: Path
    fielded: Path

    def searcher(self) -> Searcher:
        """The fielded index's."""
        return open_index(self.fielded)

    def examples(self) -> list[Example]:
        """Candidates of every question in the fielded index."""
        chunks = self.searcher().chunks
        with opened_finder(self.fielded, chunks) as finder:
            return gather(finder, chunks, self.questions_with_gold())

    def questions_with_gold(self) -> list[tuple[str, Gold]]:
        """The texts and gold evidence of the questions."""
        return with_gold(self.questions)


def main() -> None:
    """Parse the command line and print the tables that it names."""
    arguments = _parser().parse_args()
    prepared = [prepare(name, arguments) for name in arguments.sets]
    tables = {
        "scores": lambda: score_tables(prepared),
        "ablation": lambda: [(f"ablation_{own.name}", ablation(own), "") for own in prepared[:1]],
        "folds": lambda: [("folds", folds_table(prepared), "")],
        "transfer": lambda: [("transfer", transfer(prepared), "")],
        "speed": lambda: [("speed", speed(prepared), "")],
    }
    for kind in arguments.tables:
        for name, (header, rows), note in tables[kind]():
            publish(f"ranking {name}", header, rows, after=note, out=arguments.work, docs=arguments.docs)


def _parser() -> argparse.ArgumentParser:
    parser = option_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    kinds = ("scores", "ablation", "folds", "transfer", "speed")
    parser.add_argument("--tables", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the real data")
    parser.add_argument("--work", type=Path, default=Path("work/benchmarks/ranking"))
    parser.add_argument("--chunk-size", type=int, default=256, help="tokens of a chunk, the title not counted")
    parser.add_argument("--questions", type=int, default=5000, help="at most so many of a set, the first ones")
    return parser


# --- preparing ------------------------------------------------------------------------------------------------------


def prepare(name: str, arguments: argparse.Namespace) -> Prepared:
    """Chunk a set's corpus, keep the questions that it can answer, and index it twice, unless that is there already."""
    folder: Path = arguments.work / f"{name}-{arguments.chunk_size}"
    chunks = folder / "chunks" / f"{name}.jsonl"
    if not chunks.is_file():
        documents = list(read_documents(arguments.data / name))
        write_jsonl(folder / "corpora" / f"{name}.jsonl", documents)
        chunk_corpora(folder / "corpora", folder / "chunks", chunk_config("sentences", arguments.chunk_size))
        questions = read_questions(arguments.data / name, QUESTION_FILES[name], documents)
        write_jsonl(folder / "questions.jsonl", questions)
    for kind, fields in (("plain", PLAIN), ("fielded", FIELDED)):
        if not (folder / kind).is_dir():
            build_index(chunks, folder / kind, index_config(fields), seed=0)
    questions = list(read_jsonl(folder / "questions.jsonl", Question))[: arguments.questions]
    return Prepared(name, questions, folder / "plain", folder / "fielded")


def index_config(fields: dict[str, float]) -> IndexConfig:
    """Return an index of weighted fields, dense vectors of TF-IDF + SVD beside it."""
    return IndexConfig.model_validate(
        {
            "bm25": {"engine": "builtin", "k1": 0.9, "b": 0.4, "fields": fields},
            "encoder": {"name": "tfidf_svd", "dimension": 256, "fit_rows": 50_000, "max_terms": 50_000},
            "encoding": {"engine": "local", "dtype": "float32", "block_rows": 4096, "ray": None},
            "vectors": {"kind": "flat"},
            "fusion": {
                "depth": 100,
                "source_depth": 30,
                "unlearned": "reciprocal_ranks",
                "rrf_k": 60,
                "bm25_weight": 1.0,
                "dense_weight": 1.0,
                "learning": None,
            },
        }
    )


# --- tables ---------------------------------------------------------------------------------------------------------


def score_tables(prepared: Sequence[Prepared]) -> Iterator[tuple[str, Table, str]]:
    """Yield name, table and note of every set."""
    for own in prepared:
        plain = _compare(own, own.plain, ("bm25",))
        fielded = _compare(own, own.fielded, ("bm25", "dense", "rrf", "hybrid"))
        scores = {
            "BM25, title and body": plain.scores["bm25"],
            "BM25F, title, source, date, body": fielded.scores["bm25"],
            "dense (TF-IDF + SVD)": fielded.scores["dense"],
            "reciprocal ranks of the two": fielded.scores["rrf"],
            "learnt hybrid, cross-validated": fielded.scores["hybrid"],
        }
        rows: list[Sequence[object]] = [(name, *_cells(row, ".3f")) for name, row in scores.items()]
        rows.append(("hybrid minus its better half", *_cells(fielded.hybrid_minus_better_half, "+.3f")))
        length = fielded.chunk_length
        note = (
            f"{fielded.questions} questions ({', '.join(fielded.gold)}), {fielded.chunks} chunks of {length.words} "
            f"white-space words ({length.characters:.0f} characters) on average, titles included."
        )
        yield f"scores_{own.name}", (("retriever", *METRICS), rows), note


def _compare(own: Prepared, index: Path, retrievers: Sequence[str]) -> Comparison:
    return compare_retrievers(open_index(index), index, own.questions, retrievers, CUTOFFS, LEARNING, 0, DRAWS)


def _cells(scores: dict[str, Interval], form: str) -> Iterator[str]:
    for metric in METRICS:
        own = scores[metric]
        yield f"{own.mean:{form}} [{own.low:{form}}, {own.high:{form}}]"


def ablation(own: Prepared) -> Table:
    """Return the scores of the hybrid with fewer features."""
    examples = own.examples()
    variants = {"all eight": FEATURES}
    variants |= {f"without {name}": tuple(other for other in FEATURES if other != name) for name in FEATURES}
    variants |= {
        "without both source features": tuple(name for name in FEATURES if not name.startswith("source_")),
        "without both sentence features": tuple(name for name in FEATURES if "sentence" not in name),
        "bm25 and dense alone": ("bm25", "dense"),
        "without bm25 and dense": tuple(name for name in FEATURES if name not in ("bm25", "dense")),
    }
    fold_Q = drawn_folds(len(examples), LEARNING.folds, 0)
    weights = dict(zip(FEATURES, fit_weights(examples, LEARNING.ridge), strict=True))
    rows: list[Sequence[object]] = []
    for label, names in variants.items():
        left = label.removeprefix("without ")
        rows.append(
            (label, f"{weights[left]:+.2f}" if left in weights else "", *_held_out(_only(examples, names), fold_Q))
        )
    return ("features", "weight", *METRICS), rows


def _only(examples: Sequence[Example], names: Sequence[str]) -> list[Example]:
    mask_F = np.array([name in names for name in FEATURES], dtype=float)
    return [
        replace(own, candidates=replace(own.candidates, features_CF=own.candidates.features_CF * mask_F))
        for own in examples
    ]


def _held_out(examples: Sequence[Example], fold_Q: NDArray[np.int64]) -> list[str]:
    weights = held_out_weights(examples, LEARNING.ridge, fold_Q)
    return _means([score_example(*pair, CUTOFFS) for pair in zip(examples, weights, strict=True)])


def _means(scores: Sequence[dict[str, float]]) -> list[str]:
    return [f"{fmean(row[metric] for row in scores):.3f}" for metric in METRICS]


def folds_table(prepared: Sequence[Prepared]) -> Table:
    """Return the scores with folds drawn by question, and with shared gold articles in one fold."""
    rows: list[Sequence[object]] = []
    for own in prepared:
        examples = own.examples()
        for label, fold_Q in (
            ("by question", drawn_folds(len(examples), LEARNING.folds, 0)),
            ("by article", article_folds(own.questions, LEARNING.folds)),
        ):
            sizes = ", ".join(map(str, sorted(np.bincount(fold_Q).tolist(), reverse=True)))
            rows.append((own.name, label, sizes, *_held_out(examples, fold_Q)))
    return ("set", "folds", "questions in each", *METRICS), rows


def article_folds(questions: Sequence[Question], folds: int) -> NDArray[np.int64]:
    """Folds in which no two share a gold article: connected questions together, the largest groups dealt first."""
    group = list(range(len(questions)))
    first: dict[str, int] = {}
    for number, question in enumerate(questions):
        for article in _articles(question):
            other = group[first.setdefault(article, number)]
            group = [group[number] if own == other else own for own in group]
    sizes = np.bincount(group, minlength=len(group))
    fold_of_group, load = np.zeros(len(group), dtype=np.int64), [0] * folds
    for largest in np.argsort(-sizes, kind="stable").tolist():
        fold_of_group[largest] = load.index(min(load))
        load[fold_of_group[largest]] += int(sizes[largest])
    return fold_of_group[group]


def _articles(question: Question) -> Sequence[str]:
    if question.metadata.evidence_list:
        return [str(evidence.doc_id) for evidence in question.metadata.evidence_list]
    return [str(own) for own in (question.metadata.model_extra or {})["supporting_doc_ids"]]


def transfer(prepared: Sequence[Prepared]) -> Table:
    """Return the scores of weights learnt on one set, tested on every other; on their own set, cross-validated."""
    examples = {own.name: own.examples() for own in prepared}
    rows: list[Sequence[object]] = []
    for learnt_on, known in examples.items():
        weights_F = fit_weights(known, LEARNING.ridge)
        for tested_on, others in examples.items():
            if tested_on == learnt_on:
                scores = _held_out(others, drawn_folds(len(others), LEARNING.folds, 0))
            else:
                scores = _means([score_example(own, weights_F, CUTOFFS) for own in others])
            rows.append((learnt_on, tested_on, *scores))
    return ("learnt on", "tested on", *METRICS), rows


def speed(prepared: Sequence[Prepared]) -> Table:
    """CPU milliseconds per query, one query a call, of 200 queries."""
    rows: list[Sequence[object]] = []
    for own in prepared:
        queries = [text for text, _ in own.questions_with_gold()[:200]]
        with opened_finder(own.fielded, own.searcher().chunks) as finder:
            hybrid = HybridRetriever(finder, np.ones(len(FEATURES)))
            for name, retriever in (("bm25", finder.bm25), ("dense", finder.dense), ("hybrid", hybrid)):
                retriever.search(queries[:5], 10)
                cpu_s, _ = timed(lambda r=retriever, q=queries: [r.search([query], 10) for query in q])
                rows.append((own.name, name, f"{cpu_s / len(queries) * 1e3:.2f}"))
    return ("set", "retriever", "CPU ms per query"), rows


if __name__ == "__main__":
    main()
