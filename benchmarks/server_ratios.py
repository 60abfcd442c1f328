"""The retrieval server beside others, as ratios: a part of benchmarks/ratios.py."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import uvloop

from benchmarks import data
from benchmarks.measure import in_turn
from benchmarks.ratio import Ratio
from benchmarks.servers import (
    Load,
    Request,
    ServerProcess,
    drive,
    json_request,
    load_server,
    on_core,
    running_command,
    running_server,
)
from deepsearch_rl.core.processes import free_port

TOP_K = 3

# Queries of a request, and clients; the second list takes minutes
CELLS = ((1, 1), (1, 64), (64, 1))
ALL_CELLS = (*CELLS, (1, 128), (1, 512), (64, 64))

# A load lasts at least until a server of this rate has answered every client once
SLOW_QUERIES_PER_S = 150

QUERIES = 40_000

# Options of the servers: no answer comes from the cache
SERVED = ["--top-k", str(TOP_K), "-S", "retrieval.cache_entries=0"]
DOCUMENT_FOUND = b'"document"'
DENSE = ["--retriever", "dense", *SERVED]

# As an index on this machine is opened where nothing is said
DEFAULTS = {**data.RANDOM_ENCODER, "batch_tokens": None, "threads": None}


def server(
    options: argparse.Namespace, texts: list[str], encoder: Path, core: int | None
) -> Iterator[tuple[str, Ratio]]:
    """Compare the servers: their CPU time on one core, or rates and latencies on all."""
    index = _served_index(options, texts, encoder, DEFAULTS)
    cells = ALL_CELLS if core is None else CELLS
    for (size, clients), loads in _beside_peer(options, index, texts, encoder, core, cells):
        name = f"server, {size} x {clients}"
        if core is None:
            yield from _server_ratios(f"{name}, all cores", size, loads)
        else:
            yield f"{name}, one core", _cpu_ratio(size, loads)


def _beside_peer(
    options: argparse.Namespace,
    index: tuple[Path, Path],
    texts: list[str],
    encoder: Path,
    core: int | None,
    cells: Sequence[tuple[int, int]],
) -> Iterator[tuple[tuple[int, int], Mapping[str, Sequence[Load]]]]:
    """Yield the loads of both servers over one index, for every cell (queries of a request, clients)."""
    folder, chunks = index
    queries = data.draw_queries(texts, 1, QUERIES)
    port = free_port()
    vectors = folder / "dense" / "vectors.npy"
    peer = [*on_core(core), sys.executable, "-m", "benchmarks.peer_server"]
    peer += [str(chunks), str(vectors), str(encoder), str(port)]

    with ExitStack() as stack:
        servers = {
            "ours": stack.enter_context(running_server(index, DENSE, core)),
            "other": stack.enter_context(running_command(peer, port)),
        }
        for size, clients in cells:
            loads = _loads(options, servers, queries, size, clients, DOCUMENT_FOUND)
            yield (size, clients), loads


def _served_index(
    options: argparse.Namespace, texts: list[str], encoder: Path, settings: Mapping[str, object]
) -> tuple[Path, Path]:
    """Return the folder and the chunk file of the servers' index; ``settings`` are those of its encoder."""
    model = {**settings, "max_tokens": 32, "model": str(encoder.resolve())}
    return data.prepare_index(
        texts[: options.passages],
        encoder.parent / f"{encoder.name}-{options.passages}",
        data.index_config(encoder=model),
    )


def _loads(
    options: argparse.Namespace,
    servers: Mapping[str, ServerProcess],
    queries: list[str],
    size: int,
    clients: int,
    expected: bytes,
) -> Mapping[str, Sequence[Load]]:
    """Load the servers in turn, ``clients`` at once with requests of ``size`` queries; answers hold ``expected``."""
    requests = list(_requests(queries, size, expected))
    seconds = max(options.seconds, size * clients / SLOW_QUERIES_PER_S)
    works: dict[str, Callable[[], Load]] = {}

    for name, process in servers.items():
        uvloop.run(drive(process.port, requests[:clients], clients, 30))
        works[name] = partial(_load, process, requests, clients, seconds)

    return in_turn(works, options.rounds)


def _cpu_ratio(size: int, loads: Mapping[str, Sequence[Load]]) -> Ratio:
    costs: dict[str, list[float]] = {}
    for name, rounds in loads.items():
        costs[name] = [load.figures["CPU ms/query"] / size for load in rounds]

    return Ratio.of(costs["ours"], costs["other"], "CPU ms")


def _requests(queries: list[str], size: int, expected: bytes) -> Iterator[Request]:
    for start in range(0, len(queries) - size + 1, size):
        body = {"queries": queries[start : start + size], "topk": TOP_K, "return_scores": True}
        yield json_request(body, expected=expected)


def _load(process: ServerProcess, requests: list[Request], clients: int, seconds: float) -> Load:
    load = load_server(process, requests, clients, seconds)
    if load.errors:
        raise RuntimeError(f"{load.errors} answers of {process.url} were wrong or missing")
    return load


def _server_ratios(
    name: str, size: int, loads: Mapping[str, Sequence[Load]]
) -> Iterator[tuple[str, Ratio]]:
    rates = {key: [size * load.rate_per_s for load in rounds] for key, rounds in loads.items()}
    yield name, Ratio.of(rates["ours"], rates["other"], "queries/s")
    p99 = {key: [load.percentile_ms(99) for load in rounds] for key, rounds in loads.items()}
    yield f"{name}, p99", Ratio.of(p99["ours"], p99["other"], "ms")
