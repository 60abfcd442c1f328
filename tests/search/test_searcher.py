import json
import shutil
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, UnknownNameError
from deepsearch_rl.search import rows as row_files
from deepsearch_rl.search.manifest import read_manifest, write_manifest
from deepsearch_rl.search.own_retriever import RETRIEVERS
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import open_index


def test_a_hit_is_the_chunk_on_its_row(index_dir: Path, chunks_path: Path) -> None:
    [[hit, *_]] = open_index(index_dir, chunks_path, "bm25").find_hits(["capital of Austria"], 3)
    assert (hit.row, hit.chunk.id, hit.chunk.title) == (2, "vienna-0", "Vienna")


def test_an_index_of_other_chunks_is_refused(
    index_dir: Path, chunks_path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(chunks_path.read_text().replace("2014", "2015"))
    with pytest.raises(ArtifactError, match="other chunks"):
        open_index(index_dir, other, "bm25")


def test_an_index_without_manifest_is_refused(chunks_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"manifest\.json does not exist"):
        open_index(tmp_path, chunks_path, "bm25")


def test_a_missing_chunk_file_is_named(index_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"gone\.jsonl does not exist"):
        open_index(index_dir, tmp_path / "gone.jsonl", "bm25")


def test_an_unknown_retriever_is_refused_with_the_nearest_name(
    index_dir: Path, chunks_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'hybrid'"):
        open_index(index_dir, chunks_path, "hybird")


def test_a_top_k_below_one_is_refused(index_dir: Path, chunks_path: Path) -> None:
    with pytest.raises(ValueError, match="top_k"):
        open_index(index_dir, chunks_path, "bm25").find_hits(["comet"], 0)


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_opening_an_index_parses_no_chunk_and_a_search_those_that_it_finds(
    index_dir: Path, retriever: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    parse = row_files.parse_chunk
    monkeypatch.setattr(
        row_files, "parse_chunk", lambda *line: (parsed.append(line[2]), parse(*line))[1]
    )
    searcher = open_index(index_dir, retriever=retriever)
    assert parsed == []
    [hits] = searcher.find_hits(["Danube"], 2)
    assert hits
    assert parsed == [hit.row + 1 for hit in hits]


def test_the_chunk_file_is_found_from_any_working_directory(
    index_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(open_index(index_dir).chunks) == 5


def test_a_filter_without_conditions_allows_everything(index_dir: Path) -> None:
    searcher = open_index(index_dir)
    [hits] = searcher.find_hits(["comet"], 5, Filter())
    assert {hit.chunk.title for hit in hits} == {"Philae", "Rosetta", "Comet"}
    assert searcher.find_hits(["comet"], 5, Filter(source="anyone")) == [[]]


def test_an_index_of_an_earlier_format_says_how_to_build_it_again(
    index_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(index_dir, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 1}))
    with pytest.raises(
        ArtifactError, match=r"has format 1, .* Build it with `deepsearch retrieve build`"
    ):
        open_index(tmp_path / "index")


@pytest.mark.parametrize("half", ["bm25", "dense"])
def test_a_hybrid_that_learnt_nothing_is_the_half_that_its_config_names(
    index_dir: Path, chunks_path: Path, tmp_path: Path, half: str
) -> None:
    copy = tmp_path / "index"
    shutil.copytree(index_dir, copy)
    built = read_manifest(copy)
    fusion = built.config.fusion.model_copy(update={"unlearned": half})
    write_manifest(
        copy,
        built.model_copy(update={"config": built.config.model_copy(update={"fusion": fusion})}),
    )
    queries = ["capital of Austria", "comet lander", "Danube"]
    hybrid, named = (
        open_index(copy, chunks_path, name).find_hits(queries, 5) for name in ("hybrid", half)
    )
    assert hybrid == named
    fused = open_index(index_dir, chunks_path, "hybrid").find_hits(queries, 5)
    assert fused != named
