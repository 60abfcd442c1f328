"""Sparse retrieval: the built-in BM25 beside bm25s and pyserini's Lucene.

    .venv/bin/python -m benchmarks.sparse                                    # half a minute
    .venv/bin/python -m benchmarks.sparse --repetitions 1 --queries 100

Every engine builds and searches the same real passages (wiki18, searchr1 and multihoprag) in turn.
CPU seconds of the whole process, Java's threads among them, are of the fastest repetition;
agreement is with the built-in index.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import bm25s
import numpy as np

from benchmarks.data import (
    DATA,
    chunk_documents,
    gzip_rows,
    make_chunk,
    read_documents,
    wiki18_passages,
)
from benchmarks.measure import in_turn, parse_options, publish, size_mb, timed
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.engines.bm25.builtin.bm25 import Bm25Index
from deepsearch_rl.engines.bm25.lucene.lucene import LuceneIndex
from deepsearch_rl.retrieval.ranking.ranking import Ranking, Retriever, rank
from deepsearch_rl.retrieval.search.analysis import analyse
from deepsearch_rl.retrieval.search.bm25_configs import Bm25Config, LuceneConfig

ONE_FIELD = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})
LUCENE = LuceneConfig(engine="lucene", k1=0.9, b=0.4, heap_mb=1024)
TOP_K = 10
Costs = tuple[float, float, float]
"""CPU seconds of a build, CPU milliseconds of a query, MB of files."""


@dataclass(frozen=True, slots=True)
class Bm25s:
    """The library bm25s, given this project's terms, ranked as this project ranks."""

    model: bm25s.BM25

    @classmethod
    def build(cls, chunks: Collection[Chunk], folder: Path) -> "Bm25s":
        """Index and save."""
        vocabulary: dict[str, int] = {}
        ids = [
            [vocabulary.setdefault(term, len(vocabulary)) for term in analyse(chunk.contents)]
            for chunk in chunks
        ]
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


def _run_engine(
    engine: str, chunks: Collection[Chunk], queries: Sequence[str]
) -> tuple[Costs, list[Ranking]]:
    with TemporaryDirectory() as folder:
        build_s, retriever = timed(lambda: ENGINES[engine](chunks, Path(folder, engine)))
        search_s, rankings = timed(
            lambda: [retriever.search([query], TOP_K)[0] for query in queries]
        )
        return (build_s, 1e3 * search_s / len(queries), size_mb(Path(folder))), rankings


def _compare(
    runs: Mapping[str, Sequence[tuple[Costs, list[Ranking]]]],
) -> Iterator[Sequence[object]]:
    fastest = {engine: np.min([costs for costs, _ in own], axis=0) for engine, own in runs.items()}
    for engine, (build_s, query_ms, disk_mb) in fastest.items():
        slower = fastest[engine] / fastest["builtin"]
        costs = (
            f"{build_s:.2f}",
            f"{slower[0]:.2f}x",
            f"{query_ms:.3f}",
            f"{slower[1]:.2f}x",
            f"{disk_mb:.1f}",
        )
        yield engine, *costs, *_agreement(runs["builtin"][0][1], runs[engine][0][1])


def _agreement(ours: Sequence[Ranking], theirs: Sequence[Ranking]) -> tuple[str, str]:
    """Return means over the queries for which both find something."""
    pairs = [
        (our.rows_K.tolist(), their.rows_K.tolist())
        for our, their in zip(ours, theirs, strict=True)
    ]
    pairs = [(our, their) for our, their in pairs if our and their]
    overlap = fmean(len({*our} & {*their}) / max(len(our), len(their)) for our, their in pairs)
    return f"{overlap:.3f}", f"{fmean(our[0] == their[0] for our, their in pairs):.3f}"


def _wiki18() -> tuple[str, list[Chunk], list[str]]:
    chunks = [make_chunk(row, text) for row, text in enumerate(wiki18_passages())]
    return (
        "wiki18 + NQ",
        chunks,
        [row["question"] for row in gzip_rows(DATA / "searchr1/nq.jsonl.gz")],
    )


def _multihoprag() -> tuple[str, list[Chunk], list[str]]:
    with TemporaryDirectory() as folder:
        path = chunk_documents(read_documents(DATA / "multihoprag"), Path(folder), "sentences", 256)
        chunks = list(read_jsonl(path, Chunk))

    return (
        "MultiHop-RAG",
        chunks,
        [row["query"] for row in gzip_rows(DATA / "multihoprag/queries.jsonl.gz")],
    )


def main() -> None:
    """Print a row per corpus and engine."""
    options = parse_options(
        __doc__,
        repetitions=(3, "of building and searching, engines in turn"),
        copies=(1, "of every passage"),
        queries=(700, "at most so many of a set"),
    )
    rows: list[Sequence[object]] = []

    for name, chunks, queries in (_wiki18(), _multihoprag()):
        chunks = chunks * options.copies
        queries = queries[: options.queries]
        works = {engine: partial(_run_engine, engine, chunks, queries) for engine in ENGINES}
        runs = in_turn(works, options.repetitions)
        rows += [(f"{name} ({len(chunks)})", *row) for row in _compare(runs)]

    ratios = ("build CPU s", "to builtin", "CPU ms/query", "to builtin")
    publish(
        options,
        "sparse engines",
        ("passages", "engine", *ratios, "disk MB", "top-10 overlap", "equal top 1"),
        rows,
    )


if __name__ == "__main__":
    main()
