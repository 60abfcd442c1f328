"""The retrieval server under load: queries/s, latency and CPU per request with 1, 16, 64 and 128 clients.

    .venv/bin/python -m benchmarks.retrieval_server                                  # all workloads, about 10 minutes
    .venv/bin/python -m benchmarks.retrieval_server --workloads bm25 --clients 1 64 --seconds 2 --repetitions 1
    .venv/bin/python -m benchmarks.retrieval_server --docs docs/retrieval.md         # and the tables into the document

For every workload two servers run over the same index, one with micro-batching and one without (a batch is one query),
and are driven in turn, so that a busy machine slows both. Every client sends one query a request over a connection of
its own and waits for the answer (benchmarks/http_load.py). The server has a core of its own where there are two.

    minilm        dense, Flat; a random encoder of MiniLM-L6's shape in float32, a batch of queries at a time
    minilm-bf16   the same in bfloat16
    bm25, dense   the weightless default: BM25, and TF-IDF + SVD over Flat
    cached        minilm with 64 queries that repeat, so that the cache answers

All but the last have the cache off. Results go to ``work/benchmarks/server_load.{md,csv}``.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks import data
from benchmarks.http_load import Request, ServerLoad, drive, drive_in_turn, json_request
from benchmarks.measure import markdown_table, medians, parse_options, publish, verdict, write_figures
from benchmarks.servers import running_server, spare_core
from deepsearch_rl.retrieval.manifest import IndexConfig

TOP_K = 3
ENCODER = {
    "name": "transformers", "revision": None, "pooling": "mean", "query_prefix": "", "passage_prefix": "",
    "max_tokens": 32, "batch_tokens": 256, "threads": 1, "device": "cpu",
}  # fmt: skip
"""With few tokens a passage: a random encoder understands nothing, so that longer texts only take longer."""
DISTINCT_QUERIES, REPEATED_QUERIES = 20_000, 64
JUDGED_CLIENTS = 64
TARGET_PER_S = 1500
FORMATS = {"queries/s": ".0f", "p50 ms": ".1f", "p99 ms": ".1f", "CPU ms/query": ".2f", "queries per batch": ".1f"}
Key = tuple[str, bool, int]
"""Workload, batching, clients."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a server searches with. ``dtype`` is that of the random encoder; None stands for the weightless one."""

    retriever: str
    dtype: str | None = None
    cached: bool = False


WORKLOADS = {
    "minilm": Workload("dense", "float32"),
    "minilm-bf16": Workload("dense", "bfloat16"),
    "bm25": Workload("bm25"),
    "dense": Workload("dense"),
    "cached": Workload("dense", "float32", cached=True),
}


def _index_config(dtype: str | None, encoder_folder: Path) -> IndexConfig:
    """Return the tiny profile's index over Flat vectors, with the random encoder where there is one."""
    encoder = {"encoder": {**ENCODER, "model": str(encoder_folder.resolve()), "dtype": dtype}} if dtype else {}
    return data.index_config(vectors={"kind": "flat"}, **encoder)


def _requests(texts: list[str], count: int) -> list[Request]:
    """Return requests as veRL's search tool sends them, one query each."""
    bodies = (
        {"queries": [query], "topk": TOP_K, "return_scores": True} for query in data.draw_queries(texts, 1, count)
    )
    return [json_request(body, expected=b'"document"') for body in bodies]


def measure(name: str, options: argparse.Namespace, texts: list[str]) -> dict[Key, list[ServerLoad]]:
    """Drive both servers of a workload in turn with every number of clients."""
    workload, folder = WORKLOADS[name], options.work / f"{options.passages}"
    encoder_folder = folder / "minilm"
    if workload.dtype and not encoder_folder.exists():
        data.write_random_model(encoder_folder, texts, data.MINILM)
    config = _index_config(workload.dtype, encoder_folder)
    index = data.prepare_index(texts, folder / (workload.dtype or "weightless"), config)
    requests = _requests(texts, REPEATED_QUERIES if workload.cached else DISTINCT_QUERIES)
    arguments = ["--retriever", workload.retriever, "--top-k", str(TOP_K)]
    arguments += [] if workload.cached else ["--cache-entries", "0"]
    measured: dict[Key, list[ServerLoad]] = {}
    with ExitStack() as stack:
        servers = {
            batching: stack.enter_context(running_server(*index, arguments + limit, spare_core()))
            for batching, limit in ((True, []), (False, ["--max-batch", "1"]))
        }
        for server in servers.values():  # caches filled, lazily loaded libraries loaded
            uvloop.run(drive(server.address, requests[: 2 * REPEATED_QUERIES], 8, 30))
        for clients in options.clients:
            loads = drive_in_turn(servers, requests, clients, options.seconds, options.repetitions)
            measured |= {(name, batching, clients): loads[batching] for batching in servers}
    return measured


def verdicts(cells: Mapping[Key, Mapping[str, float]]) -> list[tuple[object, ...]]:
    """Return targets beside figures, at 64 clients where they were driven, else at the largest number of clients."""
    rows: list[tuple[object, ...]] = []
    for name in dict.fromkeys(key[0] for key in cells):
        clients = JUDGED_CLIENTS if (name, True, JUDGED_CLIENTS) in cells else max(key[2] for key in cells)
        on, off = cells[name, True, clients], cells[name, False, clients]
        place = f"{name}, {clients} clients"
        if WORKLOADS[name].dtype and not WORKLOADS[name].cached:
            faster, shorter = on["queries/s"] / off["queries/s"], on["p99 ms"] / off["p99 ms"]
            rows.append((place, "queries/s, batching on : off", "2.5", f"{faster:.2f}", verdict(faster >= 2.5)))
            rows.append((place, "p99, batching on : off", "0.50", f"{shorter:.2f}", verdict(shorter <= 0.5)))
        else:
            rates = {"queries/s": on["queries/s"], "queries per CPU second": 1000 / on["CPU ms/query"]}
            for what, rate in rates.items():
                rows.append((place, what, TARGET_PER_S, f"{rate:.0f}", verdict(rate >= TARGET_PER_S)))
    return rows


def summarise(measured: Mapping[Key, Sequence[ServerLoad]]) -> dict[Key, dict[str, float]]:
    """Return the medians of every figure."""
    return {key: medians([run.figures for run in runs]) for key, runs in measured.items()}


def main() -> None:
    """Measure every workload, write the results and print them."""
    options = parse_options(
        __doc__,
        workloads=(list(WORKLOADS), "", WORKLOADS),
        clients=[1, 16, 64, 128],
        seconds=(4.0, "of load per measurement"),
        repetitions=(3, "measurements per server and number of clients"),
        passages=(10_000, "rows of the index"),
        work=(data.WORK, "indexes and results"),
    )
    texts = data.wiki18_passages(least=options.passages)[: options.passages]
    measured: dict[Key, list[ServerLoad]] = {}
    for name in options.workloads:
        measured |= measure(name, options, texts)
    cells = summarise(measured)
    loads = [run.load for runs in measured.values() for run in runs]
    generator_us = statistics.median(load.generator_cpu_s / load.answered * 1e6 for load in loads)
    note = (
        f"Medians of {options.repetitions} x {options.seconds:g} s; {options.passages:,} passages, top {TOP_K}, one "
        f"query a request, the server on {'any core' if spare_core() is None else 'one core'}; the generator took "
        f"{generator_us:.0f} us of CPU per request.\n\n"
        f"{markdown_table(('where', 'what', 'target', 'measured', 'verdict'), verdicts(cells))}"
    )
    rows = []
    for (name, batching, clients), runs in measured.items():
        figures = write_figures(cells[name, batching, clients], FORMATS)
        rows.append((name, "on" if batching else "off", clients, *figures, sum(run.load.errors for run in runs)))
    publish(options, "server_load", ("workload", "batching", "clients", *FORMATS, "errors"), rows, before=note)


if __name__ == "__main__":
    main()
