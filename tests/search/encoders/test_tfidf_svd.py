from pathlib import Path

import numpy as np
import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.search.encoders.tfidf_svd import TfidfSvdConfig, TfidfSvdEncoder, sample_texts
from tests.chunks import make_chunks

TEXTS = ["a lander on a comet", "the river Danube", "a comet and its probe", "Vienna on the Danube"]
SVD = TfidfSvdConfig(name="tfidf_svd", dimension=3, fit_rows=100, max_terms=100)


def test_a_text_of_unknown_terms_has_the_zero_vector() -> None:
    encoder = TfidfSvdEncoder.fit(TEXTS, SVD, seed=0)
    assert encoder.encode(["zebra", "comet"], "passage").any(axis=1).tolist() == [False, True]


def test_a_saved_tfidf_encoder_gives_the_same_vectors(tmp_path: Path) -> None:
    fitted = TfidfSvdEncoder.fit(TEXTS, SVD, seed=0)
    fitted.save(tmp_path / "encoder")
    loaded = TfidfSvdEncoder.load(tmp_path / "encoder")
    assert np.array_equal(
        loaded.encode(["comet probe"], "query"), fitted.encode(["comet probe"], "query")
    )


def test_a_small_corpus_gets_fewer_dimensions_than_asked_for() -> None:
    wide = SVD.model_copy(update={"dimension": 100})
    assert TfidfSvdEncoder.fit(TEXTS, wide, seed=0).encode(["comet"], "query").shape == (1, 4)


def test_a_damaged_encoder_is_refused(tmp_path: Path) -> None:
    TfidfSvdEncoder.fit(TEXTS, SVD, seed=0).save(tmp_path / "encoder")
    (tmp_path / "encoder" / "projection.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(ArtifactError, match="build the index again"):
        TfidfSvdEncoder.load(tmp_path / "encoder")


def test_rare_terms_beyond_the_bound_are_not_known() -> None:
    # comet and danub occur twice, all other terms once
    encoder = TfidfSvdEncoder.fit(TEXTS, SVD.model_copy(update={"max_terms": 2}), seed=0)
    assert encoder.encode(["lander probe river Vienna", "comet", "Danube"], "query").any(
        axis=1
    ).tolist() == [
        False,
        True,
        True,
    ]


def test_a_corpus_below_the_bound_is_learnt_from_whole_and_a_larger_one_from_a_drawn_part() -> None:
    chunks = make_chunks([f"text number{row}" for row in range(50)])
    everything = [chunk.contents for chunk in chunks]
    assert list(sample_texts(chunks, 50, seed=0)) == everything
    drawn = list(sample_texts(chunks, 10, seed=0))
    assert drawn == list(sample_texts(chunks, 10, seed=0)) != list(sample_texts(chunks, 10, seed=1))
    assert len(set(drawn)) == 10
    assert [text for text in everything if text in drawn] == drawn


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="two terms at least; the chunks that it read hold 0"):
        TfidfSvdEncoder.fit(["the of and", ""], SVD, seed=0)


@pytest.mark.parametrize(("texts", "max_terms"), [(["comet", "the comet"], 100), (TEXTS, 1)])
def test_a_single_known_term_is_refused(texts: list[str], max_terms: int) -> None:
    with pytest.raises(ConfigError, match="two terms at least"):
        TfidfSvdEncoder.fit(texts, SVD.model_copy(update={"max_terms": max_terms}), seed=0)
