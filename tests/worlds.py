"""Fixtures of the smoke profile's generated world: its params, questions, chunks, index and a retrieval server."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.data.chunking import ChunkConfig, chunk_corpora
from deepsearch_rl.data.download import DownloadConfig, download
from deepsearch_rl.search.build import IndexSection, build_index
from deepsearch_rl.server.launch import RetrievalConfig
from tests.conftest import ROOT
from tests.search_servers import serve_index_here
from tests.shared_folders import shared_folder


@dataclass(frozen=True, slots=True)
class World:
    """Questions to answer, and the index to search with its chunks."""

    questions: Path
    index: Path
    chunks: Path


@pytest.fixture(scope="session")
def smoke() -> Profile:
    """The params of the smoke profile, whose prompt is found from any working directory."""
    profile = load_profile(ROOT / "profiles" / "smoke" / "params.yaml")
    return profile.with_overrides({"agent.prompt": str(ROOT / profile.value("agent.prompt"))})


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, smoke: Profile) -> World:
    """Training questions, chunks and index of the in-domain world; all processes share them."""

    def make(data: Path) -> None:
        download(smoke.section("download", DownloadConfig), 0, data / "corpora", data / "questions")
        chunk_corpora(data / "corpora", data / "chunks", smoke.section("chunk", ChunkConfig))
        index = smoke.section("index", IndexSection).of("world")
        build_index(data / "chunks" / "world.jsonl", data / "index" / "world", index, 0)

    data = shared_folder(tmp_path_factory, "world", make)
    return World(
        questions=data / "questions" / "multihoprag" / "train.jsonl",
        index=data / "index" / "world",
        chunks=data / "chunks" / "world.jsonl",
    )


@pytest.fixture(scope="session")
def world_server(world: World, smoke: Profile) -> Iterator[str]:
    """The base URL of a retrieval server over the world."""
    config = smoke.section("retrieval", RetrievalConfig)
    with serve_index_here(world.index, world.chunks, config) as url:
        yield url
