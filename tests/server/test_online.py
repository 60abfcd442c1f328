"""Online searches: each provider against its documented answers, and what happens when one fails."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from deepsearch_rl.core.errors import (
    ConfigError,
    EndpointDownError,
    EndpointError,
    UnknownNameError,
)
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.search.searcher import Hit, QueriesFailedError
from deepsearch_rl.server.online import PROVIDERS, OnlineSearcher, open_online
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.service import make_app, open_engine
from tests.search_servers import in_thread, serve_app, server_config
from tests.server.searchers import service_config

KEY = "secret-key-1234567890"
URL = "https://example.org/philae"
HIT = {"title": "Philae\n lands", "url": URL}

# The answers of the providers' documentation, shortened to what a client reads
ANSWERS: dict[str, Any] = {
    "serpapi": {
        "search_metadata": {"status": "Success"},
        "organic_results": [
            {**HIT, "link": URL, "snippet": "On a comet.", "date": "2014-11-12", "source": "ESA"}
        ],
    },
    "google": {
        "kind": "customsearch#search",
        "items": [{**HIT, "link": URL, "snippet": "On a comet."}],
    },
    "brave": {
        "type": "search",
        "web": {
            "results": [{**HIT, "description": "On a comet.", "page_age": "2014-11-12T16:02:00"}]
        },
    },
    "searxng": {
        "query": "comet",
        "results": [{**HIT, "content": "On a comet.", "engine": "ESA"}],
        "unresponsive_engines": [],
    },
}
NOTHING: dict[str, Any] = {
    "serpapi": {
        "search_metadata": {"status": "Success"},
        "error": "Google hasn't returned any results for this query.",
    },
    "google": {"kind": "customsearch#search"},
    "brave": {"type": "search"},
    "searxng": {"results": [], "unresponsive_engines": []},
}
ASKED = {
    "serpapi": ("serpapi.com/search.json", {"engine": "google", "num": "7", "api_key": KEY}),
    "google": ("www.googleapis.com/customsearch/v1", {"num": "7", "key": KEY, "cx": "engine-1"}),
    "brave": ("api.search.brave.com/res/v1/web/search", {"count": "7"}),
    "searxng": ("search.example.org/search", {"format": "json"}),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPAPI_API_KEY", "GOOGLE_API_KEY", "BRAVE_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("GOOGLE_ENGINE_ID", "engine-1")
    monkeypatch.setenv("SEARXNG_URL", "https://search.example.org/")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


class Engine:
    """A provider's server: gives its replies in turn, the last one for ever."""

    def __init__(self, *replies: httpx.Response | Exception) -> None:
        self._replies = list(replies)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)


def searcher(engine: Engine, name: str = "brave") -> OnlineSearcher:
    return OnlineSearcher(name, PROVIDERS[name].search, httpx.MockTransport(engine))


def found(engine: Engine, name: str = "brave", query: str = "comet") -> list[Hit]:
    [hits] = searcher(engine, name).find_hits([query], 7)
    return hits


def answer(name: str = "brave") -> httpx.Response:
    return httpx.Response(200, json=ANSWERS[name])


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_providers_results_become_passages(name: str) -> None:
    engine = Engine(answer(name))
    [hit] = found(engine, name, "comet & co?")
    assert (hit.chunk.contents, hit.chunk.id) == ("Philae lands\nOn a comet.", URL)
    assert hit.score == 1.0
    assert hit.chunk.metadata.model_extra is not None
    assert hit.chunk.metadata.model_extra["url"] == URL

    place, parameters = ASKED[name]
    [request] = engine.requests
    assert f"{request.url.host}{request.url.path}" == place
    assert parameters.items() <= request.url.params.items()
    assert request.url.params["q"] == "comet & co?"
    if name == "brave":
        assert request.headers["X-Subscription-Token"] == KEY


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_search_that_finds_nothing_is_no_error(name: str) -> None:
    assert found(Engine(httpx.Response(200, json=NOTHING[name])), name) == []


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("searxng", {"results": [], "unresponsive_engines": [["google", "access denied"]]}),
        ("serpapi", {"search_metadata": {"status": "Error"}, "error": "access denied"}),
    ],
)
def test_a_failure_behind_status_200_is_an_error_and_not_an_empty_list(
    name: str, reply: object
) -> None:
    with pytest.raises(EndpointError, match="access denied"):
        found(Engine(httpx.Response(200, json=reply)), name)


def test_repeated_results_are_given_once_and_half_a_character_costs_no_answer() -> None:
    texts = ["One.", "One.", "Cut \ud83d"]
    results = [{**HIT, "description": text} for text in texts]
    content = json.dumps({"web": {"results": results}}).encode()
    hits = found(Engine(httpx.Response(200, content=content)))
    assert [hit.chunk.text for hit in hits] == ["One.", "Cut ?"]
    assert [hit.score for hit in hits] == [1.0, 1 / 3]
    assert hits[0].chunk.id != hits[1].chunk.id


def test_blank_queries_ask_nothing_and_filters_are_refused() -> None:
    engine = Engine(answer())
    assert searcher(engine).find_hits(["", " \n"], 3) == [[], []]
    assert engine.requests == []
    with pytest.raises(ConfigError, match="takes no filters"):
        searcher(engine).find_hits(["comet"], 3, Filter(source="ESA"))


def test_a_full_quota_and_a_failure_are_waited_for_as_long_as_the_server_says(
    waits: list[float],
) -> None:
    engine = Engine(
        httpx.Response(429, headers={"Retry-After": "7"}), httpx.Response(503), answer()
    )
    assert len(found(engine)) == 1
    assert waits == [7.0, 0.5]


@pytest.mark.parametrize(
    ("reply", "kind", "message", "requests"),
    [
        (httpx.Response(502, text="repair"), EndpointError, r"status 502, 'repair'.*3 attempts", 3),
        (httpx.ConnectError("refused"), EndpointDownError, r"connection failed \(refused\)", 3),
        (httpx.ReadError(""), EndpointError, r"connection failed \(ReadError\)", 3),
        (httpx.ReadTimeout(""), EndpointError, "no answer within 20 s", 3),
        (httpx.Response(401, text="who?"), EndpointDownError, "status 401.*Is its key right", 1),
        (httpx.Response(429, text="monthly quota"), EndpointDownError, "quota is out", 1),
        (httpx.Response(400, text="no"), EndpointError, "status 400, 'no'", 1),
        (httpx.Response(302, headers={"location": "/"}), EndpointError, "status 302", 1),
        (httpx.Response(200, text="<html>"), EndpointError, "cannot be used: JSONDecodeError", 1),
        (httpx.Response(200, json=[1]), EndpointError, "cannot be used: AttributeError", 1),
    ],
)
@pytest.mark.usefixtures("waits")
def test_every_failure_is_an_error_that_names_the_search(
    reply: httpx.Response | Exception, kind: type[Exception], message: str, requests: int
) -> None:
    engine = Engine(reply)
    with pytest.raises(EndpointError, match=f"online search brave: .*{message}") as raised:
        found(engine)
    assert type(raised.value) is kind
    assert len(engine.requests) == requests


@pytest.mark.usefixtures("waits")
def test_one_failing_query_fails_alone() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        is_bad = request.url.params["q"] == "bad"
        return httpx.Response(400) if is_bad else answer()

    search = OnlineSearcher("brave", PROVIDERS["brave"].search, httpx.MockTransport(reply))
    with pytest.raises(QueriesFailedError, match="status 400") as raised:
        search.find_hits(["bad", "good"], 3)
    [failure, hits] = raised.value.outcomes
    assert isinstance(failure, EndpointError)
    assert isinstance(hits, list)
    assert len(hits) == 1


@pytest.mark.usefixtures("waits")
def test_an_engine_that_is_down_is_not_asked_by_every_query() -> None:
    engine = Engine(httpx.Response(401))
    with pytest.raises(EndpointDownError, match="status 401"):
        searcher(engine).find_hits([str(number) for number in range(100)], 3)
    assert len(engine.requests) < 10


@pytest.mark.parametrize("name", ["serpapi", "google"])
@pytest.mark.usefixtures("waits")
def test_no_log_and_no_error_shows_the_key(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for reply in (httpx.Response(500, text=f"bad key {KEY}"), httpx.Response(200, text=KEY)):
        with pytest.raises(EndpointError) as raised:
            found(Engine(reply), name)
        assert KEY not in str(raised.value)
    assert KEY not in "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("deepsearch")
    )
    assert not any(record.name == "httpx" for record in caplog.records)


def test_a_missing_key_and_an_unknown_name_are_told_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BRAVE_API_KEY")
    with pytest.raises(ConfigError, match="BRAVE_API_KEY"):
        open_online("brave")
    with pytest.raises(UnknownNameError, match="brave, google, searxng, serpapi"):
        open_online("bing")


OWN = """
import os
from deepsearch_rl.server.online import WebPassage

def search(client, query, top_k):
    response = client.get(os.environ["OWN_URL"], params={"q": query})
    return [WebPassage(title=query, text=text) for text in response.raise_for_status().json()]
"""


@contextmanager
def loopback(reply: Callable[[], tuple[int, object]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = reply()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("name", ["searxng", "own"])
def test_an_online_search_is_served_like_an_index(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [(200, ["A lander."] if name == "own" else ANSWERS["searxng"]), (403, {})]
    online = name
    if name == "own":
        (tmp_path / "web.py").write_text(OWN)
        online = f"{tmp_path / 'web.py'}:search"

    with loopback(lambda: replies.pop(0)) as url:
        monkeypatch.setenv("OWN_URL", url)
        monkeypatch.setenv("SEARXNG_URL", url)
        config = service_config(online=online)
        app = make_app(open_engine(server_config(config)), config, Guard(None, loopback=True))
        with serve_app(app) as served:
            answers = [
                httpx.post(f"{served}/retrieve", json={"queries": [query], "return_scores": True})
                for query in ("Philae", "another")
            ]

    [[hit]] = answers[0].json()["result"]
    assert hit["document"]["contents"].startswith("Philae")
    assert (answers[1].status_code, answers[1].headers["retry-after"]) == (503, "1")
    assert "status 403" in answers[1].json()["detail"]
