import math
import os

import pytest

from deepsearch_rl.errors import ArtifactError, ConfigError
from deepsearch_rl.records import Chunk, ChunkMetadata
from deepsearch_rl.retrieval.sparse.bm25 import Bm25Config, Bm25Index

CONFIG = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})
TEXTS = ["lander comet comet", "river country", "comet probe orbit river"]


def make_chunks(texts):
    where = ChunkMetadata(doc_id="d", doc_chunks=1, doc_chunk_id=0)
    return [Chunk(id=str(row), contents=text, metadata=where) for row, text in enumerate(texts)]


@pytest.fixture
def index(tmp_path):
    return Bm25Index.build(make_chunks(TEXTS), tmp_path / "bm25", CONFIG)


def lucene_bm25(term_count: int, length: int, mean_length: float, documents: int, containing: int) -> float:
    """Lucene's BM25 of one term (Kamphuis et al. 2020, table 1)."""
    idf = math.log(1 + (documents - containing + 0.5) / (containing + 0.5))
    return idf * term_count / (term_count + 0.9 * (1 - 0.4 + 0.4 * length / mean_length))


def test_scores_are_those_of_lucenes_formula(index):
    [ranking] = index.search(["comet"], 10)
    assert ranking.rows_K.tolist() == [0, 2]
    assert ranking.scores_K.tolist() == pytest.approx([lucene_bm25(2, 3, 3, 3, 2), lucene_bm25(1, 4, 3, 3, 2)])


def test_queries_are_analysed_as_documents_are(index):
    inflected, plain = index.search(["The LANDERS, and countries!", "lander country"], 10)
    assert inflected.rows_K.tolist() == plain.rows_K.tolist()
    assert set(plain.rows_K.tolist()) == {0, 1}


def test_a_corpus_of_stop_words_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        Bm25Index.build(make_chunks(["the of", "and ..."]), tmp_path, CONFIG)


def test_a_full_disk_is_named(tmp_path):
    (tmp_path / "scores.npy").symlink_to("/dev/full")
    with pytest.raises(ArtifactError, match="the disk is full"):
        Bm25Index.build(make_chunks(TEXTS), tmp_path, CONFIG)


@pytest.mark.parametrize("name", ["index.json", "keys.npy", "offsets.npy", "rows.npy", "scores.npy"])
def test_a_damaged_index_is_refused(tmp_path, name):
    Bm25Index.build(make_chunks(TEXTS), tmp_path / "bm25", CONFIG)
    path = tmp_path / "bm25" / name
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(ArtifactError):
        Bm25Index.open(tmp_path / "bm25")
    path.unlink()
    with pytest.raises(ArtifactError, match=name):
        Bm25Index.open(tmp_path / "bm25")
