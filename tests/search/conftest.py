"""A small corpus and its index for all tests of this folder."""

from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from tests.chunks import make_chunk
from tests.settings import INDEX

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
