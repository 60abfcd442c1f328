from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.server.rerank import RerankerConfig
from deepsearch_rl.server.service import open_engine
from tests.search_servers import server_config
from tests.server.searchers import service_config
from tests.server.test_process import error_of
from tests.server.test_rerank import write_model


def reranker(folder: Path, max_tokens: int) -> RerankerConfig:
    return RerankerConfig(
        model=folder,
        depth=10,
        max_tokens=max_tokens,
        batch_tokens=256,
        device="cpu",
        dtype="float32",
    )


def test_a_corpus_without_sources_and_days_takes_no_filters(index_dir: Path) -> None:
    engine = open_engine(server_config(service_config(), index=index_dir))
    assert (engine.passages, engine.takes_filters) == (5, False)


@pytest.mark.slow
def test_a_reranker_that_cannot_read_max_tokens_is_refused_before_the_first_search(
    index_dir: Path, tmp_path: Path
) -> None:
    config = reranker(write_model(tmp_path, labels=1), max_tokens=65)
    with pytest.raises(ConfigError, match="cannot read 65 tokens"):
        open_engine(server_config(service_config(reranker=config), index=index_dir))


@pytest.mark.parametrize("options", [[], ["--index", "here", "--online", "brave"]])
def test_a_server_serves_one_thing(options: list[str]) -> None:
    assert error_of(options).startswith("error: say what to serve: --index ")
