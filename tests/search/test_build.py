import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError, RecordError, UnknownNameError
from deepsearch_rl.core.files import file_digests, only_writer, sha256_file
from deepsearch_rl.search.build import IndexSection, build_index, build_indexes
from deepsearch_rl.search.faiss_index import FaissConfig
from deepsearch_rl.search.flat_index import FlatConfig
from deepsearch_rl.search.manifest import IndexConfig, read_manifest

BUILD_AGAIN = """
import sys
from pathlib import Path
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
build_index(Path(sys.argv[1]), Path(sys.argv[2]), IndexConfig.model_validate_json(sys.argv[3]), seed=0)
"""


def test_the_manifest_tells_what_was_built(
    index_dir: Path, chunks_path: Path, index_config: IndexConfig
) -> None:
    manifest = read_manifest(index_dir)
    assert manifest.chunks_sha256 == sha256_file(chunks_path)
    assert (manifest.rows, manifest.dimension, manifest.seed, manifest.config) == (
        5,
        4,
        0,
        index_config,
    )
    assert manifest.sizes_bytes == {
        str(path.relative_to(index_dir)): path.stat().st_size
        for path in index_dir.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


@pytest.mark.slow
def test_another_process_builds_the_same_bytes(
    index_dir: Path, chunks_path: Path, index_config: IndexConfig
) -> None:
    command = [
        sys.executable,
        "-c",
        BUILD_AGAIN,
        str(chunks_path),
        str(index_dir.parent / "again"),
        index_config.model_dump_json(),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "77"})
    assert file_digests(index_dir.parent / "again") == file_digests(index_dir)


def test_a_build_that_fails_leaves_the_earlier_index(
    chunks_path: Path, index_config: IndexConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    build_index(chunks_path, folder, index_config, seed=0)
    before = file_digests(folder)
    monkeypatch.setattr(FlatConfig, "build", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_index(chunks_path, folder, index_config, seed=1)
    assert file_digests(folder) == before
    # The vectors need no second encoding
    assert {path.name for path in tmp_path.iterdir()} == {"index", ".index.work"}


def test_a_folder_that_holds_something_else_is_not_replaced(
    chunks_path: Path, index_config: IndexConfig, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "notes.txt").write_text("mine")
    for chunks, complaint in (
        (data / "notes.txt", "lies in"),
        (chunks_path, "neither an index nor an empty folder"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            build_index(chunks, data, index_config, seed=0)
    with pytest.raises(ConfigError, match="is a file"):
        build_index(chunks_path, tmp_path / "index", index_config, seed=0, work=data / "notes.txt")
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "notes.txt"]
    build_index(chunks_path, tmp_path / "index", index_config, seed=0, work=data)
    assert [path.name for path in data.rglob("*")] == ["notes.txt"]


def test_a_file_that_somebody_put_into_an_index_is_named_and_stays(
    chunks_path: Path, index_config: IndexConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    build_index(chunks_path, folder, index_config, seed=0)
    notes = folder / "rows" / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(ConfigError, match=r"no build wrote \(rows/notes\.txt\)"):
        build_index(chunks_path, folder, index_config, seed=1)
    assert notes.read_text() == "mine"
    assert read_manifest(folder).seed == 0


def test_an_empty_folder_and_an_index_are_replaced_also_behind_a_link(
    chunks_path: Path, index_config: IndexConfig, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "index").symlink_to(tmp_path / "disk")
    for seed in (0, 1):
        build_index(chunks_path, tmp_path / "index", index_config, seed=seed)
        assert read_manifest(tmp_path / "disk").seed == seed
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "index"}


def test_two_builds_do_not_share_a_work_folder(
    chunks_path: Path, index_config: IndexConfig, tmp_path: Path
) -> None:
    with (
        only_writer(tmp_path / "work"),
        pytest.raises(ConfigError, match=r"another process .* is making .*work"),
    ):
        build_index(chunks_path, tmp_path / "index", index_config, seed=0, work=tmp_path / "work")
    with pytest.raises(ConfigError, match="lies in the index folder"):
        build_index(
            chunks_path, tmp_path / "index", index_config, seed=0, work=tmp_path / "index" / "work"
        )


def test_an_empty_chunk_file_is_refused(index_config: IndexConfig, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ArtifactError, match=r"empty\.jsonl holds no chunks"):
        build_index(tmp_path / "empty.jsonl", tmp_path / "index", index_config, seed=0)
    assert not (tmp_path / "index").exists()


def test_a_malformed_chunk_names_file_line_and_field(
    chunks_path: Path, index_config: IndexConfig, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text(chunks_path.read_text() + '{"id": "x", "title": "t"}\n')
    with pytest.raises(RecordError, match=r"bad\.jsonl, line 6: .*neither 'contents' nor 'text'"):
        build_index(tmp_path / "bad.jsonl", tmp_path / "index", index_config, seed=0)


@pytest.fixture
def section(index_config: IndexConfig) -> IndexSection:
    quality = {"split": "val", "cutoffs": [1]}
    encoding = {"dtype": "float32", "block_rows": 4}
    added = {"corpus_vectors": {}, "encoding": encoding, "quality": quality, "threads": 1}
    return IndexSection.model_validate({**index_config.model_dump(), **added})


def test_every_corpus_gets_its_own_index_and_kind_of_vectors(
    chunks_path: Path, section: IndexSection, tmp_path: Path
) -> None:
    chunks_root = tmp_path / "chunks"
    chunks_root.mkdir()
    for name in ("one", "two"):
        (chunks_root / f"{name}.jsonl").write_bytes(chunks_path.read_bytes())
    cells = FaissConfig(kind="faiss", factory="IVF1,PQ1x2np")
    mixed = section.model_copy(update={"corpus_vectors": {"two": cells}})
    build_indexes(
        chunks_root, tmp_path / "index", mixed, seed=0, work=tmp_path / "work", questions={}
    )
    kinds = {
        name: read_manifest(tmp_path / "index" / name).config.vectors.kind
        for name in ("one", "two")
    }
    assert kinds == {"one": "flat", "two": "faiss"}


def test_vectors_for_an_unknown_corpus_are_refused(
    chunks_path: Path, section: IndexSection, tmp_path: Path
) -> None:
    misspelt = section.model_copy(update={"corpus_vectors": {"smal": section.vectors}})
    with pytest.raises(UnknownNameError, match="Did you mean 'small'"):
        build_indexes(
            chunks_path.parent,
            tmp_path / "index",
            misspelt,
            seed=0,
            work=tmp_path / "work",
            questions={},
        )


def test_a_folder_without_chunk_files_is_refused(section: IndexSection, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no chunk files"):
        build_indexes(
            tmp_path, tmp_path / "index", section, seed=0, work=tmp_path / "work", questions={}
        )
