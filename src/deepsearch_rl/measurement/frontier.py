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
from deepsearch_rl.core.records import VectorsKind
from deepsearch_rl.retrieval.vectors.building import INDEX_FILE, VECTORS_FILE, build_vector_index
from deepsearch_rl.retrieval.vectors.config import VectorsConfig
from deepsearch_rl.retrieval.vectors.dense import open_vector_index
from deepsearch_rl.retrieval.vectors.flat import FlatIndex, VectorFile, open_vector_file

TOP_K = 5
MEGABYTE = 1e6
KINDS = get_args(VectorsKind)
FIGURES = ("recall_at_5", "queries_per_s", "memory_mb", "disk_mb")
NPROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REFINE_FACTORS = (2.0, 4.0, 8.0)
EF_SEARCHES = (16, 32, 64, 128, 256)
TRAIN_ROWS = 65_536
EXACT_BATCH = 64
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
    return float(
        np.mean(
            [np.isin(true_K, rows_K).mean() for true_K, rows_K in zip(true_QK, rows, strict=True)]
        )
    )


def without_own(
    rows: Sequence[NDArray[np.int64]], own_Q: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return the first :data:`TOP_K` rows of each query that are not the query's own."""
    return [rows_K[rows_K != own][:TOP_K] for rows_K, own in zip(rows, own_Q, strict=True)]


def prepare_queries(
    file: VectorFile, queries: Path | None, sampled: int, out: Path, seed: int
) -> Queries:
    """Find the true rows of the vectors in ``queries``, or of ``sampled`` rows of the file, not counting themselves."""
    if file.rows <= TOP_K:
        raise ConfigError(
            f"{file.rows} vectors are too few to measure recall@{TOP_K}; {TOP_K + 1} are needed."
        )

    if queries is None:
        own_Q = np.sort(
            np.random.default_rng(seed).choice(file.rows, min(sampled, file.rows), replace=False)
        )
        queries_QD = file.vectors_ND[own_Q].astype(np.float32)
    else:
        queries_QD = np.array(open_vector_file(queries).vectors_ND, dtype=np.float32)
        own_Q = np.full(len(queries_QD), -1)

    if queries_QD.shape[1] != file.dimension:
        raise ArtifactError(
            f"{queries} has {queries_QD.shape[1]} dimensions and the vectors have {file.dimension}."
        )

    np.save(out, queries_QD)
    return Queries(
        out, np.stack(without_own(exact_rows(file, queries_QD, TOP_K + 1), own_Q)), own_Q
    )


def exact_rows(
    file: VectorFile, queries_QD: NDArray[np.float32], top_k: int
) -> list[NDArray[np.int64]]:
    """Return the true best rows of every query."""
    index = FlatIndex(file)
    batches = np.array_split(queries_QD, len(queries_QD) // EXACT_BATCH + 1)
    rankings = (
        index.search(batch_QD, top_k)
        for batch_QD in track(batches, "exact search", len(batches), "batches")
    )
    return [ranking.rows_K for of_batch in rankings for ranking in of_batch]


def sweeps(
    rows: int, dimension: int, kinds: Sequence[str], nlist: int | None
) -> list[list[VectorsConfig]]:
    """Return the settings of every build; product codes are built once, to be searched with refining and without.

    Codes are a byte per eight dimensions, as the published wiki-18 index has them, or four bits per
    six.
    """
    for kind in kinds:
        look_up("kind of vector index", kind, dict.fromkeys(KINDS))
    train_rows = min(rows, TRAIN_ROWS)
    cells = {
        "nlist": min(nlist or round(rows**0.5), train_rows),
        "train_rows": train_rows,
        "device": "cpu",
        "search_device": "cpu",
    }
    visits = [{"nprobe": nprobe, **cells} for nprobe in NPROBES if nprobe < cells["nlist"]]
    visits.append({"nprobe": cells["nlist"], **cells})
    builds: list[list[dict[str, Any]]] = [
        [{"kind": "flat"}],
        [{"kind": "ivf_flat", **visit} for visit in visits],
    ]

    for nbits, most in ((8, dimension // 8), (4, dimension // 6)):
        if 2**nbits <= train_rows:
            m = max(part for part in range(1, max(most, 1) + 1) if dimension % part == 0)
            codes = [{"m": m, "nbits": nbits, **visit} for visit in visits]
            refined = [
                {"kind": "ivf_pq_refine", "refine_factor": factor, **code}
                for factor in REFINE_FACTORS
                for code in codes
            ]
            # The first is what is built
            builds.append([*refined, *({"kind": "ivf_pq", **code} for code in codes)])

    graph = {"kind": "hnsw", "links": 16, "ef_construction": 100}
    builds.append([{**graph, "ef_search": effort} for effort in EF_SEARCHES])
    parse = TypeAdapter[VectorsConfig](VectorsConfig).validate_python
    selection = [
        [parse(setting) for setting in build if setting["kind"] in kinds] for build in builds
    ]
    return [build for build in selection if build]


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


def _measure(folder: Path, config: VectorsConfig, queries: Queries, batch: int) -> Point:
    files = {"flat": (VECTORS_FILE,), "ivf_pq_refine": (INDEX_FILE, VECTORS_FILE)}.get(
        config.kind, (INDEX_FILE,)
    )
    # The file that a search scans comes first
    sizes_mb = [(folder / name).stat().st_size / MEGABYTE for name in files]
    index = open_vector_index(folder, config)
    queries_QD = np.load(queries.path)
    batches = [queries_QD[start : start + batch] for start in range(0, len(queries_QD), batch)]
    rows: list[NDArray[np.int64]] = []
    times_s: list[float] = []

    with threadpool_limits(1):
        for _ in range(REPEATS):
            began_s = time.process_time()
            rows = [
                ranking.rows_K
                for batch_QD in batches
                for ranking in index.search(batch_QD, TOP_K + 1)
            ]
            times_s.append(time.process_time() - began_s)

    return Point(
        config,
        recall_at_5=recall(without_own(rows, queries.own_Q), queries.true_QK),
        queries_per_s=len(rows) / min(times_s),
        memory_mb=sizes_mb[0],
        disk_mb=sum(sizes_mb),
    )


def recommend(points: Sequence[Point], budget_mb: float, target: float) -> Point | None:
    """Return the fastest setting in the budget that reaches the target, else the nearest to it; None if none fits."""
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
    codes = f" {values['m']} x {values['nbits']} bits" if "nbits" in values else ""
    efforts = (name for name in ("nprobe", "ef_search", "refine_factor") if name in values)
    effort = "".join(f", {name} {values[name]:g}" for name in efforts)
    return (
        f"{point.config.kind}{codes}{effort}: recall@5 {point.recall_at_5:.3f}, "
        f"{point.queries_per_s:.0f} queries/s, {point.memory_mb:.0f} MB"
    )


def snippet(config: VectorsConfig) -> str:
    """Return the setting as a line for ``index`` in params.yaml."""
    values = {"kind": config.kind, **config.model_dump()}
    return f"vectors: {{{', '.join(f'{name}: {value}' for name, value in values.items())}}}"


def write_points(points: Sequence[Point], path: Path) -> None:
    """Write a CSV with a column per parameter, then one per figure."""
    parameters = list(dict.fromkeys(name for point in points for name in point.config.model_dump()))
    with atomic_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, fieldnames=[*parameters, *FIGURES], restval="")
        writer.writeheader()
        for point in points:
            figures = {name: f"{getattr(point, name):.4g}" for name in FIGURES}
            writer.writerow({**point.config.model_dump(), **figures})
