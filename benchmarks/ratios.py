"""The speed of retrieval as ratios of two things in one run, against a committed table: ``make bench``.

    .venv/bin/python -m benchmarks.ratios                    # about two minutes; status 1 after a loss
    .venv/bin/python -m benchmarks.ratios --update           # and write the table, and the documents' copy of it
    .venv/bin/python -m benchmarks.ratios --all --update     # and what a user sees, on all cores
    .venv/bin/python -m benchmarks.ratios --only bm25        # a part alone

Every ratio is the other's time to the project's, or the project's rate to the other's: more than 1
means that the project is faster. Both run in turn, in rounds, and the ratio is that of a round, so
that a busy machine slows both; the table has the medians of the rounds, and as noise half the
distance between the least and the greatest as a share of the median. A ratio is lost where it is
below the table's by more than 15 %, or by more than the noise where that is greater.

    bm25       CPU time beside bm25s, one query and 64 at a time, and of a build
    encoding   CPU time beside sentence-transformers, both on one thread: passages of wiki-18, and 64 queries
    server     CPU time of a query beside a server that serves as Search-R1's does (benchmarks/peer_server.py),
               over the same vectors, each on one core, by queries of a request x clients

CPU time, because it holds on a busy machine. ``--all`` measures what a user sees as well, which holds
on a quiet machine alone: encoding with all cores, and queries/s and p99 of both servers. A part that is
updated alone leaves the note on the whole run as it is.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import data, sparse
from benchmarks.arithmetic_limit import arithmetic_limit
from benchmarks.measure import fill_section, markdown_table, parse_options
from benchmarks.ratio import HEADER, MAX_LOSS, Ratio, compare, cpu, table_rows, wall
from benchmarks.server_ratios import DEFAULTS, server
from deepsearch_rl.search.bm25.builtin import Bm25Index
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.encoders.sentence_transformers import (
    SentenceTransformersConfig,
    SentenceTransformersEncoder,
)

TABLE = Path("benchmarks/ratios.json")
DOCUMENT = Path("docs/measurements.md")
SECTION = "ratios"
BATCH = 64
ENCODED_PASSAGES = 96


def bm25(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Compare the built-in BM25 with bm25s."""
    chunks = [data.make_chunk(row, text) for row, text in enumerate(data.wiki18_passages())]
    rows = data.gzip_rows(data.DATA / "searchr1/nq.jsonl.gz")
    queries = [row["question"] for row in itertools.islice(rows, 640)]

    with TemporaryDirectory() as name:
        folder = Path(name)
        index = Bm25Index.build(chunks, folder / "ours", sparse.ONE_FIELD)
        theirs = sparse.Bm25s.build(chunks, folder / "theirs")
        for size, title in ((1, "one query"), (BATCH, f"{BATCH} queries together")):
            search = partial(sparse.search_in_batches, queries=queries, size=size)
            ratio = compare(partial(search, index), partial(search, theirs), rounds, cpu)
            yield f"bm25, {title}", ratio

        build = partial(Bm25Index.build, chunks, folder / "ours", sparse.ONE_FIELD)
        others = partial(sparse.Bm25s.build, chunks, folder / "theirs")
        yield "bm25, build", compare(build, others, 3, cpu)


def encoding(
    folder: Path, texts: list[str], rounds: int, threads: int | None
) -> Iterator[tuple[str, Ratio]]:
    """Compare the encoder with sentence-transformers, on so many threads or on as many as they choose by themselves."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

    # Before the encoder sets the process's threads
    others = threads or torch.get_num_threads()
    transformer = Transformer(str(folder))
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    theirs = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    config = {**DEFAULTS, "model": str(folder), "threads": threads}
    encoder = SentenceTransformersEncoder(SentenceTransformersConfig.model_validate(config))

    def encode_here(batch: list[str]) -> object:
        torch.set_num_threads(1)
        return encoder.encode(batch, "passage")

    def encode_there(batch: list[str]) -> object:
        torch.set_num_threads(others)
        return normalise_rows(theirs.encode(batch, show_progress_bar=False))

    queries = data.draw_queries(texts, 1, BATCH)
    for name, batch in (("passages", texts[:ENCODED_PASSAGES]), (f"{BATCH} queries", queries)):
        works = partial(encode_here, batch), partial(encode_there, batch)
        on = "one thread" if threads else "all cores"
        yield f"encoding, {name}, {on}", compare(*works, rounds, cpu if threads else wall)


def read_table() -> dict[str, Ratio]:
    """Return the committed ratios by name."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["ratios"]
    return {name: Ratio(**row) for name, row in rows.items()}


def read_note() -> str:
    """Return what stands above the committed ratios: the rounds and the machine of the whole run."""
    return json.loads(TABLE.read_text(encoding="utf-8"))["note"]


def write_table(ratios: Mapping[str, Ratio], note: str) -> None:
    """Write the committed table, and its copy in the document."""
    rows = {name: asdict(ratio) for name, ratio in ratios.items()}
    TABLE.write_text(json.dumps({"note": note, "ratios": rows}, indent=2) + "\n", encoding="utf-8")
    table = markdown_table(HEADER, table_rows(ratios))
    fill_section(DOCUMENT, SECTION, f"{note}\n\n{table}")


def judge(ratios: Mapping[str, Ratio], committed: Mapping[str, Ratio]) -> list[str]:
    """Print every ratio beside the committed one and return the names of those that are lost."""
    lost: list[str] = []
    rows: list[tuple[object, ...]] = []
    for name, ratio in ratios.items():
        before = committed.get(name)
        change = "new"
        if before is not None:
            change = f"{-100 * ratio.loss(before):+.0f}%"
            if ratio.is_lost(before):
                lost.append(name)
                change += ", lost"
        was = f"{before.ratio:.2f}" if before else "-"
        rows.append((name, f"{ratio.ratio:.2f}", f"{100 * ratio.noise:.0f}%", was, change))

    sys.stdout.write(markdown_table(("what", "ratio", "noise", "committed", "change"), rows))
    return lost


def report(
    ratios: Mapping[str, Ratio], note: str, *, is_update: bool, is_part: bool = False
) -> None:
    """Print the ratios beside the committed ones; write the table, or end the process with status 1 after a loss.

    Those of a part go into the table without ``note``, which is on their run alone.
    """
    sys.stdout.write(f"{note}\n\n")
    committed = read_table() if TABLE.exists() else {}
    lost = judge(ratios, committed)
    if is_update:
        write_table({**committed, **ratios}, read_note() if is_part and committed else note)
    elif lost:
        sys.exit(
            f"lost more than {100 * MAX_LOSS:.0f} %, and more than noise: {'; '.join(lost)}\n\n"
            f"The table is of this run: {read_note()} Processors differ: on another one, measure the table's "
            f"own commit first (git log -1 {TABLE})."
        )


def main() -> None:
    """Measure, and compare with the table or replace it."""
    options = parse_options(
        __doc__,
        rounds=(5, "of every comparison"),
        seconds=(1.5, "of load per round and server"),
        passages=(2000, "rows of the servers' index"),
        all=(False, "more clients, several minutes"),
        only=("", "one part alone", ("", "bm25", "encoding", "server")),
        update=(False, "write the table and the document instead of comparing"),
        work=(data.WORK, "indexes"),
    )
    texts = data.wiki18_passages(least=options.passages)
    encoder = options.work / "minilm"
    if not encoder.exists():
        data.write_random_model(encoder, texts[:10_000], data.MINILM)

    ratios: dict[str, Ratio] = {}
    load_before = os.getloadavg()[0]
    for part in _parts(options, texts, encoder):
        for name, ratio in part:
            ratios[name] = ratio
            sys.stderr.write(f"{name}: {ratio.ratio:.2f}\n")

    note = (
        f"Medians of {options.rounds} rounds on {len(os.sched_getaffinity(0))} cores; the load of the machine was "
        f"{load_before:.1f} before. {arithmetic_limit(encoder, texts)}"
    )
    report(ratios, note, is_update=options.update, is_part=bool(options.only))


def _parts(
    options: argparse.Namespace, texts: list[str], encoder: Path
) -> Iterator[Iterator[tuple[str, Ratio]]]:
    """Yield what is to be measured, a comparison after the other."""
    on_one_core = {
        "bm25": [bm25(options.rounds)],
        "encoding": [encoding(encoder, texts, options.rounds, 1)],
        "server": [server(options, texts, encoder, min(os.sched_getaffinity(0)))],
    }
    on_all_cores = {
        "encoding": [encoding(encoder, texts, options.rounds, None)],
        "server": [server(options, texts, encoder, None)],
    }
    has_all_cores = options.all or options.only in on_all_cores.keys() - on_one_core.keys()
    for parts in (on_one_core, on_all_cores if has_all_cores else {}):
        for name, comparisons in parts.items():
            if options.only in ("", name):
                yield from comparisons


if __name__ == "__main__":
    main()
