"""Recall, speed and memory of every kind of vector index, over the vectors at hand, at rising effort.

- *recall@5*: the mean share of the true five nearest rows that are among the first five hits;
- *queries/s*: per CPU second of one thread, all files in the page cache (so that a busy machine does not tell);
- *memory*: anonymous memory of the process (RssAnon, beyond an empty one's) plus the file that a search scans, which
  must stay in the page cache. Vectors that are only refined from are not counted: a search reads a few rows.
"""

import csv
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import TypeAdapter

from deepsearch_rl.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.files import atomic_file
from deepsearch_rl.progress import ProgressBar, track
from deepsearch_rl.retrieval.measurement.index_process import MEGABYTE, IndexProcess, Opening, recall
from deepsearch_rl.retrieval.vectors.building import build_vector_index
from deepsearch_rl.retrieval.vectors.config import VectorsConfig
from deepsearch_rl.retrieval.vectors.flat import FlatIndex, VectorFile, open_vector_file

TOP_K = 5
KINDS = {
    "flat": ("#7d838c", "s"),
    "ivf_flat": ("#8f5bb5", "^"),
    "ivf_pq": ("#bd7414", "o"),
    "ivf_pq_refine": ("#12876a", "D"),
    "hnsw": ("#3f7fd1", "v"),
}
"""The colour and marker of each kind of index."""
FIGURES = ("recall_at_5", "queries_per_s", "memory_mb", "anonymous_mb", "disk_mb")
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
    anonymous_mb: float
    disk_mb: float


@dataclass(frozen=True, slots=True)
class Queries:
    """A file of query vectors with their true rows_QK. ``own_Q``: the row that each was taken from, -1 for none."""

    path: Path
    true_QK: NDArray[np.int64]
    own_Q: NDArray[np.int64]

    def recall(self, rows: Sequence[NDArray[np.int64]]) -> float:
        """Return the recall of a search for one row more than :data:`TOP_K`."""
        return recall(without_own(rows, self.own_Q), self.true_QK)


def without_own(rows: Sequence[NDArray[np.int64]], own_Q: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the first :data:`TOP_K` rows of each query that are not the query's own."""
    return [rows_K[rows_K != own][:TOP_K] for rows_K, own in zip(rows, own_Q, strict=True)]


def prepare_queries(file: VectorFile, queries: Path | None, sampled: int, out: Path, seed: int) -> Queries:
    """Find the true rows of the vectors in ``queries``, or of ``sampled`` rows of the file, not counting themselves."""
    if file.rows <= TOP_K:
        raise ConfigError(f"{file.rows} vectors are too few to measure recall@{TOP_K}; {TOP_K + 1} are needed.")
    if queries is None:
        own_Q = np.sort(np.random.default_rng(seed).choice(file.rows, min(sampled, file.rows), replace=False))
        queries_QD = file.vectors_ND[own_Q].astype(np.float32)
    else:
        queries_QD = np.array(open_vector_file(queries).vectors_ND, dtype=np.float32)
        own_Q = np.full(len(queries_QD), -1)
    if queries_QD.shape[1] != file.dimension:
        raise ArtifactError(f"{queries} has {queries_QD.shape[1]} dimensions and the vectors have {file.dimension}.")
    np.save(out, queries_QD)
    return Queries(out, np.stack(without_own(exact_rows(file, queries_QD, TOP_K + 1), own_Q)), own_Q)


def exact_rows(file: VectorFile, queries_QD: NDArray[np.float32], top_k: int) -> list[NDArray[np.int64]]:
    """Return the true best rows of every query."""
    index, batches = FlatIndex(file), np.array_split(queries_QD, len(queries_QD) // EXACT_BATCH + 1)
    rankings = (index.search(batch_QD, top_k) for batch_QD in track(batches, "exact search", len(batches), "batches"))
    return [ranking.rows_K for of_batch in rankings for ranking in of_batch]


def sweeps(rows: int, dimension: int, kinds: Sequence[str], nlist: int | None) -> list[list[VectorsConfig]]:
    """Return the settings of every build; product codes are built once, to be searched with refining and without.

    Codes are a byte per eight dimensions, as the published wiki-18 index has them, or four bits per six.
    """
    for kind in kinds:
        look_up("kind of vector index", kind, KINDS)
    train_rows = min(rows, TRAIN_ROWS)
    cells = {
        "nlist": min(nlist or round(rows**0.5), train_rows),
        "train_rows": train_rows,
        "device": "cpu",
        "search_device": "cpu",
    }
    visits = [{"nprobe": nprobe, **cells} for nprobe in NPROBES if nprobe < cells["nlist"]]
    visits.append({"nprobe": cells["nlist"], **cells})
    builds: list[list[dict[str, Any]]] = [[{"kind": "flat"}], [{"kind": "ivf_flat", **visit} for visit in visits]]
    for nbits, most in ((8, dimension // 8), (4, dimension // 6)):
        if 2**nbits <= train_rows:
            m = max(part for part in range(1, max(most, 1) + 1) if dimension % part == 0)
            codes = [{"m": m, "nbits": nbits, **visit} for visit in visits]
            refined = [
                {"kind": "ivf_pq_refine", "refine_factor": factor, **code}
                for factor in REFINE_FACTORS
                for code in codes
            ]
            builds.append([*refined, *({"kind": "ivf_pq", **code} for code in codes)])  # the first is what is built
    graph = {"kind": "hnsw", "links": 16, "ef_construction": 100}
    builds.append([{**graph, "ef_search": effort} for effort in EF_SEARCHES])
    parse = TypeAdapter[VectorsConfig](VectorsConfig).validate_python
    selection = [[parse(setting) for setting in build if setting["kind"] in kinds] for build in builds]
    return [build for build in selection if build]


def measure_frontier(
    vectors: Path, queries: Queries, settings: Sequence[Sequence[VectorsConfig]], batch: int, out: Path, seed: int
) -> list[Point]:
    """Make every build in a folder below ``out`` that is removed again, and measure its settings."""
    points: list[Point] = []
    with ProgressBar("frontier", sum(map(len, settings)), "settings") as bar:
        for build in settings:
            with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as folder:
                build_vector_index(vectors, Path(folder), build[0], seed)
                with IndexProcess(Opening(Path(folder), build[0])) as process:
                    process.search(queries.path, TOP_K + 1, batch)
                    for config in build:
                        points.append(_measure(process, Opening(Path(folder), config), queries, batch))
                        bar.advance(note=f"{config.kind}: recall {points[-1].recall_at_5:.3f}")
    return points


def _measure(process: IndexProcess, opening: Opening, queries: Queries, batch: int) -> Point:
    runs = [process.search(queries.path, TOP_K + 1, batch, opening.config) for _ in range(REPEATS)]
    anonymous_mb = max(process.anonymous_mb(), 0.0)
    return Point(
        opening.config,
        recall_at_5=queries.recall(runs[0].rows),
        queries_per_s=len(queries.own_Q) / min(run.cpu_s for run in runs),
        memory_mb=anonymous_mb + opening.scanned_mb,
        anonymous_mb=anonymous_mb,
        disk_mb=sum(path.stat().st_size for path in opening.files) / MEGABYTE,
    )


def recommend(points: Sequence[Point], budget_mb: float, target: float) -> Point | None:
    """Return the fastest setting in the budget that reaches the target, else the nearest to it; None if none fits."""
    fitting = [point for point in points if point.memory_mb <= budget_mb]
    return max(fitting, key=lambda point: (min(point.recall_at_5, target), point.queries_per_s), default=None)


def pareto(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both recall and speed, by rising recall."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (-point.recall_at_5, -point.queries_per_s)):
        if not best or point.queries_per_s > best[-1].queries_per_s:
            best.append(point)
    return best[::-1]


def require_room(vectors: Path, out: Path) -> None:
    """Raise ConfigError where a copy and a half of the vectors would fill the disk: the largest kinds hold a copy."""
    needed, free = vectors.stat().st_size * 1.5, shutil.disk_usage(out).free
    if free < needed:
        raise ConfigError(f"{out} has {free / 1e9:.1f} GB of room, and building in turn takes {needed / 1e9:.1f} GB.")


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


def draw_frontier(points: Sequence[Point], recommended: Point | None, budget_mb: float, path: Path) -> None:
    """Write a PNG: every setting is faint, a line joins each kind's best, a ring is around the recommended one."""
    with mpl.rc_context({"font.size": 9, "axes.titlelocation": "left"}):
        figure = Figure(figsize=(10.0, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        speed, memory = figure.subplots(1, 2, sharey=True)
        for kind, (colour, marker) in KINDS.items():
            points_of_kind = [point for point in points if point.config.kind == kind]
            best = pareto(points_of_kind)
            look = {"color": colour, "marker": marker, "markersize": 4}
            _plot(speed, points_of_kind, "queries_per_s", linestyle="", alpha=0.3, **look)
            _plot(speed, best, "queries_per_s", label=kind if best else None, **look)
            _plot(memory, best, "memory_mb", linestyle="", **look)
        memory.axvline(budget_mb, color="#8a9099", linestyle="--", linewidth=1, label="budget")
        if recommended is not None:
            ring = {"marker": "o", "markersize": 11, "fillstyle": "none", "color": "#1b1e23", "linestyle": ""}
            _plot(speed, [recommended], "queries_per_s", label="recommended", **ring)
            _plot(memory, [recommended], "memory_mb", **ring)
        speed.set(xscale="log", xlabel="queries/s of one core", ylabel="recall@5", title="Speed")
        memory.set(xscale="log", xlabel="memory, MB (anonymous + scanned file)", title="Memory")
        for panel in (speed, memory):
            panel.grid(alpha=0.25)
            panel.legend(frameon=False)
        with atomic_file(path) as partial:
            figure.savefig(partial, format="png", dpi=150, metadata={"Software": None})


def _plot(panel: Axes, points: Sequence[Point], x: str, **look: Any) -> None:
    panel.plot([getattr(point, x) for point in points], [point.recall_at_5 for point in points], **look)
