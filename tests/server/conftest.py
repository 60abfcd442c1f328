"""A small corpus, its index, and one real server for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deepsearch_rl.server.config import RetrievalConfig
from tests.search.conftest import chunks_path, index_config, index_dir
from tests.search_servers import serve_index_here
from tests.settings import RETRIEVAL

__all__ = ["chunks_path", "index_config", "index_dir"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
