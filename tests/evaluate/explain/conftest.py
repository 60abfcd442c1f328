"""The planted corpus with its index, and the planted run."""

from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from tests.evaluate.explain.planted import chunks, planted, questions


@pytest.fixture(scope="session")
def bm25_config() -> IndexConfig:
    """BM25 alone, with the settings that `deepsearch retrieve build` has."""
    section = load_preset("retrieve").value("index")
    values = {name: section[name] for name in IndexConfig.model_fields}
    return IndexConfig.model_validate(values | {"encoder": None})


@pytest.fixture(scope="session")
def planted_folder(tmp_path_factory: pytest.TempPathFactory, bm25_config: IndexConfig) -> Path:
    """A folder with ``run.jsonl``, ``questions.jsonl``, ``corpus.jsonl`` and ``index``."""
    folder = tmp_path_factory.mktemp("planted")
    write_jsonl(folder / "corpus.jsonl", chunks())
    write_jsonl(folder / "questions.jsonl", questions().values())
    write_jsonl(folder / "run.jsonl", [case.rollout for case in planted()])
    build_index(folder / "corpus.jsonl", folder / "index", bm25_config, seed=0)
    return folder
