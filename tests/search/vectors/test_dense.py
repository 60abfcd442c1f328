from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.vectors.building import VECTORS_FILE, build_vector_index
from deepsearch_rl.search.vectors.config import FlatConfig, IvfPqConfig
from deepsearch_rl.search.vectors.dense import DenseRetriever, open_vector_index

VECTORS_ND = normalise_rows(np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32))


@dataclass
class NumberEncoder:
    """Looks a query up by its number, so that a test knows every vector."""

    dimension: int = 8

    def encode(self, texts, _kind):
        return VECTORS_ND[[int(text) for text in texts]]


def retriever_over(folder: Path, config) -> DenseRetriever:
    np.save(folder / VECTORS_FILE, VECTORS_ND)
    build_vector_index(folder / VECTORS_FILE, folder, config, seed=0)
    return DenseRetriever(NumberEncoder(), open_vector_index(folder, config))


def test_rows_are_those_of_the_vectors_best_first(tmp_path: Path) -> None:
    flat = retriever_over(tmp_path, FlatConfig(kind="flat"))
    for query, ranking in enumerate(flat.search([str(query) for query in range(30)], 5)):
        assert ranking.rows_K.tolist() == np.argsort(-(VECTORS_ND @ VECTORS_ND[query]))[:5].tolist()


def test_cells_with_too_few_vectors_give_fewer_hits_not_padding(tmp_path: Path) -> None:
    cells = IvfPqConfig(
        kind="ivf_pq",
        nlist=16,
        m=8,
        nbits=4,
        nprobe=1,
        train_rows=300,
        device="cpu",
        search_device="cpu",
    )
    [ranking] = retriever_over(tmp_path, cells).search(["0"], 300)
    assert 0 < len(ranking.rows_K) < 300
    assert ranking.rows_K.min() >= 0
    assert np.isfinite(ranking.scores_K).all()


def test_an_encoder_of_another_dimension_is_refused(tmp_path: Path) -> None:
    retriever = retriever_over(tmp_path, FlatConfig(kind="flat"))
    np.save(tmp_path / "wider.npy", np.pad(VECTORS_ND, ((0, 0), (0, 4))))
    build_vector_index(tmp_path / "wider.npy", tmp_path / "wider", FlatConfig(kind="flat"), seed=0)
    wider = open_vector_index(tmp_path / "wider", FlatConfig(kind="flat"))
    with pytest.raises(ArtifactError, match="8 dimensions and the index holds 12"):
        DenseRetriever(retriever.encoder, wider).search(["0"], 5)
