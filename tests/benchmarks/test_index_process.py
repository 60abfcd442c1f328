from pathlib import Path

import numpy as np
import pytest

from benchmarks.index_process import IndexProcess, Opening
from benchmarks.vector_indexes import evict, open_in_memory, resident_share
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.vectors.building import build_vector_index
from deepsearch_rl.search.vectors.config import IvfPqConfig, IvfPqRefineConfig

ROWS, DIMENSION = 60_000, 128
CELLS = {
    "nlist": 8,
    "nprobe": 8,
    "train_rows": 2000,
    "device": "cpu",
    "search_device": "cpu",
    "m": 64,
    "nbits": 6,
}
REFINED = IvfPqRefineConfig.model_validate({"kind": "ivf_pq_refine", "refine_factor": 20, **CELLS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured")
    vectors_ND = normalise_rows(
        np.random.default_rng(0).normal(size=(ROWS, DIMENSION)).astype(np.float32)
    )
    np.save(path / "vectors.npy", vectors_ND)
    np.save(path / "queries.npy", vectors_ND[:100])
    build_vector_index(path / "vectors.npy", path, REFINED, 0)
    return path


@pytest.mark.nightly
def test_a_refined_index_lives_in_its_files_and_survives_a_cold_cache(folder: Path) -> None:
    opening = Opening(folder, REFINED)
    with IndexProcess() as process:
        warm = process.search(opening, folder / "queries.npy", 5, 64)
        vectors_mb, codes_mb = (
            (folder / name).stat().st_size / 1e6 for name in ("vectors.npy", "index.faiss")
        )
        assert vectors_mb > 30
        assert codes_mb > 2
        before_mb = process.anonymous_mb()
        for _ in range(3):
            process.search(opening, folder / "queries.npy", 5, 64)
        assert process.anonymous_mb() - before_mb < 2  # no copy grows with use
        assert before_mb < vectors_mb / 2
        assert process.call(evict, opening.files) < 0.01
        cold = process.search(opening, folder / "queries.npy", 5, 64)
        assert 0.05 < process.call(resident_share, opening.files) < 0.99
    np.testing.assert_array_equal(warm.rows, cold.rows)
    assert [rows_K[0] for rows_K in warm.rows] == list(range(100))


@pytest.mark.slow
def test_codes_read_into_memory_are_anonymous_and_mapped_ones_are_not(folder: Path) -> None:
    config = IvfPqConfig.model_validate({"kind": "ivf_pq", **CELLS})
    sizes_mb = []
    for opening in (Opening(folder, config, open_in_memory), Opening(folder, config)):
        with IndexProcess() as process:
            process.search(opening, folder / "queries.npy", 5, 64)
            sizes_mb.append(process.anonymous_mb())
    codes_mb = (folder / "index.faiss").stat().st_size / 1e6
    assert sizes_mb[0] - sizes_mb[1] > codes_mb / 2
