import pytest

from deepsearch_rl.errors import ArtifactError, UnknownNameError
from deepsearch_rl.retrieval.searcher import open_index


def test_a_hit_is_the_chunk_on_its_row(index_dir, chunks_path):
    [[hit, *_]] = open_index(index_dir, chunks_path, "bm25").search(["capital of Austria"], 3)
    assert (hit.row, hit.chunk.id, hit.chunk.title) == (2, "vienna-0", "Vienna")


def test_an_index_of_other_chunks_is_refused(index_dir, chunks_path, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(chunks_path.read_text().replace("2014", "2015"))
    with pytest.raises(ArtifactError, match="other chunks"):
        open_index(index_dir, other, "bm25")


def test_an_index_without_manifest_is_refused(chunks_path, tmp_path):
    with pytest.raises(ArtifactError, match=r"manifest\.json does not exist"):
        open_index(tmp_path, chunks_path, "bm25")


def test_a_missing_chunk_file_is_named(index_dir, tmp_path):
    with pytest.raises(ArtifactError, match=r"gone\.jsonl does not exist"):
        open_index(index_dir, tmp_path / "gone.jsonl", "bm25")


def test_an_unknown_retriever_is_refused_with_the_nearest_name(index_dir, chunks_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'hybrid'"):
        open_index(index_dir, chunks_path, "hybird")


def test_a_top_k_below_one_is_refused(index_dir, chunks_path):
    with pytest.raises(ValueError, match="top_k"):
        open_index(index_dir, chunks_path, "bm25").search(["comet"], 0)
