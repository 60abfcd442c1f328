import numpy as np
import pytest

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.retrieval.encoders.tfidf_svd import TfidfSvdConfig, TfidfSvdEncoder

TEXTS = ["a lander on a comet", "the river Danube", "a comet and its probe", "Vienna on the Danube"]
SVD = TfidfSvdConfig(name="tfidf_svd", dimension=3, fit_rows=100, max_terms=100)


def test_tfidf_vectors_have_length_one_and_unknown_texts_length_zero():
    vectors_ND = TfidfSvdEncoder.fit(TEXTS, SVD, seed=0).encode([*TEXTS, "zebra", ""], "passage")
    assert vectors_ND.shape == (6, 3)
    assert vectors_ND.dtype == np.float32
    assert np.linalg.norm(vectors_ND, axis=1) == pytest.approx([1, 1, 1, 1, 0, 0], abs=1e-6)


def test_a_saved_tfidf_encoder_gives_the_same_vectors(tmp_path):
    fitted = TfidfSvdEncoder.fit(TEXTS, SVD, seed=0)
    fitted.save(tmp_path / "encoder")
    loaded = TfidfSvdEncoder.load(tmp_path / "encoder")
    assert np.array_equal(loaded.encode(["comet probe"], "query"), fitted.encode(["comet probe"], "query"))


def test_a_small_corpus_gets_fewer_dimensions_than_asked_for():
    wide = SVD.model_copy(update={"dimension": 100})
    assert TfidfSvdEncoder.fit(TEXTS, wide, seed=0).encode(["comet"], "query").shape == (1, 4)


def test_a_damaged_encoder_is_refused(tmp_path):
    TfidfSvdEncoder.fit(TEXTS, SVD, seed=0).save(tmp_path / "encoder")
    (tmp_path / "encoder" / "projection.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ArtifactError, match="build the index again"):
        TfidfSvdEncoder.load(tmp_path / "encoder")
