from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.retrieval.encoders.encoder import normalise_rows
from deepsearch_rl.retrieval.vectors.dense import (
    DenseRetriever,
    FlatConfig,
    IvfPqConfig,
    build_vectors,
    load_vectors,
    save_vectors,
)


@dataclass
class NumberEncoder:
    """Looks a query up by its number, so that a test knows every vector."""

    vectors_ND: np.ndarray

    def encode(self, texts, _kind):
        return self.vectors_ND[[int(text) for text in texts]]


@pytest.fixture(scope="module")
def vectors_ND() -> np.ndarray:
    return normalise_rows(np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32))


def ivf_pq(**changes) -> IvfPqConfig:
    return IvfPqConfig(**{"kind": "ivf_pq", "nlist": 4, "m": 8, "nbits": 4, "nprobe": 4, "train_rows": 300, **changes})


def test_flat_search_is_exact(vectors_ND):
    flat = DenseRetriever(NumberEncoder(vectors_ND), build_vectors(vectors_ND, FlatConfig(kind="flat"), seed=0))
    for query, ranking in enumerate(flat.search([str(query) for query in range(30)], 5)):
        expected = np.argsort(-(vectors_ND @ vectors_ND[query]))[:5]
        assert ranking.rows_K.tolist() == expected.tolist()


def test_ivf_pq_finds_most_of_what_flat_search_finds(vectors_ND):
    compressed = DenseRetriever(NumberEncoder(vectors_ND), build_vectors(vectors_ND, ivf_pq(), seed=0))
    firsts = [ranking.rows_K[0] for ranking in compressed.search([str(query) for query in range(300)], 1)]
    assert np.mean(np.array(firsts) == np.arange(300)) > 0.8


def test_cells_with_too_few_vectors_give_fewer_hits_not_padding(vectors_ND):
    one_cell = build_vectors(vectors_ND, ivf_pq(nlist=16, nprobe=1), seed=0)
    [ranking] = DenseRetriever(NumberEncoder(vectors_ND), one_cell).search(["0"], 300)
    assert 0 < len(ranking.rows_K) < 300
    assert ranking.rows_K.min() >= 0


@pytest.mark.parametrize(
    ("changes", "complaint"), [({"m": 3}, "does not divide"), ({"nlist": 301}, "too few"), ({"nbits": 9}, "too few")]
)
def test_ivf_pq_parameters_that_do_not_fit_are_refused(vectors_ND, changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        build_vectors(vectors_ND, ivf_pq(**changes), seed=0)


def test_a_damaged_vector_file_is_refused(tmp_path):
    (tmp_path / "vectors.faiss").write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match="build the index again"):
        load_vectors(tmp_path / "vectors.faiss")


def test_a_full_disk_is_named(vectors_ND):
    with pytest.raises(ArtifactError, match="is the disk full"):
        save_vectors(build_vectors(vectors_ND, FlatConfig(kind="flat"), seed=0), Path("/dev/full"))
