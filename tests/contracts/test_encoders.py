"""What every encoder promises, whichever it is; ``search/encoders/encoder.py`` says it in words."""

import numpy as np
import pytest

from deepsearch_rl.search.encoders.encoder import Encoder
from deepsearch_rl.search.encoders.tfidf_svd import TfidfSvdConfig
from tests.chunks import make_chunks
from tests.search.encoders.folders import encoder_config, write_bert

TEXTS = [
    "comet",
    "a lander on a river on a comet on a river",
    "river city",
    "the probes on the city",
]
BLANK = ["", " \n"]


@pytest.fixture(scope="module", params=["tfidf_svd", "sentence_transformers"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tmp_path_factory.mktemp("encoder")
    if request.param == "tfidf_svd":
        config = TfidfSvdConfig(name="tfidf_svd", dimension=3, fit_rows=100, max_terms=100)
    else:
        config = encoder_config(write_bert(folder / "bert"))

    config.prepare(make_chunks(TEXTS), folder / "learnt", seed=0)
    return config.open(folder / "learnt")


def test_a_text_has_a_vector_of_length_one_and_a_blank_text_the_zero_vector(
    encoder: Encoder,
) -> None:
    vectors_ND = encoder.encode([*TEXTS, *BLANK], "passage")
    assert vectors_ND.dtype == np.float32
    assert vectors_ND.shape == (len(TEXTS) + len(BLANK), encoder.dimension)
    assert np.linalg.norm(vectors_ND, axis=1) == pytest.approx(
        [1] * len(TEXTS) + [0] * len(BLANK), abs=1e-5
    )


def test_a_vector_does_not_depend_on_the_texts_beside_it(encoder: Encoder) -> None:
    together_ND = encoder.encode(TEXTS, "query")
    alone_ND = np.vstack([encoder.encode([text], "query") for text in TEXTS])
    np.testing.assert_allclose(together_ND, alone_ND, atol=1e-5)
    assert np.linalg.matrix_rank(together_ND, tol=0.01) > 1, "the texts have different vectors"


def test_any_unicode_is_encoded(encoder: Encoder) -> None:
    texts = [
        "Žižkov 🚀 彗星 comet",
        "half a pair \ud83d of river",
        "\x00\u202e comet",
        "e\u0301" * 500 + " city",
    ]
    assert np.isfinite(encoder.encode(texts, "query")).all()


def test_no_texts_give_no_vectors(encoder: Encoder) -> None:
    assert encoder.encode([], "query").shape == (0, encoder.dimension)
