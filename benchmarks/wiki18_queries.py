"""What a query takes at wiki-18's size: CPU time of an index of 21 million passages and of its encoder, on one core.

    .venv/bin/python -m benchmarks.wiki18_queries --docs docs/measurements.md

A search of IVF-PQ reads ``nprobe`` cells of about 20,500 codes, whatever the number of cells. So a
smaller index with cells of wiki-18's size takes as long for a cell, and its time over nprobe is a
line: what comes before the cells, and what each takes. The gpu profile's setting at wiki-18 reads
48 of 1,024 cells, whose centroids are compared in addition. The vectors come from
benchmarks/synthetic_vectors.py, and the files are in the page cache. The encoder has e5-base's
shape and random weights.
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertModel

from benchmarks.measure import parse_options, publish
from benchmarks.synthetic_vectors import write_synthetic
from deepsearch_rl.search.vectors.building import build_vector_index
from deepsearch_rl.search.vectors.config import IvfPqRefineConfig
from deepsearch_rl.search.vectors.dense import open_vector_index

PASSAGES = 21_015_324
CELLS = 1024
NPROBE = 48
TOP_K = 3
BATCHES = (1, 64)
# Cells that are probed in the small index, of which the line is made
PROBED = (4, 8, 16)
QUERY_TOKENS = 20
SECONDS = 4.0


def cpu_ms_per_query(work: Callable[[], object], queries: int) -> float:
    """Return the CPU milliseconds of a query: the least of several calls, which others disturb least."""
    work()
    times: list[float] = []
    until = time.monotonic() + SECONDS
    while not times or time.monotonic() < until:
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return 1000 * min(times) / queries


def search_lines(rows: int, folder: Path) -> dict[int, tuple[float, float]]:
    """Return, for each batch, the milliseconds of a query before the cells and those of each cell."""
    vectors, queries = write_synthetic(folder, rows, max(BATCHES), "float16", seed=0)
    queries_QD = np.load(queries)
    cells = round(rows / PASSAGES * CELLS)
    values = {"nlist": cells, "m": 128, "nbits": 4, "refine_factor": 8, "train_rows": 65_536}
    values |= {"kind": "ivf_pq_refine", "device": "cpu", "search_device": "cpu"}
    config = IvfPqRefineConfig.model_validate(values | {"nprobe": max(PROBED)})
    build_vector_index(vectors, folder / "index", config, 0)

    lines: dict[int, tuple[float, float]] = {}
    for batch in BATCHES:
        times: list[float] = []
        for nprobe in PROBED:
            index = open_vector_index(
                folder / "index", config.model_copy(update={"nprobe": nprobe})
            )
            queries_BD = queries_QD[:batch]
            search = partial(index.nearest, queries_BD, TOP_K)
            times.append(cpu_ms_per_query(search, batch))

        per_cell_ms, before_ms = np.polyfit(PROBED, times, 1)
        lines[batch] = float(before_ms), float(per_cell_ms)
    return lines


def quantizer_ms(batch: int) -> float:
    """Return the milliseconds in which a query is compared with wiki-18's centroids."""
    rng = np.random.default_rng(0)
    centroids_CD = rng.standard_normal((CELLS, 768), dtype=np.float32)
    queries_BD: NDArray[np.float32] = rng.standard_normal((batch, 768), dtype=np.float32)
    return cpu_ms_per_query(lambda: queries_BD @ centroids_CD.T, batch)


def encoder_ms(batch: int, dtype: torch.dtype) -> float:
    """Return the milliseconds in which a query is encoded."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval().to(dtype)
    ids = torch.randint(1000, 20_000, (batch, QUERY_TOKENS))
    with torch.inference_mode():
        return cpu_ms_per_query(lambda: model(input_ids=ids), batch)


def main() -> None:
    """Measure and print the table."""
    options = parse_options(__doc__, rows=(330_000, "vectors of the small index"))
    with tempfile.TemporaryDirectory() as folder:
        lines = search_lines(options.rows, Path(folder))

    table: list[list[str]] = []
    for batch, (before_ms, per_cell_ms) in lines.items():
        search_ms = before_ms + NPROBE * per_cell_ms + quantizer_ms(batch)
        float32_ms = encoder_ms(batch, torch.float32)
        bfloat16_ms = encoder_ms(batch, torch.bfloat16)
        rates = [1000 / (search_ms + ms) for ms in (0.0, float32_ms, bfloat16_ms)]
        cells = [before_ms, per_cell_ms, search_ms, float32_ms, bfloat16_ms]
        table.append(
            [str(batch), *(f"{value:.2f}" for value in cells), *(f"{rate:.0f}" for rate in rates)]
        )

    header = ("queries at once", "before the cells, ms", "a cell, ms", "search at wiki-18, ms")
    header += ("encoding float32, ms", "encoding bfloat16, ms", "searches/s of a core")
    header += ("queries/s, float32", "queries/s, bfloat16")
    publish(options, "wiki18-queries", header, table)


if __name__ == "__main__":
    main()
