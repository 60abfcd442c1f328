import socket
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.rerank import RerankerConfig
from deepsearch_rl.server.service import RetrievalApp, open_engine
from tests.search.server.searchers import service_config
from tests.search.server.test_process import error_of
from tests.search.test_rerank import write_model
from tests.search_servers import server_config


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


def test_an_online_search_is_served_like_an_index(server_url: str, tmp_path: Path) -> None:
    endpoint = {
        "name": "another server",
        "url": f"{server_url}/retrieve",
        "method": "POST",
        "body": {"queries": ["{query}"], "topk": "{top_k}"},
        "fields": {"results": "result.0", "text": "contents", "url": "id"},
    }
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(endpoint))
    engine = open_engine(server_config(service_config(online=tmp_path / "online.yaml")))
    [hits] = engine.searcher.find_hits(["lander comet"], 2)
    assert [hit.chunk.id for hit in hits] == ["philae-0", "rosetta-0"]
    assert (engine.passages, engine.takes_filters) == (20, False)


@pytest.mark.slow
def test_a_reranker_that_cannot_read_what_it_is_to_is_refused_before_the_first_search(
    index_dir: Path, tmp_path: Path
) -> None:
    config = reranker(write_model(tmp_path, labels=1), max_tokens=65)
    with pytest.raises(ConfigError, match="cannot read 65 tokens"):
        open_engine(server_config(service_config(reranker=config), index=index_dir))


@pytest.mark.parametrize("options", [[], ["--index", "here", "--online", "there"]])
def test_a_server_serves_one_thing(options: object) -> None:
    assert error_of(options).startswith("error: say what to serve: --index ")


def test_a_failing_endpoint_is_told_with_its_reason_and_a_retry(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/s?q={{query}}"
    description = {
        "name": "web",
        "url": url,
        "attempts": 1,
        "fields": {"results": "items", "text": "text"},
    }
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(description))
    config = server_config(service_config(online=tmp_path / "online.yaml"))

    app = RetrievalApp(open_engine(config), config.retrieval, Guard(token=None, loopback=False))
    with TestClient(app) as client:
        answer = client.post("/retrieve", json={"queries": ["comet"]})

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "'web'" in answer.json()["detail"]
