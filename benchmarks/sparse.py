"""Sparse retrieval: the built-in BM25 beside bm25s and pyserini's Lucene, and its fields.

    .venv/bin/python -m benchmarks.sparse                                    # half a minute
    .venv/bin/python -m benchmarks.sparse --tables engines --repetitions 1 --queries 100
    .venv/bin/python -m benchmarks.sparse --docs docs/retrieval.md

    engines   every engine builds and searches the same real passages in turn; CPU seconds of the whole process, Java's
              threads among them, are of the fastest repetition; agreement is with the built-in index
    fields    MultiHop-RAG's questions with known evidence, official scores, one field beside weighted ones

Real data is read from ``--data`` (wiki18, searchr1 and multihoprag of it).
"""

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import bm25s
import numpy as np

from benchmarks.data import (
    DATA,
    chunk_documents,
    gzip_rows,
    make_chunk,
    read_documents,
    read_questions,
    wiki18_passages,
)
from benchmarks.measure import in_turn, parse_options, publish, size_mb, timed
from deepsearch_rl.files import read_jsonl
from deepsearch_rl.records import Chunk
from deepsearch_rl.retrieval.gold import score_results, with_gold
from deepsearch_rl.retrieval.ranking import Ranking, Retriever, rank
from deepsearch_rl.retrieval.sparse.analysis import analyse
from deepsearch_rl.retrieval.sparse.bm25 import Bm25Config, Bm25Index
from deepsearch_rl.retrieval.sparse.lucene import LuceneConfig, LuceneIndex

Table = tuple[Sequence[str], list[Sequence[object]]]

ONE_FIELD = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})
LUCENE = LuceneConfig(engine="lucene", k1=0.9, b=0.4, heap_mb=1024)
TOP_K = 10
METRICS = ("mrr@10", "map@10", "hits@10", "hits@4", "evidence_recall@10")
FIELDS: Sequence[tuple[float, Mapping[str, float]]] = (
    (0.4, {"contents": 1.0}),
    (0.4, {"contents": 1.0, "source": 1.0, "date": 1.0}),
    (0.4, {"title": 1.0, "source": 1.0, "date": 1.0, "body": 1.0}),
    (0.4, {"title": 0.5, "source": 0.5, "date": 0.25, "body": 1.0}),
    (0.4, {"title": 2.0, "source": 1.0, "date": 0.5, "body": 1.0}),
    (0.75, {"title": 1.0, "source": 1.0, "date": 1.0, "body": 1.0}),
)


# --- engines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bm25s:
    """The library bm25s, given this project's terms, ranked as this project ranks."""

    model: bm25s.BM25

    @classmethod
    def build(cls, chunks: Collection[Chunk], folder: Path) -> "Bm25s":
        """Index and save."""
        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(term, len(vocabulary)) for term in analyse(chunk.contents)] for chunk in chunks]
        model = bm25s.BM25(k1=ONE_FIELD.k1, b=ONE_FIELD.b, method="lucene")
        model.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        model.save(folder, show_progress=False)
        return cls(model)

    def search(self, queries: Sequence[str], top_k: int, allowed_N: object = None) -> list[Ranking]:  # noqa: ARG002
        """As the protocol says, without masks."""
        return [self._search_one(query, top_k) for query in queries]

    def _search_one(self, query: str, top_k: int) -> Ranking:
        scores_N = self.model.get_scores_from_ids(self.model.get_tokens_ids(analyse(query)))
        rows_M = np.flatnonzero(scores_N > 0)
        return rank(rows_M, scores_N[rows_M], top_k)


ENGINES: dict[str, Callable[[Collection[Chunk], Path], Retriever]] = {
    "builtin": lambda chunks, folder: Bm25Index.build(chunks, folder, ONE_FIELD),
    "bm25s": Bm25s.build,
    "lucene": lambda chunks, folder: LuceneIndex.build(chunks, folder, LUCENE),
}


class EngineRun(NamedTuple):
    """What building and searching took, and the rankings."""

    build_s: float
    search_s: float
    disk_mb: float
    rankings: list[Ranking]


def _run_engine(engine: str, chunks: Collection[Chunk], queries: Sequence[str]) -> EngineRun:
    with TemporaryDirectory() as folder:
        build_s, retriever = timed(lambda: ENGINES[engine](chunks, Path(folder, engine)))
        search_s, rankings = timed(lambda: [retriever.search([query], TOP_K)[0] for query in queries])
        return EngineRun(build_s, search_s, size_mb(Path(folder)), rankings)


def measure_engines(options: argparse.Namespace) -> Table:
    """One row per corpus and engine."""
    header = ("passages", "engine", "build CPU s", "to builtin", "CPU ms/query", "to builtin", "disk MB",
              "top-10 overlap", "equal top 1")  # fmt: skip
    rows: list[Sequence[object]] = []
    for name, chunks, queries in (_wiki18(options.data), _multihoprag(options.data)):
        chunks, queries = chunks * options.copies, queries[: options.queries]
        sys.stderr.write(f"{name}: {len(chunks)} passages, {len(queries)} queries\n")
        works = {engine: partial(_run_engine, engine, chunks, queries) for engine in ENGINES}
        runs = in_turn(works, options.repetitions)
        rows += [(f"{name} ({len(chunks)})", *row) for row in _compare(runs, len(queries))]
    return header, rows


def _compare(runs: Mapping[str, Sequence[EngineRun]], queries: int) -> Iterator[Sequence[object]]:
    build_s = {engine: min(run.build_s for run in own) for engine, own in runs.items()}
    search_s = {engine: min(run.search_s for run in own) for engine, own in runs.items()}
    for engine, (run, *_) in runs.items():
        yield (
            engine, f"{build_s[engine]:.2f}", f"{build_s[engine] / build_s['builtin']:.2f}x",
            f"{1e3 * search_s[engine] / queries:.3f}", f"{search_s[engine] / search_s['builtin']:.2f}x",
            f"{run.disk_mb:.1f}", *_agreement(runs["builtin"][0].rankings, run.rankings),
        )  # fmt: skip


def _agreement(ours: Sequence[Ranking], theirs: Sequence[Ranking]) -> tuple[str, str]:
    """Return means over the queries for which both find something."""
    pairs = [(our.rows_K.tolist(), their.rows_K.tolist()) for our, their in zip(ours, theirs, strict=True)]
    pairs = [(our, their) for our, their in pairs if our and their]
    overlap = fmean(len({*our} & {*their}) / max(len(our), len(their)) for our, their in pairs)
    return f"{overlap:.3f}", f"{fmean(our[0] == their[0] for our, their in pairs):.3f}"


# --- fields ---------------------------------------------------------------------------------------------------------


def measure_fields(options: argparse.Namespace) -> Table:
    """One row per choice of fields."""
    _, chunks, _ = _multihoprag(options.data)
    folder = options.data / "multihoprag"
    questions = with_gold(list(read_questions(folder, ["queries"], read_documents(folder))))
    rows: list[Sequence[object]] = []
    for b, fields in FIELDS:
        with TemporaryDirectory() as folder:
            config = Bm25Config.model_validate({"engine": "builtin", "k1": 0.9, "b": b, "fields": fields})
            rankings = Bm25Index.build(chunks, Path(folder), config).search([text for text, _ in questions], TOP_K)
        results = [[chunks[row] for row in ranking.rows_K] for ranking in rankings]
        scores = score_results(results, questions, (4, TOP_K))
        label = " ".join(f"{name}:{weight:g}" for name, weight in fields.items())
        rows.append((label, b, *(f"{fmean(score[metric] for score in scores):.3f}" for metric in METRICS)))
    return ("fields", "b", *METRICS), rows


# --- data -----------------------------------------------------------------------------------------------------------


def _wiki18(data: Path) -> tuple[str, list[Chunk], list[str]]:
    chunks = [make_chunk(row, text) for row, text in enumerate(wiki18_passages(data))]
    return "wiki18 + NQ", chunks, [row["question"] for row in gzip_rows(data / "searchr1/nq.jsonl.gz")]


def _multihoprag(data: Path) -> tuple[str, list[Chunk], list[str]]:
    with TemporaryDirectory() as folder:
        path = chunk_documents(read_documents(data / "multihoprag"), Path(folder), "sentences", 256)
        chunks = list(read_jsonl(path, Chunk))
    return "MultiHop-RAG", chunks, [row["query"] for row in gzip_rows(data / "multihoprag/queries.jsonl.gz")]


def main() -> None:
    """Parse the command line and print the tables that it names."""
    tables = {"engines": measure_engines, "fields": measure_fields}
    options = parse_options(
        __doc__,
        tables=(list(tables), "", tables),
        data=(DATA, "folder of the real data"),
        repetitions=(3, "of building and searching, engines in turn"),
        copies=(1, "of every passage, for the table engines"),
        queries=(700, "at most so many of a set"),
    )
    for name in options.tables:
        publish(options, f"sparse {name}", *tables[name](options))


if __name__ == "__main__":
    main()
