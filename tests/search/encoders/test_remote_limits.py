"""An embeddings endpoint that takes no more requests, or has no more money."""

from typing import Any

import pytest

from deepsearch_rl.core.errors import EndpointDownError
from deepsearch_rl.search.encoders.remote import RemoteEncoder
from deepsearch_rl.search.encoders.remote import RemoteEncoderConfig as EmbeddingsConfig
from tests.agent.conftest import ChatServer, response
from tests.limit_clock import LimitClock
from tests.spent_quotas import SPENT


@pytest.mark.parametrize("body", SPENT.values(), ids=SPENT)
def test_an_embeddings_endpoint_without_money_is_not_waited_for(
    chat_server: ChatServer, body: object
) -> None:
    chat_server.script.append(response(body, 429))
    with pytest.raises(EndpointDownError, match="answered 429"):
        embeddings_of(chat_server).encode(["a"], "query")
    assert len(chat_server.requests) == 1


def embeddings_of(server: ChatServer, **changes: Any) -> RemoteEncoder:
    values = {
        "base_url": server.url,
        "model": "m",
        "api_key_variable": None,
        "dimension": 1,
        "query_prefix": "",
    }
    values |= {
        "name": "remote",
        "passage_prefix": "",
        "max_characters": None,
        "batch_texts": 1,
        "concurrency": 1,
    }
    values |= {"timeout_s": 5.0, "retries": 2}
    return RemoteEncoder(EmbeddingsConfig.model_validate(values | changes))


@pytest.mark.slow
def test_an_embeddings_endpoint_that_takes_no_more_requests_is_waited_for(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepsearch_rl.core.retries.FIRST_CAPACITY_WAIT_S", 0.01)
    for _ in range(5):  # more than its attempts
        chat_server.script.append(response('{"error": {"message": "slow down"}}', 429))
    chat_server.script.append('{"data": [{"index": 0, "embedding": [1.0]}]}')
    assert embeddings_of(chat_server).encode(["a"], "query").tolist() == [[1.0]]


def test_embeddings_requests_of_a_process_share_a_limit(
    chat_server: ChatServer, limit_clock: LimitClock
) -> None:
    chat_server.reply = lambda _: '{"data": [{"index": 0, "embedding": [1.0]}]}'
    for _ in range(2):
        embeddings_of(chat_server, requests_per_minute=120, concurrency=8).encode(
            ["a"] * 7, "passage"
        )
    assert limit_clock.waited_s > 0.8
