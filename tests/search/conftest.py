"""A small corpus, its index, and one real server for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.server.launch import RetrievalConfig
from tests.chunks import make_chunk
from tests.search_servers import serve_index_here
from tests.settings import INDEX, RETRIEVAL

PASSAGES = {
    "Philae": "The lander Philae touched down on a comet in 2014.",
    "Rosetta": "The probe Rosetta carried the lander Philae to the comet.",
    "Vienna": "Vienna is the capital of Austria, on the Danube.",
    "Danube": "The river Danube flows through ten countries.",
    "Comet": "A comet is a small icy body.",
}


@pytest.fixture(scope="session")
def index_config() -> IndexConfig:
    return INDEX


@pytest.fixture(scope="session")
def chunks_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chunks") / "small.jsonl"
    write_jsonl(
        path,
        [
            make_chunk(f"{title}\n{text}", f"{title.lower()}-0", title.lower())
            for title, text in PASSAGES.items()
        ],
    )
    return path


@pytest.fixture(scope="session")
def index_dir(
    tmp_path_factory: pytest.TempPathFactory, chunks_path: Path, index_config: IndexConfig
) -> Path:
    folder = tmp_path_factory.mktemp("index") / "small"
    build_index(chunks_path, folder, index_config, seed=0)
    return folder


@pytest.fixture(scope="session")
def retrieval_config(tmp_path_factory: pytest.TempPathFactory) -> RetrievalConfig:
    pages = tmp_path_factory.mktemp("pages") / "pages.jsonl"
    pages.write_text('{"url": "http://w/index.php/Vienna", "contents": "A city.", "lang": "en"}\n')
    return RETRIEVAL.model_copy(update={"pages": pages})


@pytest.fixture(scope="session")
def server_url(
    index_dir: Path, chunks_path: Path, retrieval_config: RetrievalConfig
) -> Iterator[str]:
    with serve_index_here(index_dir, chunks_path, retrieval_config) as url:
        yield url
