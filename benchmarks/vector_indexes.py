"""IVF-PQ as published over wiki-18, and the same index with refinement from disk, side by side.

    .venv/bin/python benchmarks/vector_indexes.py                       # 300,000 vectors, about ten minutes on one core
    .venv/bin/python benchmarks/vector_indexes.py --rows 50000          # a look, in a minute or two

Vectors and queries come from benchmarks/synthetic_vectors.py, which explains how they imitate wiki-18's curve. Every
setting is open in a single-threaded process of its own, and the settings are timed in turns, so that a busy machine
slows all alike; figures are medians over the repeats. *Warm*: all files in the page cache. *Cold*: before every run the
index's files are dropped from the page cache, and the share of pages that stayed is measured and must be under 1 %.
The baseline is IVF-PQ as FAISS reads it by default, codes in anonymous memory: the cold cache does not touch it.
"""

import argparse
import csv
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray
from synthetic_vectors import WIKI_CELLS, cells_of, write_synthetic

from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.progress import Meter
from deepsearch_rl.retrieval.vectors.building import build_vector_index
from deepsearch_rl.retrieval.vectors.config import IvfPqConfig, IvfPqRefineConfig
from deepsearch_rl.retrieval.vectors.flat import FlatIndex
from deepsearch_rl.retrieval.vectors.measuring import IndexProcess, Opening, recall
from deepsearch_rl.retrieval.vectors.vector_file import open_vector_file

TOP_K = 5
BATCHES = (1, 64)
PUBLISHED = {1: 0.598, 16: 0.812, 128: 0.822}
COLD_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of the side-by-side table."""

    name: str
    opening: Opening


@dataclass(frozen=True, slots=True)
class Measured:
    """What a setting gave. Queries per second are medians by state (warm, cold) and batch size."""

    setting: str
    recall: float
    anonymous_mb: float
    warm_1: float
    warm_64: float
    cold_1: float
    cold_64: float
    cold_resident: float
    """The largest share of the files' pages that was in the page cache when a cold run began."""


def exact_truth(vectors: Path, queries: Path, out: Path) -> NDArray[np.int64]:
    """The true rows_QK of every query, kept in a file."""
    if not out.exists():
        index, queries_QD = FlatIndex(open_vector_file(vectors)), np.load(queries)
        found = []
        with Meter("exact search", len(queries_QD), "queries") as meter:
            for start in range(0, len(queries_QD), 128):
                found.append(index.search(queries_QD[start : start + 128], TOP_K)[1])
                meter.advance(len(found[-1]))
        np.save(out, np.concatenate(found))
    return np.load(out)


def settings_of(folder: Path, codes: IvfPqRefineConfig) -> list[Setting]:
    """The published setting, its neighbours, and ours, all over the same index file."""

    def plain(nprobe: int) -> IvfPqConfig:
        values = codes.model_dump(exclude={"kind", "refine_factor", "nprobe"})
        return IvfPqConfig(kind="ivf_pq", nprobe=nprobe, **values)

    return [
        Setting("ivf_pq, nprobe 16, in memory", Opening(folder, plain(16), in_memory=True)),
        Setting("ivf_pq, nprobe 128, in memory", Opening(folder, plain(128), in_memory=True)),
        Setting("ivf_pq, nprobe 16, memory-mapped", Opening(folder, plain(16))),
        Setting(f"ivf_pq_refine, nprobe {codes.nprobe}, factor {codes.refine_factor:g}", Opening(folder, codes)),
    ]


def curve(folder: Path, codes: IvfPqRefineConfig, queries: Path, true_QK: NDArray[np.int64]) -> dict[int, float]:
    """Recall of plain IVF-PQ at the published nprobes."""
    plain = settings_of(folder, codes)[0].opening
    recalls = {}
    with IndexProcess(plain) as process:
        for nprobe in PUBLISHED:
            found = process.search(queries, TOP_K, 64, plain.config.model_copy(update={"nprobe": nprobe}))
            recalls[nprobe] = recall(found.rows_QK, true_QK)
    return recalls


def side_by_side(
    settings: Sequence[Setting], queries: Path, true_QK: NDArray[np.int64], repeats: int
) -> list[Measured]:
    """Time all settings in turns, warm and cold."""
    rates: dict[tuple[str, str, int], list[float]] = {}
    recalls, anonymous_mb, residents = {}, {}, dict.fromkeys([setting.name for setting in settings], 0.0)
    with ExitStack() as stack, Meter("side by side", repeats * len(settings) * 4, "runs") as meter:
        processes = {setting.name: stack.enter_context(IndexProcess(setting.opening)) for setting in settings}
        for name, process in processes.items():  # reads every file into the cache
            recalls[name] = recall(process.search(queries, TOP_K, 64).rows_QK, true_QK)
        for _ in range(repeats):
            for state in ("warm", "cold"):
                for batch in BATCHES:
                    for name, process in processes.items():
                        if state == "cold":
                            residents[name] = max(residents[name], _evict(name, processes))
                        timing = process.search(queries, TOP_K, batch)
                        rates.setdefault((name, state, batch), []).append(len(true_QK) / timing.wall_s)
                        meter.advance(note=name)
                if state == "cold":
                    for process in processes.values():
                        process.search(queries, TOP_K, 64)
        anonymous_mb = {name: process.anonymous_mb() for name, process in processes.items()}
    median = {key: statistics.median(values) for key, values in rates.items()}
    return [
        Measured(
            name,
            recalls[name],
            anonymous_mb[name],
            *(median[name, state, batch] for state in ("warm", "cold") for batch in BATCHES),
            residents[name],
        )
        for name in processes
    ]


def _evict(name: str, processes: Mapping[str, IndexProcess]) -> float:
    for process in processes.values():
        process.release()
    share = processes[name].evict()
    if share > COLD_SHARE:
        raise CheckFailedError(f"{name}: {share:.1%} of its pages stay in the page cache, so no run would be cold.")
    return share


def say(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(f"{line}\n")


def print_curve(recalls: dict[int, float], nlist: int) -> None:
    """The published figures beside ours."""
    say(
        f"\n| nprobe | wiki-18, nlist {WIKI_CELLS} | synthetic, nlist {nlist} | difference |\n| --- | --- | --- | --- |"
    )
    for nprobe, published in PUBLISHED.items():
        say(f"| {nprobe} | {published:.3f} | {recalls[nprobe]:.3f} | {recalls[nprobe] - published:+.3f} |")


def print_measured(lines: Sequence[Measured]) -> None:
    """Recall, memory and queries/s; ratios are to the first line."""
    say(
        "\n| setting | recall@5 | RssAnon MB | warm q/s, batch 1 | batch 64 | cold q/s, batch 1 | batch 64 |"
        "\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    first = lines[0]
    for line in lines:
        rates = " | ".join(
            f"{getattr(line, name):.0f} ({getattr(line, name) / getattr(first, name):.2f}x)"
            for name in ("warm_1", "warm_64", "cold_1", "cold_64")
        )
        say(f"| {line.setting} | {line.recall:.3f} | {line.anonymous_mb:.1f} | {rates} |")
    say(f"\nLargest share of pages in the cache when a cold run began: {max(x.cold_resident for x in lines):.2%}.")


def main() -> None:
    """Generate, build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("work/vector_indexes"), help="where files are kept for reuse")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="of the vectors on disk")
    parser.add_argument("--nprobe", type=int, default=20, help="of ivf_pq_refine")
    parser.add_argument("--refine-factor", type=float, default=5, help="candidates per wanted hit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    work = arguments.work / f"{arguments.rows}_{arguments.queries}_{arguments.dtype}_{arguments.seed}"
    vectors, queries = write_synthetic(work, arguments.rows, arguments.queries, arguments.dtype, arguments.seed)
    true_QK = exact_truth(vectors, queries, work / "truth.npy")
    codes = IvfPqRefineConfig(
        kind="ivf_pq_refine",
        nlist=cells_of(arguments.rows),
        nprobe=arguments.nprobe,
        m=96,
        nbits=8,
        train_rows=65_536,
        device="cpu",
        refine_factor=arguments.refine_factor,
    )
    folder = work / "ivf_pq"
    if not (folder / "index.faiss").exists():
        build_vector_index(vectors, folder, codes, arguments.seed)
    print_curve(curve(folder, codes, queries, true_QK), codes.nlist)
    lines = side_by_side(settings_of(folder, codes), queries, true_QK, arguments.repeats)
    print_measured(lines)
    with (work / "side_by_side.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, fieldnames=list(asdict(lines[0])))
        writer.writeheader()
        writer.writerows(asdict(line) for line in lines)


if __name__ == "__main__":
    main()
