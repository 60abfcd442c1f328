"""Sparse retrieval: the built-in BM25 beside bm25s and pyserini's Lucene.

    .venv/bin/python -m benchmarks.sparse                                    # half a minute
    .venv/bin/python -m benchmarks.sparse --repetitions 1 --queries 100

Every engine builds and searches the same real passages (wiki18, searchr1 and multihoprag) in turn.
CPU seconds of the whole process, Java's threads among them, are of the fastest repetition, and so
is the memory that a build adds to the process at its peak; agreement is with the built-in index.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import bm25s
import numpy as np
from numpy.typing import NDArray

from benchmarks.data import (
    DATA,
    chunk_documents,
    gzip_rows,
    make_chunk,
    read_documents,
    wiki18_passages,
)
from benchmarks.measure import (
    in_turn,
    parse_options,
    publish,
    restart_peak,
    size_mb,
    status_kb,
    timed,
)
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.records import Chunk
from deepsearch_rl.search.analysis import analyse
from deepsearch_rl.search.bm25.builtin import Bm25Config, Bm25Index
from deepsearch_rl.search.bm25.lucene import LuceneConfig, LuceneIndex
from deepsearch_rl.search.ranking import Ranking, Retriever, rank

ONE_FIELD = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})
LUCENE = LuceneConfig(engine="lucene", k1=0.9, b=0.4, heap_mb=1024)
TOP_K = 10
BATCH = 64
Costs = tuple[float, float, float, float, float]
"""CPU seconds of a build, MB that it adds to the process at most, CPU milliseconds of a query, alone and in a batch,
MB of files.
"""


@dataclass(frozen=True, slots=True)
class Bm25s:
    """The library bm25s, given this project's terms, ranked as this project ranks."""

    model: bm25s.BM25

    @classmethod
    def build(cls, chunks: Collection[Chunk], folder: Path) -> "Bm25s":
        """Index and save."""
        vocabulary: dict[str, int] = {}
        ids: list[list[int]] = []
        for chunk in chunks:
            terms = analyse(chunk.contents)
            ids.append([vocabulary.setdefault(term, len(vocabulary)) for term in terms])

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
        held_kb = restart_peak()
        build_s, retriever = timed(lambda: ENGINES[engine](chunks, Path(folder, engine)))
        build_mb = (status_kb("VmHWM") - held_kb) / 1024
        search_s, rankings = timed(partial(search_in_batches, retriever, queries, 1))
        query_ms = 1e3 * search_s / len(queries)
        batch_s, together = timed(partial(search_in_batches, retriever, queries, BATCH))
        _require_equal(rankings, together)
        batch_ms = 1e3 * batch_s / len(queries)
        return (build_s, build_mb, query_ms, batch_ms, size_mb(Path(folder))), rankings


def search_in_batches(retriever: Retriever, queries: Sequence[str], size: int) -> list[Ranking]:
    """Return the rankings of all queries, ``size`` of which are searched for together."""
    rankings: list[Ranking] = []
    for start in range(0, len(queries), size):
        rankings += retriever.search(queries[start : start + size], TOP_K)

    return rankings


def _require_equal(alone: Sequence[Ranking], together: Sequence[Ranking]) -> None:
    """Raise ValueError where a batch gives another ranking than the query alone."""
    for first, second in zip(alone, together, strict=True):
        if first.rows_K.tolist() != second.rows_K.tolist():
            raise ValueError("a batch ranks other rows than its queries alone")


def _compare(
    runs: Mapping[str, Sequence[tuple[Costs, list[Ranking]]]],
) -> Iterator[Sequence[object]]:
    least: dict[str, NDArray[np.float64]] = {}
    for engine, repetitions in runs.items():
        least[engine] = np.min([costs for costs, _ in repetitions], axis=0)

    for engine, (build_s, build_mb, query_ms, batch_ms, disk_mb) in least.items():
        slower = least[engine] / least["builtin"]
        costs = (
            f"{build_s:.2f}",
            f"{slower[0]:.2f}x",
            f"{build_mb:.0f}",
            f"{query_ms:.3f}",
            f"{slower[2]:.2f}x",
            f"{batch_ms:.3f}",
            f"{slower[3]:.2f}x",
            f"{disk_mb:.1f}",
        )
        yield engine, *costs, *_agreement(runs["builtin"][0][1], runs[engine][0][1])


def _agreement(ours: Sequence[Ranking], theirs: Sequence[Ranking]) -> tuple[str, str]:
    """Return means over the queries for which both find something."""
    overlaps: list[float] = []
    equal_firsts: list[bool] = []
    for our, their in zip(ours, theirs, strict=True):
        our_rows = our.rows_K.tolist()
        their_rows = their.rows_K.tolist()
        if our_rows and their_rows:
            shared = len({*our_rows} & {*their_rows})
            overlaps.append(shared / max(len(our_rows), len(their_rows)))
            equal_firsts.append(our_rows[0] == their_rows[0])

    return f"{fmean(overlaps):.3f}", f"{fmean(equal_firsts):.3f}"


def _wiki18() -> tuple[str, list[Chunk], list[str]]:
    chunks = [make_chunk(row, text) for row, text in enumerate(wiki18_passages())]
    queries = [row["question"] for row in gzip_rows(DATA / "searchr1/nq.jsonl.gz")]
    return "wiki18 + NQ", chunks, queries


def _multihoprag() -> tuple[str, list[Chunk], list[str]]:
    with TemporaryDirectory() as folder:
        path = chunk_documents(read_documents(DATA / "multihoprag"), Path(folder), "sentences", 256)
        chunks = list(read_jsonl(path, Chunk))

    queries = [row["query"] for row in gzip_rows(DATA / "multihoprag/queries.jsonl.gz")]
    return "MultiHop-RAG", chunks, queries


def main() -> None:
    """Print a row per corpus and engine."""
    options = parse_options(
        __doc__,
        repetitions=(3, "of building and searching, engines in turn"),
        queries=(700, "at most so many of a set"),
    )
    rows: list[Sequence[object]] = []

    for name, chunks, queries in (_wiki18(), _multihoprag()):
        queries = queries[: options.queries]
        works = {engine: partial(_run_engine, engine, chunks, queries) for engine in ENGINES}
        runs = in_turn(works, options.repetitions)
        for row in _compare(runs):
            rows.append((f"{name} ({len(chunks)})", *row))

    ratios = ("build CPU s", "to builtin", "build MB", "CPU ms/query", "to builtin")
    batches = (f"in batches of {BATCH}", "to builtin")
    publish(
        options,
        "sparse engines",
        ("passages", "engine", *ratios, *batches, "disk MB", "top-10 overlap", "equal top 1"),
        rows,
    )


if __name__ == "__main__":
    main()
