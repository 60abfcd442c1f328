"""Vector indexes side by side: plain IVF-PQ as published over wiki-18, refinement and exact search, ours and FAISS's.

    .venv/bin/python -m benchmarks.vector_indexes                       # 300,000 vectors, about ten minutes on one core
    .venv/bin/python -m benchmarks.vector_indexes --rows 50000          # a look, in two minutes

Vectors and queries come from benchmarks/synthetic_vectors.py, which explains how they imitate wiki-18's curve. Every
setting is open in a single-threaded process of its own, and the settings are timed in turns, a short run each, so that
a busy machine slows all alike; figures are medians over the rounds, and ratios medians of the rounds' ratios.

*Warm*: all files in the page cache; queries per CPU second. *Cold*: before every run the index's files are dropped from
the page cache, and the share of pages that stayed is measured (mincore) and must be under 1 %; queries per second of
wall time, since waiting for the disk is the point. The baseline is IVF-PQ as FAISS reads it by default, codes in
anonymous memory: a cold cache does not touch it.
"""

import itertools
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray

from benchmarks.faiss_indexes import FLAT_FILE, open_faiss_flat, open_faiss_refine, open_in_memory
from benchmarks.measure import option_parser, publish
from benchmarks.page_cache import evict, release
from benchmarks.synthetic_vectors import WIKI_CELLS, cells_of, write_synthetic
from deepsearch_rl.errors import CheckFailedError
from deepsearch_rl.files import atomic_directory
from deepsearch_rl.progress import ProgressBar
from deepsearch_rl.retrieval.measurement.frontier import exact_rows
from deepsearch_rl.retrieval.measurement.index_process import IndexProcess, Opening, recall
from deepsearch_rl.retrieval.vectors.building import build_vector_index
from deepsearch_rl.retrieval.vectors.config import FlatConfig, IvfPqConfig, IvfPqRefineConfig, VectorsConfig
from deepsearch_rl.retrieval.vectors.flat import open_vector_file

TOP_K = 5
BATCHES = (1, 64)
CASES = tuple(itertools.product(("warm", "cold"), BATCHES))
PUBLISHED = {1: 0.598, 16: 0.812, 128: 0.822}
COLD_SHARE = 0.01
TRAIN_ROWS = 65_536
QUERIES, TIMED_QUERIES = 1000, 256
"""That recall is measured with, and of those, that a timed run searches for."""
REFINE_FACTOR = 8
"""Candidates per wanted hit."""


def exact_truth(vectors: Path, queries: Path, out: Path) -> NDArray[np.int64]:
    """Return the true rows_QK of every query, kept in a file."""
    if not out.exists():
        np.save(out, np.stack(exact_rows(open_vector_file(vectors), np.load(queries), TOP_K)))
    return np.load(out)


def published(rows: int, nprobe: int) -> IvfPqConfig:
    """Return the published index, its cells scaled to the rows."""
    codes = {"nlist": cells_of(rows), "m": 96, "nbits": 8, "train_rows": TRAIN_ROWS, "device": "cpu"}
    return IvfPqConfig(kind="ivf_pq", nprobe=nprobe, **codes)


def refined(plain: IvfPqConfig, nprobe: int, **changes: int) -> IvfPqRefineConfig:
    """Return the same cells with refinement, and other codes where ``changes`` says so."""
    values = {
        **plain.model_dump(),
        "kind": "ivf_pq_refine",
        "nprobe": nprobe,
        "refine_factor": REFINE_FACTOR,
        **changes,
    }
    return IvfPqRefineConfig.model_validate(values)


def curve(folder: Path, plain: IvfPqConfig, queries: Path, true_QK: NDArray[np.int64]) -> dict[int, float]:
    """Return the recall of plain IVF-PQ at the published nprobes."""
    recalls = {}
    with IndexProcess(Opening(folder, plain)) as process:
        for nprobe in PUBLISHED:
            timing = process.search(queries, TOP_K, 64, plain.model_copy(update={"nprobe": nprobe}))
            recalls[nprobe] = recall(timing.rows, true_QK)
    return recalls


def side_by_side(
    settings: Mapping[str, Opening], queries: Path, timed: Path, true_QK: NDArray[np.int64], rounds: int
) -> list[Sequence[object]]:
    """Time all settings in turns, warm and cold; return a row of each, with ratios to the first."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(IndexProcess(opening)) for name, opening in settings.items()}
        recalls = {
            name: recall(process.search(queries, TOP_K, 64).rows, true_QK) for name, process in processes.items()
        }
        rates = _rates(settings, processes, timed, rounds)
        memory_mb = {name: process.anonymous_mb() for name, process in processes.items()}
    first = next(iter(settings))
    return [
        (
            name,
            f"{recalls[name]:.3f}",
            f"{memory_mb[name]:.1f}",
            *(_rate_cell(rates[name, *case], rates[first, *case]) for case in CASES),
        )
        for name in settings
    ]


def _rate_cell(rates: Sequence[float], baseline: Sequence[float]) -> str:
    ratio = statistics.median(np.divide(rates, baseline).tolist())
    return f"{statistics.median(rates):.0f} ({ratio:.2f}x)"


def _rates(
    settings: Mapping[str, Opening], processes: Mapping[str, IndexProcess], timed: Path, rounds: int
) -> dict[tuple[str, str, int], list[float]]:
    """Return queries per second by setting, state and batch size, one of every round."""
    rates: dict[tuple[str, str, int], list[float]] = {}
    with ProgressBar("side by side", rounds * len(processes) * 2 * len(BATCHES), "runs") as bar:
        for batch, _ in itertools.product(BATCHES, range(rounds)):
            for name, process in processes.items():
                process.search(timed, TOP_K, batch)  # reads again what the last cold run dropped
                warm = process.search(timed, TOP_K, batch)
                rates.setdefault((name, "warm", batch), []).append(len(warm.rows) / warm.cpu_s)
                bar.advance(note=name)
            for name, process in processes.items():
                _make_cold(name, settings[name], processes)
                cold = process.search(timed, TOP_K, batch)
                rates.setdefault((name, "cold", batch), []).append(len(cold.rows) / cold.wall_s)
                bar.advance(note=name)
    return rates


def _make_cold(name: str, opening: Opening, processes: Mapping[str, IndexProcess]) -> None:
    files = [path for path in (*opening.files, opening.folder / FLAT_FILE) if path.is_file()]
    for process in processes.values():  # a page that any process has mapped stays
        process.call(release, files)
    share = processes[name].call(evict, files)
    if share > COLD_SHARE:
        raise CheckFailedError(f"{name}: {share:.1%} of its pages stay in the page cache, so no run would be cold.")


def publish_curve(recalls: Mapping[int, float], nlist: int, out: Path) -> None:
    """Print the published figures beside ours."""
    header = ("nprobe", f"wiki-18, nlist {WIKI_CELLS}", f"synthetic, nlist {nlist}", "difference")
    rows = [
        (nprobe, f"{figure:.3f}", f"{recalls[nprobe]:.3f}", f"{recalls[nprobe] - figure:+.3f}")
        for nprobe, figure in PUBLISHED.items()
    ]
    publish("wiki18-curve", header, rows, out=out)


def build_once(vectors: Path, folder: Path, config: VectorsConfig) -> Path:
    """Build an index unless it is there; return its folder."""
    if not folder.exists():
        with atomic_directory(folder) as partial:
            build_vector_index(vectors, partial, config, seed=0)
    return folder


def main() -> None:
    """Generate, build, measure, print."""
    parser = option_parser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("work/vector_indexes"), help="where files are kept for reuse")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32", help="of the vectors on disk")
    options = parser.parse_args()
    work = options.work / f"{options.rows}_{options.dtype}"
    vectors, queries = write_synthetic(work, options.rows, QUERIES, options.dtype, seed=0)
    np.save(timed := work / "timed.npy", np.load(queries)[:TIMED_QUERIES])
    true_QK = exact_truth(vectors, queries, work / "truth.npy")
    plain = published(options.rows, 16)
    same_codes = refined(plain, min(32, plain.nlist))
    ours = refined(plain, min(48, plain.nlist), m=128, nbits=4)
    eight_bits = build_once(vectors, work / "m96_nbits8", same_codes)
    four_bits = build_once(vectors, work / "m128_nbits4", ours)
    publish_curve(curve(eight_bits, plain, queries, true_QK), plain.nlist, work)
    flat = FlatConfig(kind="flat")
    settings = {
        "ivf_pq 96 x 8 bits, nprobe 16, in memory": Opening(eight_bits, plain, open_in_memory),
        "the same, nprobe 128": Opening(eight_bits, published(options.rows, 128), open_in_memory),
        "the same, nprobe 16, memory-mapped": Opening(eight_bits, plain),
        **{_name(config): Opening(folder, config) for folder, config in ((eight_bits, same_codes), (four_bits, ours))},
        "the same by FAISS's IndexRefine, mapped": Opening(four_bits, ours, open_faiss_refine),
        "flat": Opening(four_bits, flat),
        "the same by FAISS, mapped": Opening(four_bits, flat, open_faiss_flat),
    }
    header = ("setting", "recall@5", "RssAnon MB", *(f"{state} q/s, batch {batch}" for state, batch in CASES))
    publish("side-by-side", header, side_by_side(settings, queries, timed, true_QK, options.rounds), out=work)


def _name(config: IvfPqRefineConfig) -> str:
    codes = f"{config.m} x {config.nbits} bits"
    return f"ivf_pq_refine {codes}, nprobe {config.nprobe}, factor {config.refine_factor:g}"


if __name__ == "__main__":
    main()
