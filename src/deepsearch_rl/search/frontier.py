"""Recall, speed and memory of every kind of vector index, over the vectors at hand, at rising effort.

- *recall@5*: the mean share of the true five nearest rows that are among the first five hits;
- *queries/s*: per CPU second of one thread, all files in the page cache (so that a busy machine
  does not tell);
- *memory*: the file that a search scans, which should stay in the page cache (codes of 4 bits are
  read into memory). Vectors that are only refined from are not counted: a search reads a few rows.
"""

import csv
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from threadpoolctl import threadpool_limits

from deepsearch_rl.core.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.core.progress import ProgressBar, track
from deepsearch_rl.search.names import VectorsKind
from deepsearch_rl.search.vectors.building import INDEX_FILE, VECTORS_FILE, build_vector_index
from deepsearch_rl.search.vectors.config import VectorsConfig
from deepsearch_rl.search.vectors.dense import open_vector_index
from deepsearch_rl.search.vectors.flat import FlatIndex, VectorFile, open_vector_file

TOP_K = 5
MEGABYTE = 1e6
KINDS = get_args(VectorsKind)
FIGURES = ("recall_at_5", "queries_per_s", "memory_mb", "disk_mb")
# A VectorsConfig that is not parsed yet
Setting = dict[str, Any]
NPROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REFINE_FACTORS = (2.0, 4.0, 8.0)
EF_SEARCHES = (16, 32, 64, 128, 256)
TRAIN_ROWS = 65_536

# Queries of one pass of the exact search, and so between two steps of the progress bar.
EXACT_BATCH = 64

# The faster pass counts: the first one also fills the page cache.
REPEATS = 2


@dataclass(frozen=True, slots=True)
class Point:
    """A setting and its figures; sizes in 10^6 bytes, ``disk_mb`` of all files that it reads."""

    config: VectorsConfig
    recall_at_5: float
    queries_per_s: float
    memory_mb: float
    disk_mb: float


@dataclass(frozen=True, slots=True)
class Queries:
    """A file of query vectors with their true rows_QK. ``own_Q``: the row that each was taken from, -1 for none."""

    path: Path
    true_QK: NDArray[np.int64]
    own_Q: NDArray[np.int64]


def recall(rows: Sequence[NDArray[np.int64]], true_QK: NDArray[np.int64]) -> float:
    """Return the mean share of the K true rows of a query that are among its rows."""
    shares: list[np.floating] = []
    for true_K, rows_K in zip(true_QK, rows, strict=True):
        shares.append(np.isin(true_K, rows_K).mean())

    return float(np.mean(shares))


def without_own(
    rows: Sequence[NDArray[np.int64]], own_Q: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return the first :data:`TOP_K` rows of each query that are not the query's own."""
    result: list[NDArray[np.int64]] = []
    for rows_K, own in zip(rows, own_Q, strict=True):
        result.append(rows_K[rows_K != own][:TOP_K])

    return result


def prepare_queries(
    file: VectorFile, queries: Path | None, sampled: int, out: Path, seed: int
) -> Queries:
    """Find the true rows of the vectors in ``queries``, or of ``sampled`` rows of the file, not counting themselves."""
    if file.rows <= TOP_K:
        raise ConfigError(
            f"{file.rows} vectors are too few to measure recall@{TOP_K}; {TOP_K + 1} are needed."
        )

    if queries is None:
        # Ascending, so that the file is read in one direction.
        generator = np.random.default_rng(seed)
        own_Q = np.sort(generator.choice(file.rows, min(sampled, file.rows), replace=False))
        queries_QD = file.vectors_ND[own_Q].astype(np.float32)
    else:
        queries_QD = np.array(open_vector_file(queries).vectors_ND, dtype=np.float32)
        # No row has this number, so that none of them is left out as the query's own.
        own_Q = np.full(len(queries_QD), -1)

    if queries_QD.shape[1] != file.dimension:
        raise ArtifactError(
            f"{queries} has {queries_QD.shape[1]} dimensions and the vectors have {file.dimension}."
        )

    np.save(out, queries_QD)

    # One more than is compared, because a sampled row finds itself.
    rows = exact_rows(file, queries_QD, TOP_K + 1)
    return Queries(out, np.stack(without_own(rows, own_Q)), own_Q)


def exact_rows(
    file: VectorFile, queries_QD: NDArray[np.float32], top_k: int
) -> list[NDArray[np.int64]]:
    """Return the true best rows of every query."""
    index = FlatIndex(file)
    batches = np.array_split(queries_QD, len(queries_QD) // EXACT_BATCH + 1)
    rows: list[NDArray[np.int64]] = []

    for batch_QD in track(batches, "exact search", len(batches), "batches"):
        for ranking in index.nearest(batch_QD, top_k):
            rows.append(ranking.rows_K)

    return rows


def sweeps(
    rows: int, dimension: int, kinds: Sequence[str], nlist: int | None
) -> list[list[VectorsConfig]]:
    """Return the settings of every build.

    Product codes are built once, to be searched with refining and without. Codes are a byte per
    eight dimensions, as the published wiki-18 index has them, or four bits per six.
    """
    for kind in kinds:
        look_up("kind of vector index", kind, dict.fromkeys(KINDS))

    train_rows = min(rows, TRAIN_ROWS)
    cells = min(nlist or round(rows**0.5), train_rows)
    visits = _cell_visits(cells, train_rows)
    builds: list[list[Setting]] = [
        [{"kind": "flat"}],
        [{"kind": "ivf_flat", **visit} for visit in visits],
    ]

    for nbits, max_parts in ((8, dimension // 8), (4, dimension // 6)):
        # A code has so many entries, each of which is learnt from a row at least
        if 2**nbits <= train_rows:
            m = _largest_divisor(dimension, max(max_parts, 1))
            builds.append(_code_settings(m, nbits, visits))

    graph = {"kind": "hnsw", "links": 16, "ef_construction": 100}
    builds.append([{**graph, "ef_search": effort} for effort in EF_SEARCHES])

    parse = TypeAdapter[VectorsConfig](VectorsConfig).validate_python
    selection: list[list[VectorsConfig]] = []
    for build in builds:
        settings: list[VectorsConfig] = []
        for setting in build:
            if setting["kind"] in kinds:
                settings.append(parse(setting))

        if settings:
            selection.append(settings)

    return selection


def _cell_visits(cells: int, train_rows: int) -> list[Setting]:
    """Return settings of an inverted file that visit ever more of its cells, at last all of them."""
    nprobes = [nprobe for nprobe in NPROBES if nprobe < cells]
    visits: list[Setting] = []

    for nprobe in (*nprobes, cells):
        visit = {
            "nprobe": nprobe,
            "nlist": cells,
            "train_rows": train_rows,
            "device": "cpu",
            "search_device": "cpu",
        }
        visits.append(visit)

    return visits


def _largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of ``number`` from 1 to ``limit``."""
    divisor = limit
    while number % divisor:
        divisor -= 1

    return divisor


def _code_settings(m: int, nbits: int, visits: Sequence[Setting]) -> list[Setting]:
    """Return every setting of one product code; the first is what is built."""
    codes = [{"m": m, "nbits": nbits, **visit} for visit in visits]
    settings: list[Setting] = []

    # Refinement needs the whole vectors beside the codes, so a build that has it serves both.
    for factor in REFINE_FACTORS:
        for code in codes:
            settings.append({"kind": "ivf_pq_refine", "refine_factor": factor, **code})
    for code in codes:
        settings.append({"kind": "ivf_pq", **code})

    return settings


def measure_frontier(
    vectors: Path,
    queries: Queries,
    settings: Sequence[Sequence[VectorsConfig]],
    batch: int,
    out: Path,
    seed: int,
) -> list[Point]:
    """Make every build in a folder below ``out`` that is removed again, and measure its settings."""
    points: list[Point] = []
    with ProgressBar("frontier", sum(map(len, settings)), "settings") as bar:
        for build in settings:
            with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as folder:
                build_vector_index(vectors, Path(folder), build[0], seed)
                for config in build:
                    points.append(_measure(Path(folder), config, queries, batch))
                    bar.advance(note=f"{config.kind}: recall {points[-1].recall_at_5:.3f}")

    return points


def files_of(folder: Path, config: VectorsConfig) -> list[Path]:
    """Return the files of a vector index that a search reads; the one that it scans comes first."""
    if config.kind == "flat":
        return [folder / VECTORS_FILE]
    if config.kind == "ivf_pq_refine":
        return [folder / INDEX_FILE, folder / VECTORS_FILE]
    return [folder / INDEX_FILE]


def _measure(folder: Path, config: VectorsConfig, queries: Queries, batch: int) -> Point:
    sizes_mb = [path.stat().st_size / MEGABYTE for path in files_of(folder, config)]

    index = open_vector_index(folder, config)
    queries_QD = np.load(queries.path)
    rows: list[NDArray[np.int64]] = []
    times_s: list[float] = []

    with threadpool_limits(1):
        for _ in range(REPEATS):
            rows = []
            # CPU time: other programs of the machine do not count
            began_s = time.process_time()
            for start in range(0, len(queries_QD), batch):
                for ranking in index.nearest(queries_QD[start : start + batch], TOP_K + 1):
                    rows.append(ranking.rows_K)
            times_s.append(time.process_time() - began_s)

    return Point(
        config,
        recall_at_5=recall(without_own(rows, queries.own_Q), queries.true_QK),
        # The fastest of the repeats is the one that was disturbed least
        queries_per_s=len(rows) / min(times_s),
        memory_mb=sizes_mb[0],
        disk_mb=sum(sizes_mb),
    )


def recommend(points: Sequence[Point], budget_mb: float, target: float) -> Point | None:
    """Return the fastest setting within a budget of memory that reaches the ``target`` recall@5.

    Where none reaches it, return the one of the highest recall; None where none fits the budget.
    """
    fitting = [point for point in points if point.memory_mb <= budget_mb]
    return max(
        fitting,
        key=lambda point: (min(point.recall_at_5, target), point.queries_per_s),
        default=None,
    )


def pareto(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both recall and speed, by rising recall."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.recall_at_5, -point.queries_per_s)):
        if not best or point.queries_per_s > best[-1].queries_per_s:
            best.append(point)

    return best[::-1]


def require_room(vectors: Path, out: Path) -> None:
    """Raise ConfigError where a copy and a half of the vectors would fill the disk: the largest kinds hold a copy."""
    needed = vectors.stat().st_size * 1.5
    free = shutil.disk_usage(out).free

    if free < needed:
        raise ConfigError(
            f"{out} has {free / 1e9:.1f} GB of room, and building in turn takes {needed / 1e9:.1f} GB."
        )


def described(point: Point) -> str:
    """Return a point in one line."""
    values = point.config.model_dump()
    setting = point.config.kind
    if "nbits" in values:
        setting += f" {values['m']} x {values['nbits']} bits"
    for name in ("nprobe", "ef_search", "refine_factor"):
        if name in values:
            setting += f", {name} {values[name]:g}"

    return (
        f"{setting}: recall@5 {point.recall_at_5:.3f}, "
        f"{point.queries_per_s:.0f} queries/s, {point.memory_mb:.0f} MB"
    )


def snippet(config: VectorsConfig) -> str:
    """Return the setting as a line for ``index`` in params.yaml."""
    values = {"kind": config.kind, **config.model_dump()}
    fields = ", ".join(f"{name}: {value}" for name, value in values.items())
    return f"vectors: {{{fields}}}"


def write_points(points: Sequence[Point], path: Path) -> None:
    """Write a CSV with a column per parameter, then one per figure."""
    # A dict keeps the order in which the kinds bring their parameters.
    parameters: dict[str, None] = {}
    for point in points:
        parameters.update(dict.fromkeys(point.config.model_dump()))

    with atomic_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, fieldnames=[*parameters, *FIGURES], restval="")
        writer.writeheader()
        for point in points:
            figures = {name: f"{getattr(point, name):.4g}" for name in FIGURES}
            writer.writerow({**point.config.model_dump(), **figures})
