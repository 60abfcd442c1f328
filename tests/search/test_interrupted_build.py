"""Builds that are killed, that meet another one, or that run out of disk; the killed ones are real processes."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import file_digests
from deepsearch_rl.search import build, encoding
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.flat_index import FlatConfig
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.searcher import open_index

BUILD = """
import os, signal, sys
from pathlib import Path
from typing import Any
from deepsearch_rl.search.bm25.builtin import Bm25Index
from deepsearch_rl.search import build
from deepsearch_rl.search import manifest
from deepsearch_rl.search import encoding
from deepsearch_rl.search.flat_index import FlatConfig
from deepsearch_rl.search.manifest import IndexConfig

chunks, index, config, module, function, calls = sys.argv[1:]
modules = {"build": build, "encoding": encoding, "manifest": manifest}
holder = {**modules, "Bm25Index": Bm25Index, "FlatConfig": FlatConfig}[module]
original, left = getattr(holder, function), int(calls)

def stop_at(*args, **kwargs):
    global left
    left -= 1
    if left < 0:
        print("here", flush=True)
        sys.stdin.read()  # until the test kills this process, or closes the pipe
    return original(*args, **kwargs)

setattr(holder, function, stop_at)
build.build_index(Path(chunks), Path(index), IndexConfig.model_validate_json(config), seed=0)
"""
POINTS = (
    ("encoding", "write_rows", 1),
    *(
        pytest.param(point, marks=pytest.mark.nightly)
        for point in (
            ("build", "write_rows", 0),
            ("Bm25Index", "build", 0),
            ("build", "encode_to_file", 0),
            ("FlatConfig", "build", 0),
            ("manifest", "write_manifest", 0),
        )
    ),
)
"""Where a build is stopped: before the call of a function, after so many calls of it."""


@pytest.fixture(scope="module")
def config(index_config: IndexConfig) -> IndexConfig:
    """Three blocks of chunks to encode."""
    return index_config.model_copy(
        update={"encoding": index_config.encoding.model_copy(update={"block_rows": 2})}
    )


@pytest.fixture(scope="module")
def undisturbed(chunks_path: Path, config: IndexConfig) -> dict[str, str]:
    """What every build below must come to; all lie as deep, because the manifest holds the way to the chunks."""
    build_index(chunks_path, chunks_path.parent / "undisturbed", config, seed=0)
    return file_digests(chunks_path.parent / "undisturbed")


def start_build(
    chunks: Path, index: Path, config: IndexConfig, point: tuple[str, str, int]
) -> subprocess.Popen[str]:
    """A build in a process of its own, which waits at ``point``."""
    command = [
        sys.executable,
        "-c",
        BUILD,
        str(chunks),
        str(index),
        config.model_dump_json(),
        *map(str, point),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "here\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_a_killed_build_leaves_nothing_that_opens_and_its_rerun_the_same_bytes(
    chunks_path: Path,
    config: IndexConfig,
    undisturbed: dict[str, str],
    point: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = chunks_path.parent / "-".join(map(str, point))
    with start_build(chunks_path, index, config, point) as process:
        process.send_signal(signal.SIGKILL)
    with pytest.raises(ArtifactError, match="its build did not end"):
        open_index(index)
    encoded: list[int] = []
    original = encoding.write_rows
    monkeypatch.setattr(
        encoding,
        "write_rows",
        lambda path, start, *rest: (encoded.append(start), original(path, start, *rest)),
    )
    build_index(chunks_path, index, config, seed=0)
    assert file_digests(index) == undisturbed
    done_before = {
        "encoding-write_rows-1": [2, 4],
        "FlatConfig-build-0": [],
        "manifest-write_manifest-0": [],
    }
    assert encoded == done_before.get(index.name, [0, 2, 4])
    assert [path.name for path in index.parent.glob(f".{index.name}.*")] == []


@pytest.mark.nightly
def test_of_two_builds_into_one_folder_one_wins_and_the_other_is_told(
    chunks_path: Path, config: IndexConfig, undisturbed: dict[str, str]
) -> None:
    index = chunks_path.parent / "contested"
    with start_build(chunks_path, index, config, ("Bm25Index", "build", 0)) as first:
        with pytest.raises(
            ConfigError, match=rf"another process \(pid {first.pid}\) is making .*contested"
        ):
            build_index(chunks_path, index, config, seed=0)
        assert first.stdin
        first.stdin.close()
    assert first.returncode == 0
    assert file_digests(index) == undisturbed


def test_work_of_other_chunks_is_not_continued(
    chunks_path: Path,
    config: IndexConfig,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = tmp_path / "small.jsonl"
    changed.write_text(chunks_path.read_text().replace("2014", "2015"))
    index = tmp_path / "index"
    with monkeypatch.context() as patch:
        patch.setattr(FlatConfig, "build", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_index(changed, index, config, seed=0)

    changed.write_bytes(chunks_path.read_bytes())
    build_index(changed, index, config, seed=0)
    assert file_digests(index) == undisturbed


def fill_the_disk(_chunks_path: Path, folder: Path) -> int:
    folder.mkdir()
    (folder / "full").symlink_to("/dev/full")
    return (folder / "full").write_bytes(b"more than fits")


def test_a_full_disk_is_named_and_leaves_the_earlier_index(
    chunks_path: Path, config: IndexConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(chunks_path, tmp_path / "index", config, seed=0)
    before = file_digests(tmp_path / "index")
    monkeypatch.setattr(build, "write_rows", fill_the_disk)
    with pytest.raises(ArtifactError, match="the disk is full"):
        build_index(chunks_path, tmp_path / "index", config, seed=1)
    assert file_digests(tmp_path / "index") == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_chunks_that_change_during_a_build_are_noticed(
    chunks_path: Path, config: IndexConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = tmp_path / "small.jsonl"
    chunks.write_bytes(chunks_path.read_bytes())

    def change(*arguments: Any) -> None:
        build_vectors(*arguments)
        chunks.write_text(chunks.read_text() + '{"id": "late", "contents": "too late"}\n')

    build_vectors = FlatConfig.build
    monkeypatch.setattr(FlatConfig, "build", change)
    with pytest.raises(ArtifactError, match="was changed while it was being indexed"):
        build_index(chunks, tmp_path / "index", config, seed=0)
    assert not (tmp_path / "index").exists()
