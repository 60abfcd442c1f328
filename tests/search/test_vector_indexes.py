"""What every kind of vector index promises, on clustered vectors of 16 dimensions."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.vectors import building, flat
from deepsearch_rl.search.vectors.building import INDEX_FILE, VECTORS_FILE, build_vector_index
from deepsearch_rl.search.vectors.config import VectorsConfig
from deepsearch_rl.search.vectors.dense import VectorIndex, open_vector_index
from deepsearch_rl.search.vectors.flat import BLOCK_ROWS, as_float32

ROWS, DIMENSION, QUERIES = 2000, 16, 40
TWINS = (11, 700, 1999)
"""Rows with the same vector."""
CELLS = {"nlist": 16, "nprobe": 8, "train_rows": 1500, "device": "cpu", "search_device": "cpu"}
CODES = {**CELLS, "m": 8, "nbits": 6}
KINDS = {
    "flat": {},
    "ivf_flat": CELLS,
    "ivf_pq": CODES,
    "ivf_pq_refine": {**CODES, "refine_factor": 6},
    "fast_scan": {**CODES, "m": 16, "nbits": 4},
    "fast_scan_refine": {**CODES, "m": 16, "nbits": 4, "refine_factor": 6},
    "hnsw": {"links": 8, "ef_construction": 40, "ef_search": 40},
}
RECALL_FLOOR = {
    "flat": 1.0,
    "ivf_flat": 0.95,
    "ivf_pq": 0.4,
    "ivf_pq_refine": 0.95,
    "fast_scan": 0.4,
    "fast_scan_refine": 0.95,
    "hnsw": 0.95,
}
EXACT_SCORES = sorted(KINDS.keys() - {"ivf_pq", "fast_scan"})


def config_of(kind: str, **changes: object) -> VectorsConfig:
    name = kind.replace("fast_scan", "ivf_pq")
    return TypeAdapter(VectorsConfig).validate_python({"kind": name, **KINDS[kind], **changes})


def write_vectors(path: Path, vectors_ND: np.ndarray) -> Path:
    np.save(path, vectors_ND)
    return path


@pytest.fixture(scope="module")
def vectors_ND() -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, DIMENSION))
    vectors = normalise_rows(
        centres[rng.integers(0, 40, ROWS)] + rng.normal(0, 0.5, (ROWS, DIMENSION))
    )
    vectors[list(TWINS)] = vectors[TWINS[0]]
    vectors[5] = 0
    return vectors


@pytest.fixture(scope="module")
def queries_QD(vectors_ND: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(1)
    return normalise_rows(
        vectors_ND[100 : 100 + QUERIES] + rng.normal(0, 0.1, (QUERIES, DIMENSION))
    )


@pytest.fixture(scope="module", params=["float32", "float16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(
    kind: str, dtype: str, vectors_ND: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    build_vector_index(
        write_vectors(path / "encoded.npy", vectors_ND.astype(dtype)),
        path / "index",
        config_of(kind),
        0,
    )
    return path / "index"


@pytest.fixture(scope="module")
def index(folder: Path, kind: str):
    return open_vector_index(folder, config_of(kind))


@pytest.fixture(scope="module")
def scores_QN(vectors_ND: np.ndarray, queries_QD: np.ndarray, dtype: str) -> np.ndarray:
    return queries_QD.astype(np.float64) @ vectors_ND.astype(dtype).astype(np.float64).T


def search(
    index: VectorIndex, queries_QD: np.ndarray, top_k: int, allowed_N: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The scores_QK and rows_QK that an index finds, with row -1 and minus infinity where it finds fewer."""
    rankings = index.nearest(queries_QD, top_k, allowed_N)
    scores_QK = np.full((len(queries_QD), min(top_k, ROWS)), -np.inf, dtype=np.float32)
    rows_QK = np.full(scores_QK.shape, -1)
    for query, ranking in enumerate(rankings):
        scores_QK[query, : len(ranking.scores_K)] = ranking.scores_K
        rows_QK[query, : len(ranking.rows_K)] = ranking.rows_K
    return scores_QK, rows_QK


def best(scores_QN: np.ndarray, top_k: int) -> np.ndarray:
    return np.argsort(-scores_QN, axis=1, kind="stable")[:, :top_k]


def test_it_finds_most_of_what_is_nearest(
    index: VectorIndex, kind: str, queries_QD: np.ndarray, scores_QN: np.ndarray
) -> None:
    assert index.dimension == DIMENSION
    _, rows_QK = search(index, queries_QD, 5)
    found = [
        len(set(rows_K) & set(best_K)) / 5
        for rows_K, best_K in zip(rows_QK, best(scores_QN, 5), strict=True)
    ]
    assert np.mean(found) >= RECALL_FLOOR[kind]


def test_scores_fall_and_belong_to_their_rows(
    index: VectorIndex, kind: str, queries_QD: np.ndarray, scores_QN: np.ndarray
) -> None:
    scores_QK, rows_QK = search(index, queries_QD, 20)
    assert (np.diff(scores_QK, axis=1) <= 0).all()
    tolerance = 1e-5 if kind in EXACT_SCORES else 0.5
    np.testing.assert_allclose(
        scores_QK, np.take_along_axis(scores_QN, rows_QK, axis=1), atol=tolerance
    )


def test_equal_vectors_are_ordered_by_row(index: VectorIndex, vectors_ND: np.ndarray) -> None:
    for top_k in (1, 2, 3):
        scores_QK, rows_QK = search(index, vectors_ND[[TWINS[0]]], top_k)
        assert rows_QK.tolist() == [list(TWINS[:top_k])]
        assert len(set(scores_QK[0].tolist())) == 1


def test_only_allowed_rows_are_found_and_as_many_as_without_a_mask(
    index: VectorIndex, queries_QD: np.ndarray
) -> None:
    allowed_N = np.zeros(ROWS, dtype=bool)
    allowed_N[np.random.default_rng(2).choice(ROWS, 37, replace=False)] = True
    _, rows_QK = search(index, queries_QD, 10, allowed_N)
    assert allowed_N[rows_QK].all()
    assert (rows_QK >= 0).mean() > 0.98


def test_a_mask_that_allows_all_changes_nothing_and_one_that_allows_none_finds_nothing(
    index: VectorIndex, queries_QD: np.ndarray
) -> None:
    for masked, plain in zip(
        search(index, queries_QD, 5, np.ones(ROWS, dtype=bool)),
        search(index, queries_QD, 5),
        strict=True,
    ):
        np.testing.assert_array_equal(masked, plain)
    scores_QK, rows_QK = search(index, queries_QD, 5, np.zeros(ROWS, dtype=bool))
    assert (rows_QK == -1).all()
    assert np.isneginf(scores_QK).all()


def test_more_than_all_rows_are_never_given_and_none_twice(
    index: VectorIndex, queries_QD: np.ndarray
) -> None:
    _, rows_QK = search(index, queries_QD[:3], 10 * ROWS)
    assert rows_QK.shape == (3, ROWS)
    for rows_K in rows_QK:
        found = rows_K[rows_K >= 0]
        assert len(set(found.tolist())) == len(found) > 0
        assert (rows_K[len(found) :] == -1).all()


def test_a_zero_query_finds_nothing_and_leaves_its_neighbours_alone(
    index: VectorIndex, queries_QD: np.ndarray
) -> None:
    zero_first = np.concatenate([np.zeros((1, DIMENSION), dtype=np.float32), queries_QD])
    _, rows_QK = search(index, zero_first, 5)
    assert (rows_QK[0] == -1).all()
    np.testing.assert_array_equal(rows_QK[1:], search(index, queries_QD, 5)[1])


def test_an_answer_does_not_depend_on_the_queries_beside_it(
    index: VectorIndex, queries_QD: np.ndarray
) -> None:
    together = search(index, queries_QD, 5)
    alone = [search(index, query_D[None], 5) for query_D in queries_QD]
    np.testing.assert_array_equal(together[1], np.concatenate([rows_QK for _, rows_QK in alone]))


@pytest.mark.parametrize("queries", [1, 7, QUERIES])
def test_exact_search_gives_the_same_whatever_number_of_queries_it_compares_at_once(
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    queries: int,
) -> None:
    build_vector_index(
        write_vectors(tmp_path / "encoded.npy", vectors_ND),
        tmp_path / "index",
        config_of("flat"),
        0,
    )
    index = open_vector_index(tmp_path / "index", config_of("flat"))
    expected = search(index, queries_QD, 5)
    monkeypatch.setattr(flat, "QUERIES", queries)
    for sliced, whole in zip(search(index, queries_QD, 5), expected, strict=True):
        np.testing.assert_array_equal(sliced, whole)


def test_the_memory_of_exact_search_does_not_grow_with_the_queries_of_a_call(
    tmp_path: Path,
) -> None:
    vectors_ND = normalise_rows(np.random.default_rng(0).normal(size=(BLOCK_ROWS, 4)))
    build_vector_index(
        write_vectors(tmp_path / "encoded.npy", vectors_ND),
        tmp_path / "index",
        config_of("flat"),
        0,
    )
    index = open_vector_index(tmp_path / "index", config_of("flat"))
    tracemalloc.start()
    search(index, vectors_ND[: 3 * flat.QUERIES], 1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The scores of all queries would take 3 times QUERIES
    assert peak_bytes < 2 * flat.QUERIES * BLOCK_ROWS * 4


def test_no_queries_give_no_answers(index: VectorIndex) -> None:
    scores_QK, rows_QK = search(index, np.empty((0, DIMENSION), dtype=np.float32), 5)
    assert scores_QK.shape == rows_QK.shape == (0, 5)


def test_the_same_seed_gives_the_same_bytes(folder: Path, kind: str, tmp_path: Path) -> None:
    build_vector_index(folder.parent / "encoded.npy", tmp_path / "again", config_of(kind), 0)
    assert {path.name: sha256_file(path) for path in (tmp_path / "again").iterdir()} == {
        path.name: sha256_file(path) for path in folder.iterdir()
    }


def test_a_missing_or_damaged_file_is_refused(folder: Path, kind: str, tmp_path: Path) -> None:
    for damaged in folder.iterdir():
        for path in folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        half = (tmp_path / damaged.name).read_bytes()[: damaged.stat().st_size // 2]
        for content in (half, b"nothing", b""):
            (tmp_path / damaged.name).write_bytes(content)
            with pytest.raises(ArtifactError, match="build the index again"):
                open_vector_index(tmp_path, config_of(kind))
        (tmp_path / damaged.name).unlink()
        with pytest.raises(ArtifactError, match="build the index again"):
            open_vector_index(tmp_path, config_of(kind))


@pytest.mark.parametrize(
    ("kind", "changes", "complaint"),
    [
        ("ivf_pq", {"m": 3}, "does not divide"),
        ("ivf_pq_refine", {"nbits": 11}, "too few for 2048 codes"),
        ("ivf_flat", {"nlist": 1501}, "too few"),
    ],
)
def test_parameters_that_do_not_fit_the_vectors_are_refused(
    vectors_ND: np.ndarray, tmp_path: Path, kind: str, changes: dict[str, object], complaint: str
) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", vectors_ND)
    with pytest.raises(ConfigError, match=complaint):
        build_vector_index(vectors, tmp_path / "index", config_of(kind, **changes), 0)


@pytest.mark.parametrize(
    ("kind", "changes", "complaint"),
    [
        ("fast_scan", {"device": "cuda"}, "no codes of 16 x 4 bits on a GPU"),
        (
            "ivf_pq",
            {"search_device": "cuda", "nbits": 8, "m": 128},
            "no codes of 128 x 8 bits on a GPU",
        ),
        (
            "ivf_flat",
            {"search_device": "cuda", "nlist": 4096, "nprobe": 2049},
            "at most 2048 cells on a GPU",
        ),
    ],
)
def test_what_a_gpu_cannot_hold_is_refused_with_the_params(
    kind: str, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        config_of(kind, **changes)
    # The published codes
    assert config_of("ivf_pq", device="cuda", nbits=8, m=96).kind == "ivf_pq"


@pytest.mark.skipif(hasattr(faiss, "GpuClonerOptions"), reason="this is faiss-gpu")
@pytest.mark.parametrize("field", ["device", "search_device"])
def test_cuda_without_faiss_gpu_says_what_to_install(
    vectors_ND: np.ndarray, tmp_path: Path, field: str
) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", vectors_ND)
    config = config_of("ivf_pq", nbits=8, **{field: "cuda"})
    with pytest.raises(UnavailableError, match=r"is faiss-cpu: .*python\.index"):
        build_vector_index(vectors, tmp_path / "index", config, 0)
    with pytest.raises(UnavailableError, match="is faiss-cpu"):
        open_vector_index(tmp_path, config)
    assert [path.name for path in tmp_path.iterdir()] == ["encoded.npy"]


class GpuCopy:
    """An index as faiss-gpu copies it: with FAISS's own seed of the cells, and with the limits of its searches."""

    def __init__(self, index: Any) -> None:
        self.index = faiss.clone_index(index)
        self.cp = self.index.cp
        self.cp.seed = 1234
        self.train, self.add = self.index.train, self.index.add
        self.searches = 0

    def search(self, queries_QD: np.ndarray, depth: int, params: Any) -> Any:
        assert depth <= 2048
        assert params.sel is None
        self.searches += 1
        return self.index.search(queries_QD, depth, params=params)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[GpuCopy]:
    """What a machine with faiss-gpu and a GPU has; the copies that were made there."""
    made: list[GpuCopy] = []

    def copy(_resources: object, _device: int, index: Any, options: Any) -> GpuCopy:
        assert options.useFloat16
        made.append(GpuCopy(index))
        return made[-1]

    names = {
        "GpuClonerOptions": SimpleNamespace,
        "StandardGpuResources": object,
        "index_cpu_to_gpu": copy,
    }
    names |= {"index_gpu_to_cpu": lambda worker: worker.index, "get_num_gpus": lambda: 1}
    for name, value in names.items():
        monkeypatch.setattr(faiss, name, value, raising=False)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ivf_flat", "ivf_pq", "ivf_pq_refine"])
def test_an_index_that_a_gpu_filled_is_a_cpu_index_of_the_same_seed(
    vectors_ND: np.ndarray, tmp_path: Path, kind: str, copies: list[GpuCopy]
) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", vectors_ND)
    codes = {} if kind == "ivf_flat" else {"nbits": 8}
    for device in ("cpu", "cuda"):
        build_vector_index(vectors, tmp_path / device, config_of(kind, device=device, **codes), 7)
    assert len(copies) == 1
    assert sha256_file(tmp_path / "cuda" / INDEX_FILE) == sha256_file(tmp_path / "cpu" / INDEX_FILE)


def test_a_gpu_searches_what_it_can_and_the_mapped_index_the_rest(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, tmp_path: Path, copies: list[GpuCopy]
) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", np.concatenate([vectors_ND, vectors_ND]))
    build_vector_index(vectors, tmp_path, config_of("ivf_flat"), 0)
    here, there = (
        open_vector_index(tmp_path, config_of("ivf_flat", search_device=name))
        for name in ("cpu", "cuda")
    )
    allowed_N = np.arange(2 * ROWS) % 2 == 0
    for top_k, allowed, searches in (
        (5, None, 1),
        (5, allowed_N, 1),
        (2100, None, 1),
        (2000, None, 2),
    ):
        for ranking, other in zip(
            here.nearest(queries_QD, top_k, allowed),
            there.nearest(queries_QD, top_k, allowed),
            strict=True,
        ):
            assert np.array_equal(ranking.rows_K, other.rows_K)
        assert copies[0].searches == searches


@pytest.mark.usefixtures("copies")
def test_a_full_gpu_is_named(
    vectors_ND: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_vectors: object) -> None:
        raise RuntimeError("StandardGpuResources: alloc fail")

    copy = SimpleNamespace(cp=SimpleNamespace(), train=full)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda *_: copy)
    vectors = write_vectors(tmp_path / "encoded.npy", vectors_ND)
    with pytest.raises(UnavailableError, match=r"alloc fail.*free memory"):
        build_vector_index(vectors, tmp_path / "index", config_of("ivf_flat", device="cuda"), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_in_the_index_folder_stay_only_where_the_kind_reads_them(
    vectors_ND: np.ndarray, tmp_path: Path, kind: str
) -> None:
    vectors = write_vectors(tmp_path / VECTORS_FILE, vectors_ND)
    build_vector_index(vectors, tmp_path, config_of(kind), 0)
    kept = {"flat": {VECTORS_FILE}, "ivf_pq_refine": {VECTORS_FILE, INDEX_FILE}}
    assert {path.name for path in tmp_path.iterdir()} == kept.get(
        config_of(kind).kind, {INDEX_FILE}
    )


def test_building_again_leaves_nothing_of_another_kind(
    vectors_ND: np.ndarray, tmp_path: Path
) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", vectors_ND)
    for kind in ("ivf_pq_refine", "flat", "ivf_flat"):
        build_vector_index(vectors, tmp_path / "index", config_of(kind), 0)
    assert [path.name for path in (tmp_path / "index").iterdir()] == [INDEX_FILE]
    build_vector_index(vectors, tmp_path / "index", config_of("flat"), 0)
    assert [path.name for path in (tmp_path / "index").iterdir()] == [VECTORS_FILE]
    assert vectors.exists()


def test_a_full_disk_is_named(vectors_ND: np.ndarray) -> None:
    index = building.faiss.IndexFlatIP(DIMENSION)
    index.add(vectors_ND)
    with pytest.raises(ArtifactError, match="is the disk full"):
        building.write_faiss(index, Path("/dev/full"))


@pytest.mark.parametrize(
    "content",
    [np.zeros(4), np.zeros((2, 3)), np.zeros((0, 3), np.float32), np.zeros((3, 2), ">f4")],
)
def test_a_file_of_anything_but_rows_of_floats_is_refused(
    tmp_path: Path, content: np.ndarray
) -> None:
    np.save(tmp_path / VECTORS_FILE, content)
    with pytest.raises(ArtifactError, match=r"vectors\.npy holds"):
        open_vector_index(tmp_path, config_of("flat"))


def test_vectors_and_codes_of_different_builds_are_refused(
    vectors_ND: np.ndarray, tmp_path: Path
) -> None:
    config = config_of("ivf_pq_refine")
    build_vector_index(
        write_vectors(tmp_path / "encoded.npy", vectors_ND), tmp_path / "index", config, 0
    )
    np.save(tmp_path / "index" / VECTORS_FILE, vectors_ND[:-1])
    with pytest.raises(ArtifactError, match="different builds"):
        open_vector_index(tmp_path / "index", config)


def test_refining_orders_the_candidates_of_the_first_stage_exactly(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, tmp_path: Path
) -> None:
    config = config_of("ivf_pq_refine", refine_factor=3)
    build_vector_index(
        write_vectors(tmp_path / "encoded.npy", vectors_ND), tmp_path / "index", config, 0
    )
    refined = open_vector_index(tmp_path / "index", config)
    _, candidates_QC = search(refined.first, queries_QD, 15)
    scores_QK, rows_QK = search(refined, queries_QD, 5)
    for query_D, candidates_C, scores_K, rows_K in zip(
        queries_QD, candidates_QC, scores_QK, rows_QK, strict=True
    ):
        exact_C = vectors_ND[candidates_C].astype(np.float64) @ query_D
        expected = np.lexsort((candidates_C, -exact_C))[:5]
        assert rows_K.tolist() == candidates_C[expected].tolist()
        np.testing.assert_allclose(scores_K, exact_C[expected], atol=1e-6)


def test_refining_compares_with_every_row_of_a_narrow_mask(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, tmp_path: Path
) -> None:
    config = config_of("ivf_pq_refine", nprobe=1, refine_factor=2)
    build_vector_index(
        write_vectors(tmp_path / "encoded.npy", vectors_ND), tmp_path / "index", config, 0
    )
    allowed_N = np.zeros(ROWS, dtype=bool)
    allowed_N[np.random.default_rng(3).choice(ROWS, 10, replace=False)] = True
    _, rows_QK = search(open_vector_index(tmp_path / "index", config), queries_QD, 5, allowed_N)
    scores_QN = np.where(allowed_N, queries_QD @ vectors_ND.T, -np.inf)
    np.testing.assert_array_equal(rows_QK, best(scores_QN, 5))


def test_every_float16_is_converted_as_numpy_does() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)].reshape(-1, 2)
    assert as_float32(finite).tobytes() == finite.astype(np.float32).tobytes()
    for number in (np.inf, -np.inf, np.nan, -np.nan):
        row = np.array([[0.5, number]], dtype=np.float16)
        np.testing.assert_array_equal(as_float32(row), row.astype(np.float32))


def test_a_row_of_no_numbers_is_not_found_and_hides_no_other(
    vectors_ND: np.ndarray, tmp_path: Path
) -> None:
    with_nan_ND = np.concatenate([np.full((1, DIMENSION), np.nan), vectors_ND]).astype(np.float16)
    build_vector_index(
        write_vectors(tmp_path / "encoded.npy", with_nan_ND),
        tmp_path / "index",
        config_of("flat"),
        0,
    )
    _, rows_QK = search(
        open_vector_index(tmp_path / "index", config_of("flat")), vectors_ND[[TWINS[0]]], 2
    )
    assert rows_QK.tolist() == [[TWINS[0] + 1, TWINS[1] + 1]]
