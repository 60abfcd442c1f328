import math

import pytest

from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.retrieval.sparse.bm25 import Bm25Config, Bm25Index

CONFIG = Bm25Config(k1=0.9, b=0.4)
TEXTS = ["lander comet comet", "river country", "comet probe orbit river"]


def lucene_bm25(term_count: int, length: int, mean_length: float, documents: int, containing: int) -> float:
    """Lucene's BM25 of one term (Kamphuis et al. 2020, table 1)."""
    idf = math.log(1 + (documents - containing + 0.5) / (containing + 0.5))
    return idf * term_count / (term_count + 0.9 * (1 - 0.4 + 0.4 * length / mean_length))


def test_scores_are_those_of_lucenes_formula():
    [ranking] = Bm25Index.build(TEXTS, CONFIG).search(["comet"], 10)
    assert ranking.rows_K.tolist() == [0, 2]
    assert ranking.scores_K.tolist() == pytest.approx([lucene_bm25(2, 3, 3, 3, 2), lucene_bm25(1, 4, 3, 3, 2)])


def test_queries_are_analysed_as_documents_are():
    index = Bm25Index.build(TEXTS, CONFIG)
    inflected, plain = index.search(["The LANDERS, and countries!", "lander country"], 10)
    assert inflected.rows_K.tolist() == plain.rows_K.tolist()
    assert set(plain.rows_K.tolist()) == {0, 1}


def test_a_loaded_index_ranks_as_the_saved_one(tmp_path):
    built = Bm25Index.build(TEXTS, CONFIG)
    built.save(tmp_path / "bm25")
    [before], [after] = (index.search(["comet river"], 3) for index in (built, Bm25Index.load(tmp_path / "bm25")))
    assert after.rows_K.tolist() == before.rows_K.tolist()
    assert after.scores_K.tolist() == before.scores_K.tolist()


def test_a_corpus_of_stop_words_is_refused():
    with pytest.raises(ConfigError):
        Bm25Index.build(["the of", "and ..."], CONFIG)


def test_a_full_disk_is_named(tmp_path):
    (tmp_path / "data.csc.index.npy").symlink_to("/dev/full")
    with pytest.raises(ArtifactError, match="is the disk full"):
        Bm25Index.build(TEXTS, CONFIG).save(tmp_path)


def test_a_damaged_index_is_refused(tmp_path):
    Bm25Index.build(TEXTS, CONFIG).save(tmp_path)
    (tmp_path / "data.csc.index.npy").write_bytes(b"")
    with pytest.raises(ArtifactError, match="build it again"):
        Bm25Index.load(tmp_path)
