"""The retrieval server under load: queries/s, latency and CPU per request with 1, 16, 64 and 128 clients.

    .venv/bin/python -m benchmarks.retrieval_server                                  # all workloads, about 10 minutes
    .venv/bin/python -m benchmarks.retrieval_server --workloads bm25 --clients 1 64 --seconds 2 --repetitions 1

For every workload servers run over the same index, one with micro-batching and one without (a batch
is one query), and are driven in turn, so that a busy machine slows all. Every client sends one
query a request over its own connection and waits for the answer. The servers have a core of their
own where there are two. All but ``cached`` have the cache off.

    minilm        dense, Flat; a random encoder of MiniLM-L6's shape in float32, a batch of queries at a time
    minilm-bf16   the same in bfloat16
    bm25, dense   the weightless default: BM25, and TF-IDF + SVD over Flat
    cached        minilm with 64 queries that repeat
"""

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import uvloop

from benchmarks import data
from benchmarks.measure import (
    in_turn,
    markdown_table,
    medians,
    parse_options,
    publish,
    verdict,
    write_figures,
)
from benchmarks.servers import (
    Load,
    Request,
    drive,
    json_request,
    load_server,
    running_server,
    spare_core,
)

TOP_K = 3
SHORT_TEXTS = {"max_tokens": 32, "batch_tokens": 256}
"""A random encoder understands nothing, so that longer texts only take longer."""
WORKLOADS: dict[str, tuple[str, str | None]] = {
    "minilm": ("dense", "float32"),
    "minilm-bf16": ("dense", "bfloat16"),
    "bm25": ("bm25", None),
    "dense": ("dense", None),
    "cached": ("dense", "float32"),
}
"""The retriever, and the dtype of the random encoder; None stands for the weightless one."""
CACHED = "cached"
ON = "on"
OFF = "off"
DISTINCT_QUERIES = 20_000
REPEATED_QUERIES = 64
JUDGED_CLIENTS = 64
TARGET_PER_S = 1500
FORMATS = {"queries/s": ".0f", "p50 ms": ".1f", "p99 ms": ".1f", "CPU ms/query": ".3f"}
Key = tuple[str, str, int]
"""Workload, batching, clients."""


def measure(name: str, options: argparse.Namespace, texts: list[str]) -> dict[Key, list[Load]]:
    """Drive the servers of a workload in turn with every number of clients."""
    retriever, dtype = WORKLOADS[name]
    folder = options.work / f"{options.passages}"
    encoder = folder / "minilm"
    if dtype and not encoder.exists():
        data.write_random_model(encoder, texts, data.MINILM)
    model = {**data.RANDOM_ENCODER, **SHORT_TEXTS, "model": str(encoder.resolve()), "dtype": dtype}
    config = data.index_config(**({"encoder": model} if dtype else {}))
    index = data.prepare_index(texts, folder / (dtype or "weightless"), config)
    queries = data.draw_queries(texts, 1, REPEATED_QUERIES if name == CACHED else DISTINCT_QUERIES)
    # As veRL sends them
    requests: list[Request] = []
    for query in queries:
        body = {"queries": [query], "topk": TOP_K, "return_scores": True}
        requests.append(json_request(body, expected=b'"document"'))
    arguments = ["--retriever", retriever, "--top-k", str(TOP_K)]
    arguments += [] if name == CACHED else ["-S", "retrieval.cache_entries=0"]
    start = partial(running_server, index, core=spare_core())
    measured: dict[Key, list[Load]] = {}

    with ExitStack() as stack:
        servers = {
            ON: stack.enter_context(start(arguments)),
            OFF: stack.enter_context(start([*arguments, "-S", "retrieval.max_batch=1"])),
        }
        # Fills caches, and loads what libraries load with the first request
        for server in servers.values():
            uvloop.run(drive(server.port, requests[: 2 * REPEATED_QUERIES], 8, 30))

        for clients in options.clients:
            works: dict[Key, Callable[[], Load]] = {}
            for batching, server in servers.items():
                work = partial(load_server, server, requests, clients, options.seconds)
                works[name, batching, clients] = work
            measured |= in_turn(works, options.repetitions)

    return measured


def verdicts(cells: Mapping[Key, Mapping[str, float]]) -> list[tuple[object, ...]]:
    """Return targets beside figures, at 64 clients where they were driven, else at the largest number of clients."""
    rows: list[tuple[object, ...]] = []
    for name in dict.fromkeys(key[0] for key in cells):
        clients = (
            JUDGED_CLIENTS if (name, ON, JUDGED_CLIENTS) in cells else max(key[2] for key in cells)
        )
        on = cells[name, ON, clients]
        off = cells[name, OFF, clients]
        place = f"{name}, {clients} clients"

        if name.startswith("minilm"):
            faster = on["queries/s"] / off["queries/s"]
            shorter = on["p99 ms"] / off["p99 ms"]
            rows.append(
                (
                    place,
                    "queries/s, batching on : off",
                    "2.5",
                    f"{faster:.2f}",
                    verdict(faster >= 2.5),
                )
            )
            rows.append(
                (place, "p99, batching on : off", "0.50", f"{shorter:.2f}", verdict(shorter <= 0.5))
            )
            continue

        rates = {"queries/s": on["queries/s"], "queries per CPU second": 1000 / on["CPU ms/query"]}
        for what, rate in rates.items():
            rows.append((place, what, TARGET_PER_S, f"{rate:.0f}", verdict(rate >= TARGET_PER_S)))

    return rows


def main() -> None:
    """Measure every workload and print the tables."""
    options = parse_options(
        __doc__,
        workloads=(list(WORKLOADS), "", WORKLOADS),
        clients=[1, 16, 64, 128],
        seconds=(4.0, "of load per measurement"),
        repetitions=(3, "measurements per server and number of clients"),
        passages=(10_000, "rows of the index"),
        work=(data.WORK, "indexes"),
    )
    texts = data.wiki18_passages(least=options.passages)[: options.passages]
    measured: dict[Key, list[Load]] = {}
    for name in options.workloads:
        measured |= measure(name, options, texts)
    cells: dict[Key, dict[str, float]] = {}
    rows: list[tuple[object, ...]] = []
    for key, loads in measured.items():
        cells[key] = medians([load.figures for load in loads])
        errors = sum(load.errors for load in loads)
        rows.append((*key, *write_figures(cells[key], FORMATS), errors))

    client_us = medians(list(cells.values()))["client us/query"]
    note = (
        f"Medians of {options.repetitions} x {options.seconds:g} s; {options.passages:,} passages, top {TOP_K}, one "
        f"query a request, the server on {'any core' if spare_core() is None else 'one core'}; the clients took "
        f"{client_us:.0f} us of CPU per request.\n\n"
        f"{markdown_table(('where', 'what', 'target', 'measured', 'verdict'), verdicts(cells))}"
    )
    publish(
        options,
        "server_load",
        ("workload", "batching", "clients", *FORMATS, "errors"),
        rows,
        before=note,
    )


if __name__ == "__main__":
    main()
