"""What every kind of vector index promises, on clustered vectors of 16 dimensions."""

import tracemalloc
from pathlib import Path

import faiss
import numpy as np
import pytest
from pydantic import TypeAdapter

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import sha256_file
from deepsearch_rl.search import flat_index
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.faiss_index import INDEX_FILE, write_faiss
from deepsearch_rl.search.flat_index import BLOCK_ROWS, VECTORS_FILE, as_float32
from deepsearch_rl.search.manifest import VectorsConfig
from deepsearch_rl.search.ranking import VectorIndex
from deepsearch_rl.search.searcher import DenseRetriever

ROWS, DIMENSION, QUERIES = 2000, 16, 40
TWINS = (11, 700, 1999)
"""Rows with the same vector."""
CODES = {"search": "nprobe=8", "train_rows": 1500}
KINDS = {
    "flat": {},
    "ivf_flat": {"factory": "IVF16,Flat", **CODES},
    "ivf_pq": {"factory": "IVF16,PQ8x6np", **CODES},
    "ivf_pq_refined": {"factory": "IVF16,PQ8x6np", **CODES, "refine": 6},
    "fast_scan": {"factory": "IVF16,PQ16x4fs", **CODES},
    "fast_scan_refined": {"factory": "IVF16,PQ16x4fs", **CODES, "refine": 6},
    "hnsw": {"factory": "HNSW8,Flat", "search": "efSearch=40"},
}
RECALL_FLOOR = {
    "flat": 1.0,
    "ivf_flat": 0.95,
    "ivf_pq": 0.4,
    "ivf_pq_refined": 0.95,
    "fast_scan": 0.4,
    "fast_scan_refined": 0.95,
    "hnsw": 0.95,
}
EXACT_SCORES = sorted(KINDS.keys() - {"ivf_pq", "fast_scan"})


def config_of(kind: str, **changes: object) -> VectorsConfig:
    values = {"kind": "flat"} if kind == "flat" else {"kind": "faiss", **KINDS[kind], **changes}
    return TypeAdapter(VectorsConfig).validate_python(values)


def build_vector_index(vectors: Path, folder: Path, config: VectorsConfig, seed: int) -> None:
    config.build(vectors, folder, seed)


def open_vector_index(folder: Path, config: VectorsConfig) -> VectorIndex:
    return config.open(folder)


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
    monkeypatch.setattr(flat_index, "QUERIES", queries)
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
    search(index, vectors_ND[: 3 * flat_index.QUERIES], 1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The scores of all queries would take 3 times QUERIES
    assert peak_bytes < 2 * flat_index.QUERIES * BLOCK_ROWS * 4


def test_no_queries_give_no_answers(index: VectorIndex) -> None:
    scores_QK, rows_QK = search(index, np.empty((0, DIMENSION), dtype=np.float32), 5)
    assert scores_QK.shape == rows_QK.shape == (0, 5)


def test_the_same_seed_gives_the_same_bytes(folder: Path, kind: str, tmp_path: Path) -> None:
    if kind == "hnsw":
        pytest.skip("FAISS links a graph by several threads, in any order")
    build_vector_index(folder.parent / "encoded.npy", tmp_path / "again", config_of(kind), 0)
    assert {path.name: sha256_file(path) for path in (tmp_path / "again").iterdir()} == {
        path.name: sha256_file(path) for path in folder.iterdir()
    }


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"factory": "IVF16,PQ3"}, "cannot build IVF16,PQ3 of 2000 vectors of 16 dimensions"),
        ({"factory": "IVF1501,Flat"}, "cannot build IVF1501,Flat"),
        ({"factory": "Nonsense"}, "cannot build Nonsense"),
        ({"factory": None}, "say what is to be built"),
    ],
)
def test_a_factory_that_does_not_fit_the_vectors_is_refused(
    vectors_ND: np.ndarray, tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", vectors_ND)
    with pytest.raises(ConfigError, match=complaint):
        config_of("ivf_flat", **changes).build(vectors, tmp_path / "index", 0)


def test_search_parameters_that_the_index_does_not_have_are_refused(
    vectors_ND: np.ndarray, tmp_path: Path
) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", vectors_ND)
    config_of("ivf_flat").build(vectors, tmp_path / "index", 0)
    with pytest.raises(ConfigError, match=r"IndexIVFFlat\) with 'efSearch=3'"):
        config_of("ivf_flat", search="efSearch=3").open(tmp_path / "index")


class NumberEncoder:
    """Looks a query up by its number, so that a test knows every vector."""

    dimension = DIMENSION

    def encode(self, texts: list[str], _kind: object) -> np.ndarray:
        return np.eye(DIMENSION, dtype=np.float32)[[int(text) for text in texts]]


def test_an_encoder_of_another_dimension_is_refused(tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "encoded.npy", np.eye(12, dtype=np.float32))
    config_of("flat").build(vectors, tmp_path / "index", 0)
    retriever = DenseRetriever(NumberEncoder(), config_of("flat").open(tmp_path / "index"))
    with pytest.raises(ArtifactError, match="16 dimensions and the index holds 12"):
        retriever.search(["0"], 5)


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


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_in_the_index_folder_stay_only_where_the_kind_reads_them(
    vectors_ND: np.ndarray, tmp_path: Path, kind: str
) -> None:
    vectors = write_vectors(tmp_path / VECTORS_FILE, vectors_ND)
    build_vector_index(vectors, tmp_path, config_of(kind), 0)
    kept = {VECTORS_FILE} if kind == "flat" else {INDEX_FILE}
    if kind.endswith("_refined"):
        kept.add(VECTORS_FILE)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_full_disk_is_named(vectors_ND: np.ndarray) -> None:
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(vectors_ND)
    with pytest.raises(ArtifactError, match="is the disk full"):
        write_faiss(index, Path("/dev/full"))


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
    config = config_of("ivf_pq_refined")
    build_vector_index(
        write_vectors(tmp_path / "encoded.npy", vectors_ND), tmp_path / "index", config, 0
    )
    np.save(tmp_path / "index" / VECTORS_FILE, vectors_ND[:-1])
    with pytest.raises(ArtifactError, match="different builds"):
        open_vector_index(tmp_path / "index", config)


def test_refining_orders_the_candidates_of_the_first_stage_exactly(
    vectors_ND: np.ndarray, queries_QD: np.ndarray, tmp_path: Path
) -> None:
    config = config_of("ivf_pq_refined", refine=3)
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
    config = config_of("ivf_pq_refined", search="nprobe=1", refine=2)
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
