"""Vector indexes side by side: plain IVF-PQ as published over wiki-18, refinement and exact search, ours and FAISS's.

    .venv/bin/python -m benchmarks.vector_indexes                       # 300,000 vectors, about ten minutes on one core
    .venv/bin/python -m benchmarks.vector_indexes --rows 50000          # a look, in two minutes

Vectors and queries come from benchmarks/synthetic_vectors.py, which explains how they imitate
wiki-18's curve. Every setting is open in a single-threaded process of its own, and the settings are
timed in turns, a short run each, so that a busy machine slows all alike; figures are medians over
the rounds, and ratios medians of the rounds' ratios.

*Warm*: all files in the page cache; queries per CPU second. *Cold*: before every run the index's
files are dropped from the page cache, and the share of pages that stayed is measured (mincore) and
must be under 1 %; queries per second of wall time, since waiting for the disk is the point. The
baseline is IVF-PQ as FAISS reads it by default, codes in anonymous memory: a cold cache does not
touch it.
"""

import ctypes
import itertools
import mmap
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.index_process import IndexProcess, Opening
from benchmarks.measure import parse_options, publish
from benchmarks.synthetic_vectors import WIKI_CELLS, cells_of, write_synthetic
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.files import atomic_directory, atomic_file
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.search.frontier import exact_rows, recall
from deepsearch_rl.search.ranking import Ranking
from deepsearch_rl.search.vectors.building import (
    INDEX_FILE,
    VECTORS_FILE,
    build_vector_index,
    write_faiss,
)
from deepsearch_rl.search.vectors.config import (
    FlatConfig,
    IvfPqConfig,
    IvfPqRefineConfig,
    VectorsConfig,
)
from deepsearch_rl.search.vectors.faiss_index import FaissIndex, read_faiss, with_effort
from deepsearch_rl.search.vectors.flat import open_vector_file

TOP_K = 5
BATCHES = (1, 64)
CASES = tuple(itertools.product(("warm", "cold"), BATCHES))
PUBLISHED = {1: 0.598, 16: 0.812, 128: 0.822}
COLD_SHARE = 0.01
TRAIN_ROWS = 65_536
QUERIES = 1000
TIMED_QUERIES = 256
"""That recall is measured with, and of those, that a timed run searches for."""
REFINE_FACTOR = 8
"""Candidates per wanted hit."""
FLAT_FILE = "flat.faiss"


# --- FAISS's own indexes: of a folder that build_vector_index made; a file that it lacks is made
# once ----------------


@dataclass(frozen=True, slots=True)
class PlainFaissIndex:
    """FAISS's ranking as it comes: equal scores in any order."""

    index: faiss.Index
    parameters: Any = None

    @property
    def dimension(self) -> int:
        """D, the components of a vector."""
        return self.index.d

    def nearest(
        self,
        queries_QD: NDArray[np.float32],
        top_k: int,
        allowed_N: NDArray[np.bool_] | None = None,
    ) -> list[Ranking]:
        """Search without a mask."""
        assert allowed_N is None
        scores_QK, rows_QK = self.index.search(queries_QD, top_k, params=self.parameters)
        return list(map(Ranking, rows_QK, scores_QK))


def open_in_memory(folder: Path, config: VectorsConfig) -> FaissIndex:
    """Read product codes into anonymous memory, FAISS's own default."""
    assert isinstance(config, IvfPqConfig)
    return with_effort(faiss.read_index(str(folder / INDEX_FILE)), config)


def open_faiss_flat(folder: Path, config: VectorsConfig) -> PlainFaissIndex:
    """Map ``IndexFlatIP``, or the scalar quantizer's float16 for a file of float16."""
    assert config.kind in ("flat", "ivf_pq_refine")
    file = open_vector_file(folder / VECTORS_FILE)

    if not (folder / FLAT_FILE).is_file():
        index: Any = faiss.IndexFlatIP(file.dimension)
        if file.vectors_ND.dtype == np.float16:
            half = faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexScalarQuantizer(file.dimension, half, faiss.METRIC_INNER_PRODUCT)

        for _, block_BD in file.blocks():
            index.add(block_BD)
        with atomic_file(folder / FLAT_FILE) as partial:
            write_faiss(index, partial)

    return PlainFaissIndex(read_faiss(folder / FLAT_FILE))


def open_faiss_refine(folder: Path, config: VectorsConfig) -> PlainFaissIndex:
    """Map the codes and, in ``IndexRefine``, a flat index of the vectors behind them."""
    assert isinstance(config, IvfPqRefineConfig)
    codes = read_faiss(folder / INDEX_FILE)
    flat = open_faiss_flat(folder, config).index
    search = faiss.SearchParametersIVF(**{"nprobe": config.nprobe})
    factor: Any = faiss.IndexRefineSearchParameters(
        k_factor=config.refine_factor, base_index_params=search
    )
    return PlainFaissIndex(faiss.IndexRefine(codes, flat), factor)


# --- a cold page cache
# ----------------------------------------------------------------------------------------------


def evict(paths: Sequence[Path]) -> float:
    """Drop files from the page cache and return the share of their pages that is still there.

    Pages that another process has mapped stay: it must call :func:`release` first.
    """
    release(paths)
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return resident_share(paths)


def release(paths: Sequence[Path]) -> None:
    """Give back the pages of this process's maps of some files; hard links share a file, so that the inode decides."""
    inodes = {str(path.stat().st_ino) for path in paths}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
        if inode in inodes:
            first, _, last = addresses.partition("-")
            start = int(first, 16)
            end = int(last, 16)
            _libc_call("madvise", start, end - start, mmap.MADV_DONTNEED)


def resident_share(paths: Sequence[Path]) -> float:
    """Return the share of the files' pages that the page cache holds."""
    resident = pages = 0
    for path in paths:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            flags = np.zeros(-(-len(mapped) // mmap.PAGESIZE), dtype=np.uint8)
            view = np.frombuffer(mapped, dtype=np.uint8)
            _libc_call("mincore", view.ctypes.data, len(mapped), flags.ctypes.data)
            del view  # an exported buffer keeps the map from closing
            resident = resident + int((flags & 1).sum())
            pages = pages + len(flags)

    return resident / pages


def _libc_call(name: str, address: int, length: int, third: int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
    if function(address, length, third) != 0:
        raise OSError(ctypes.get_errno(), f"{name} failed")


# --- measuring
# ------------------------------------------------------------------------------------------------------


def _curve(
    folder: Path, plain: IvfPqConfig, queries: Path, true_QK: NDArray[np.int64]
) -> list[Sequence[object]]:
    """Return the recall of plain IVF-PQ at the published nprobes, beside the published figures."""
    rows = []
    with IndexProcess() as process:
        for nprobe, figure in PUBLISHED.items():
            opening = Opening(folder, plain.model_copy(update={"nprobe": nprobe}))
            timing = process.search(opening, queries, TOP_K, 64)
            own = recall(timing.rows, true_QK)
            rows.append((nprobe, f"{figure:.3f}", f"{own:.3f}", f"{own - figure:+.3f}"))

    return rows


def _side_by_side(
    settings: Mapping[str, Opening],
    queries: Path,
    timed: Path,
    true_QK: NDArray[np.int64],
    rounds: int,
) -> list[Sequence[object]]:
    """Time all settings in turns, warm and cold; return a row of each, with ratios to the first."""
    with ExitStack() as stack:
        processes = {name: stack.enter_context(IndexProcess()) for name in settings}
        recalls: dict[str, float] = {}
        for name, process in processes.items():
            timing = process.search(settings[name], queries, TOP_K, 64)
            recalls[name] = recall(timing.rows, true_QK)

        rates = _rates(settings, processes, timed, rounds)
        memory_mb = {name: process.anonymous_mb() for name, process in processes.items()}

    rows: list[Sequence[object]] = []
    first = next(iter(settings))

    for name in settings:
        cells: list[str] = []
        for case in CASES:
            rate = statistics.median(rates[name, *case])

            # Of neighbouring runs, so that a busy machine slows both.
            ratios = np.divide(rates[name, *case], rates[first, *case])
            cells.append(f"{rate:.0f} ({statistics.median(ratios.tolist()):.2f}x)")
        rows.append((name, f"{recalls[name]:.3f}", f"{memory_mb[name]:.1f}", *cells))

    return rows


def _rates(
    settings: Mapping[str, Opening], processes: Mapping[str, IndexProcess], timed: Path, rounds: int
) -> dict[tuple[str, str, int], list[float]]:
    """Return queries per second by setting, state and batch size, one of every round."""
    rates: dict[tuple[str, str, int], list[float]] = {}
    with ProgressBar("side by side", rounds * len(processes) * 2 * len(BATCHES), "runs") as bar:
        for batch, _ in itertools.product(BATCHES, range(rounds)):
            for name, process in processes.items():
                # Reads again what the last cold run dropped
                process.search(settings[name], timed, TOP_K, batch)
                warm = process.search(settings[name], timed, TOP_K, batch)
                rates.setdefault((name, "warm", batch), []).append(len(warm.rows) / warm.cpu_s)
                bar.advance(note=name)

            for name, process in processes.items():
                _make_cold(name, settings[name], processes)
                cold = process.search(settings[name], timed, TOP_K, batch)
                rates.setdefault((name, "cold", batch), []).append(len(cold.rows) / cold.wall_s)
                bar.advance(note=name)

    return rates


def _make_cold(name: str, opening: Opening, processes: Mapping[str, IndexProcess]) -> None:
    files = [path for path in (*opening.files, opening.folder / FLAT_FILE) if path.is_file()]

    # A page that any process has mapped stays.
    for process in processes.values():
        process.call(release, files)
    share = processes[name].call(evict, files)

    if share > COLD_SHARE:
        raise CheckFailedError(
            f"{name}: {share:.1%} of its pages stay in the page cache, so no run would be cold."
        )


def _build_once(vectors: Path, config: IvfPqRefineConfig, work: Path) -> Path:
    folder = work / f"m{config.m}_nbits{config.nbits}"
    if not folder.exists():
        with atomic_directory(folder) as partial:
            build_vector_index(vectors, partial, config, seed=0)
    return folder


def main() -> None:
    """Generate, build, measure, print."""
    options = parse_options(
        __doc__,
        work=(Path("work/vector_indexes"), "where files are kept for reuse"),
        rows=300_000,
        rounds=5,
        dtype=("float32", "of the vectors on disk", ["float32", "float16"]),
    )
    work = options.work / f"{options.rows}_{options.dtype}"
    vectors, queries = write_synthetic(work, options.rows, QUERIES, options.dtype, seed=0)
    timed = work / "timed.npy"
    np.save(timed, np.load(queries)[:TIMED_QUERIES])

    truth = work / "truth.npy"
    if not truth.exists():
        np.save(truth, np.stack(exact_rows(open_vector_file(vectors), np.load(queries), TOP_K)))
    true_QK = np.load(truth)

    cells = cells_of(options.rows)
    plain, same_codes, ours = _product_codes(cells)
    eight_bits = _build_once(vectors, same_codes, work)
    four_bits = _build_once(vectors, ours, work)
    header = ("nprobe", f"wiki-18, nlist {WIKI_CELLS}", f"synthetic, nlist {cells}", "difference")
    publish(options, "wiki18-curve", header, _curve(eight_bits, plain, queries, true_QK))

    wider = plain.model_copy(update={"nprobe": 128})
    flat = FlatConfig(kind="flat")
    settings = {
        "ivf_pq 96 x 8 bits, nprobe 16, in memory": Opening(eight_bits, plain, open_in_memory),
        "the same, nprobe 128": Opening(eight_bits, wider, open_in_memory),
        "the same, nprobe 16, memory-mapped": Opening(eight_bits, plain),
        f"ivf_pq_refine 96 x 8 bits, nprobe {same_codes.nprobe}, factor 8": Opening(
            eight_bits, same_codes
        ),
        f"ivf_pq_refine 128 x 4 bits, nprobe {ours.nprobe}, factor 8": Opening(four_bits, ours),
        "the same by FAISS's IndexRefine, mapped": Opening(four_bits, ours, open_faiss_refine),
        "flat": Opening(four_bits, flat),
        "the same by FAISS, mapped": Opening(four_bits, flat, open_faiss_flat),
    }
    columns = [f"{state} q/s, batch {batch}" for state, batch in CASES]
    header = ("setting", "recall@5", "RssAnon MB", *columns)
    rows = _side_by_side(settings, queries, timed, true_QK, options.rounds)
    publish(options, "side-by-side", header, rows)


def _product_codes(cells: int) -> tuple[IvfPqConfig, IvfPqRefineConfig, IvfPqRefineConfig]:
    """Return the published index with its cells scaled to the rows, and two with refinement: same codes, and ours."""
    codes = {
        "nlist": cells,
        "m": 96,
        "nbits": 8,
        "train_rows": TRAIN_ROWS,
        "device": "cpu",
        "search_device": "cpu",
    }
    plain = IvfPqConfig(kind="ivf_pq", nprobe=16, **codes)

    refined = codes | {"kind": "ivf_pq_refine", "refine_factor": REFINE_FACTOR}
    same_codes = IvfPqRefineConfig.model_validate(refined | {"nprobe": min(32, cells)})

    # Four bits are scanned ten times as fast, so more of them and more cells are.
    changes = {"nprobe": min(48, cells), "m": 128, "nbits": 4}
    ours = IvfPqRefineConfig.model_validate(refined | changes)
    return plain, same_codes, ours


if __name__ == "__main__":
    main()
