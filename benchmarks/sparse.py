"""Sparse retrieval: the built-in BM25 beside bm25s and pyserini's Lucene: agreement, CPU time, memory and quality.

    .venv/bin/python -m benchmarks.sparse                                    # engines and fields, half a minute
    .venv/bin/python -m benchmarks.sparse --tables engines --repetitions 1 --queries 100
    .venv/bin/python -m benchmarks.sparse --tables scale --rows 100000 300000 1000000       # two minutes
    .venv/bin/python -m benchmarks.sparse --tables engines fields scale --docs docs/retrieval.md

    engines   every engine builds and searches the same real passages in turn; CPU seconds of the whole process, Java's
              threads among them, are of the fastest repetition; agreement is with the built-in index
    scale     the built-in index over more and more rows: CPU time, peak anonymous memory of the build, disk, queries.
              Passages are drawn from the real ones; every twentieth word is replaced by one from a growing vocabulary
    fields    MultiHop-RAG's questions with known evidence, official scores, one field beside weighted ones

Real data is read from ``--data`` (wiki18, searchr1 and multihoprag of it). Tables go to standard output and, as
Markdown and CSV, to ``--work``.
"""

import argparse
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import bm25s
import numpy as np
from scipy.stats import kendalltau

from benchmarks.data import (
    DATA,
    WORK,
    chunk_config,
    gzip_rows,
    make_chunk,
    read_documents,
    read_questions,
    wiki18_passages,
)
from benchmarks.measure import grown_memory, parse_options, publish, size_mb, timed
from deepsearch_rl.corpora.chunking import chunk_corpora
from deepsearch_rl.files import read_jsonl, write_jsonl
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
DEPTH = 100
NEW_WORD_EVERY = 20
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


def measure_engines(options: argparse.Namespace) -> Table:
    """One row per corpus and engine."""
    header = ("passages", "engine", "build CPU s", "to builtin", "CPU ms/query", "to builtin", "disk MB",
              "top-10 overlap", "equal top 1", "Kendall tau", "score correlation")  # fmt: skip
    rows: list[Sequence[object]] = []
    for name, chunks, queries in (_wiki18(options.data), _multihoprag(options.data)):
        chunks = chunks * options.copies
        queries = queries[: options.queries]
        sys.stderr.write(f"{name}: {len(chunks)} passages, {len(queries)} queries\n")
        rows += _compare(f"{name} ({len(chunks)})", chunks, queries, options)
    return header, rows


def _compare(
    name: str, chunks: Collection[Chunk], queries: Sequence[str], options: argparse.Namespace
) -> Iterator[Sequence[object]]:
    build_s, search_s = (dict.fromkeys(ENGINES, float("inf")) for _ in range(2))
    disk_mb: dict[str, float] = {}
    deep: dict[str, list[Ranking]] = {}
    for _ in range(options.repetitions):
        for engine in ENGINES:
            with TemporaryDirectory() as folder:
                taken_s, retriever = timed(lambda e=engine, f=folder: ENGINES[e](chunks, Path(f) / e))
                build_s[engine] = min(build_s[engine], taken_s)
                taken_s, _ = timed(lambda r=retriever: [r.search([query], TOP_K) for query in queries])
                search_s[engine] = min(search_s[engine], taken_s)
                deep[engine] = retriever.search(queries, DEPTH)
                disk_mb[engine] = size_mb(Path(folder))
    for engine in ENGINES:
        yield (
            name, engine, f"{build_s[engine]:.2f}", f"{build_s[engine] / build_s['builtin']:.2f}x",
            f"{1e3 * search_s[engine] / len(queries):.3f}", f"{search_s[engine] / search_s['builtin']:.2f}x",
            f"{disk_mb[engine]:.1f}", *_agreement(deep["builtin"], deep[engine]),
        )  # fmt: skip


def _agreement(ours: Sequence[Ranking], theirs: Sequence[Ranking]) -> tuple[str, str, str, str]:
    """Means over the queries for which both find something."""
    pairs = [(our, their) for our, their in zip(ours, theirs, strict=True) if len(our.rows_K) and len(their.rows_K)]
    overlap = fmean(
        len(set(our.rows_K[:TOP_K].tolist()) & set(their.rows_K[:TOP_K].tolist()))
        / max(len(our.rows_K[:TOP_K]), len(their.rows_K[:TOP_K]))
        for our, their in pairs
    )
    first = fmean(float(our.rows_K[0] == their.rows_K[0]) for our, their in pairs)
    taus, correlations = [], []
    for our, their in pairs:
        _, ours_M, theirs_M = np.intersect1d(our.rows_K, their.rows_K, return_indices=True)
        if len(ours_M) > 2 and np.ptp(our.scores_K[ours_M]) > 0 and np.ptp(their.scores_K[theirs_M]) > 0:
            taus.append(kendalltau(our.scores_K[ours_M], their.scores_K[theirs_M])[0])
            correlations.append(np.corrcoef(our.scores_K[ours_M], their.scores_K[theirs_M])[0, 1])
    return f"{overlap:.3f}", f"{first:.3f}", f"{np.mean(taus):.3f}", f"{np.mean(correlations):.4f}"


# --- scale ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrawnChunks:
    """Passages made as they are asked for, the same each time, so that they take no memory."""

    texts: Sequence[str]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def __contains__(self, item: object) -> bool:
        raise AssertionError("nobody looks for a passage by value")

    def __iter__(self) -> Iterator[Chunk]:
        rng = random.Random(0)
        for row in range(self.rows):
            words = rng.choice(self.texts).split(" ")
            for position in range(rng.randrange(NEW_WORD_EVERY), len(words), NEW_WORD_EVERY):
                words[position] = f"w{int(row * rng.random() ** 3)}"  # new words all along, old ones again and again
            yield make_chunk(row, " ".join(words))


def measure_scale(options: argparse.Namespace) -> Table:
    """One row per number of passages."""
    header = ("passages", "build CPU s", "us/passage", "peak anonymous MB", "disk MB", "terms", "CPU ms/query")
    _, real, queries = _wiki18(options.data)
    texts = [chunk.contents for chunk in real]
    queries = queries[: options.queries]
    rows: list[Sequence[object]] = []
    for count in options.rows:
        making_s, _ = timed(lambda n=count: sum(1 for _ in DrawnChunks(texts, n)))
        with TemporaryDirectory() as folder:
            with grown_memory() as grown_mb:
                taken_s, index = timed(
                    lambda n=count, f=folder: Bm25Index.build(DrawnChunks(texts, n), Path(f), ONE_FIELD)
                )
            taken_s -= making_s
            index.search(queries, TOP_K)  # its pages into memory
            query_s, _ = timed(lambda i=index: [i.search([query], TOP_K) for query in queries])
            rows.append((
                count, f"{taken_s:.1f}", f"{1e6 * taken_s / count:.0f}", f"{grown_mb[0]:.0f}",
                f"{size_mb(Path(folder)):.0f}", len(index.keys_V), f"{1e3 * query_s / len(queries):.3f}",
            ))  # fmt: skip
    return header, rows


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
        write_jsonl(Path(folder, "corpora", "news.jsonl"), read_documents(data / "multihoprag"))
        chunk_corpora(Path(folder, "corpora"), Path(folder, "chunks"), chunk_config("sentences", 256))
        chunks = list(read_jsonl(Path(folder, "chunks", "news.jsonl"), Chunk))
    return "MultiHop-RAG", chunks, [row["query"] for row in gzip_rows(data / "multihoprag/queries.jsonl.gz")]


def main() -> None:
    """Parse the command line and print the tables that it names."""
    tables = {"engines": measure_engines, "scale": measure_scale, "fields": measure_fields}
    options = parse_options(
        __doc__,
        tables=(["engines", "fields"], "", tables),
        data=(DATA, "folder of the real data"),
        work=WORK,
        repetitions=(3, "of building and searching, engines in turn"),
        copies=(1, "of every passage, for the table engines"),
        queries=(700, "at most so many of a set"),
        rows=([30_000, 100_000, 300_000], "for the table scale"),
    )
    for name in options.tables:
        publish(options, f"sparse {name}", *tables[name](options))


if __name__ == "__main__":
    main()
