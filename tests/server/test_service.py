"""The HTTP dialects of the retrieval server."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from deepsearch_rl.core.errors import RecordError
from deepsearch_rl.server.batching import SearchQueue
from deepsearch_rl.server.pages import PageFile
from deepsearch_rl.server.requests import (
    MAX_BODY_BYTES,
    MAX_QUERIES,
    MAX_QUERY_CHARS,
    MAX_URLS,
    Guard,
)
from deepsearch_rl.server.service import make_app
from tests.server.searchers import GatedSearcher, engine, open_searcher, service_config

OPEN = Guard(token=None, loopback=False)


def post(url: str, body: object) -> tuple[int, dict]:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


@contextlib.contextmanager
def serving(
    searcher: GatedSearcher, guard: Guard = OPEN, **settings: object
) -> Iterator[TestClient]:
    with TestClient(make_app(engine(searcher), service_config(**settings), guard)) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """A client of a server without pages."""
    with serving(open_searcher(), pages=None) as client:
        yield client


def test_scored_results_have_search_r1s_shape(server_url: str) -> None:
    status, body = post(
        f"{server_url}/retrieve",
        {"queries": ["lander", "Austria"], "topk": 1, "return_scores": True},
    )
    assert status == 200
    [[lander], [austria]] = body["result"]
    assert lander["score"] > 0
    assert austria["document"] == {
        "id": "vienna-0",
        "contents": "Vienna\nVienna is the capital of Austria, on the Danube.",
        "url": "vienna-0",
        "metadata": {"doc_id": "vienna", "doc_chunks": 1, "doc_chunk_id": 0},
    }


def test_results_without_scores_are_the_documents_themselves(server_url: str) -> None:
    _, body = post(
        f"{server_url}/retrieve", {"queries": ["Austria"], "topk": 1, "return_scores": False}
    )
    assert [document["id"] for document in body["result"][0]] == ["vienna-0"]


def test_a_repeated_request_is_answered_with_the_same_bytes(server_url: str) -> None:
    body = json.dumps({"queries": ["comet", "Danube"], "topk": 2, "return_scores": True}).encode()
    request = Request(f"{server_url}/retrieve", body, {"Content-Type": "application/json"})
    answers = [urlopen(request, timeout=10).read() for _ in range(2)]
    assert answers[0] == answers[1]


def test_the_servers_own_top_k_is_used_where_a_request_has_none(server_url: str) -> None:
    _, body = post(f"{server_url}/retrieve", {"queries": ["comet"], "topk": None})
    assert len(body["result"][0]) == 2


@pytest.mark.parametrize("top_k", [1000, 10**30])
def test_a_top_k_above_the_corpus_gives_what_matches_and_nothing_more(
    server_url: str, top_k: int
) -> None:
    _, body = post(f"{server_url}/retrieve", {"queries": ["comet", "zebra", ""], "topk": top_k})
    assert [len(hits) for hits in body["result"]] == [3, 0, 0]


def test_no_queries_give_no_results(server_url: str) -> None:
    assert post(f"{server_url}/retrieve", {"queries": []}) == (200, {"result": []})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"queries": ["a"], "topk": 0}, "topk"),
        ({"queries": ["a"], "topk": -3}, "topk"),
        ({"queries": ["a"], "topk": "3"}, "topk"),
        ({"queries": ["a"], "topk": 1.5}, "topk"),
        ({"queries": ["a"], "topk": [3]}, "topk"),
        ({"queries": ["a"] * 2000, "topk": 100}, "topk"),
        ({"queries": "a"}, "queries"),
        ({"queries": [1]}, "queries.0"),
        ({"queries": ["a", "x" * (MAX_QUERY_CHARS + 1)]}, "queries.1"),
        ({"queries": [""] * (MAX_QUERIES + 1)}, "queries"),
        ({}, "queries"),
        ([], "body"),
    ],
)
def test_a_request_that_does_not_fit_is_answered_422_and_names_the_field(
    client: TestClient, body: object, field: str
) -> None:
    answer = client.post("/retrieve", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(f"{field}: ")


@pytest.mark.parametrize("path", ["/retrieve", "/access", "/mcp", "/messages/?session_id=0"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "ping"}',
    ],
)
def test_a_body_that_is_not_json_is_the_clients_fault(
    client: TestClient, path: str, body: bytes
) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == {"/retrieve": 422, "/access": 404}.get(path, 400)


def test_a_lone_surrogate_in_a_query_is_refused(client: TestClient) -> None:
    answer = client.post("/retrieve", content=b'{"queries": ["\\ud800"]}')
    assert answer.status_code == 422


@pytest.mark.parametrize("path", ["/retrieve", "/mcp"])
def test_a_body_that_is_too_long_is_answered_413_whether_it_says_so_or_not(
    client: TestClient, path: str
) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b" " * 65536

    answers = [
        client.post(path, content=content) for content in (b" " * (MAX_BODY_BYTES + 1), parts())
    ]
    assert [answer.status_code for answer in answers] == [413, 413]


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", "/retrieve", "POST"), ("POST", "/healthz", "GET")]
)
def test_another_method_is_answered_405_with_the_right_one(
    client: TestClient, method: str, path: str, allowed: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


def test_an_unknown_route_is_answered_404(client: TestClient) -> None:
    answer = client.get("/search")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_access_finds_pages_by_either_spelling_of_their_url(server_url: str) -> None:
    urls = ["http://w/index.php?title=Vienna", "http://w/index.php/Vienna", "http://w/nowhere"]
    page = {"url": "http://w/index.php/Vienna", "contents": "A city.", "lang": "en"}
    assert post(f"{server_url}/access", {"urls": urls}) == (200, {"result": [page, page, None]})


def test_access_to_too_many_pages_is_answered_422(tmp_path: Path) -> None:
    (tmp_path / "pages.jsonl").write_text(json.dumps({"url": "u", "contents": "x"}))
    with serving(open_searcher(), pages=tmp_path / "pages.jsonl") as client:
        counts = (1, MAX_URLS, MAX_URLS + 1)
        statuses = [
            client.post("/access", json={"urls": ["u"] * count}).status_code for count in counts
        ]
    assert statuses == [200, 200, 422]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"urls": "u"}', "urls: "),
        (b'{"urls": ["u", 1]}', "urls.1: "),
        (b"{}", "urls: "),
        (b"[]", "body: "),
        (b"{", "body: "),
        (b"", "body: "),
        (b'{"urls": ["\\ud800"]}', "body: "),
    ],
)
def test_an_access_request_that_does_not_fit_is_answered_422_and_names_the_field(
    tmp_path: Path, body: bytes, detail: str
) -> None:
    (tmp_path / "pages.jsonl").write_text('{"url": "u", "contents": "c"}')
    with serving(open_searcher(), pages=tmp_path / "pages.jsonl") as client:
        answer = client.post("/access", content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)


def test_the_openapi_page_describes_the_routes(tmp_path: Path) -> None:
    (tmp_path / "pages.jsonl").write_text('{"url": "u", "contents": "c"}')
    with serving(open_searcher(), pages=tmp_path / "pages.jsonl") as client:
        schema = client.get("/openapi.json").json()
        assert client.get("/docs").headers["Content-Type"].startswith("text/html")
    assert set(schema["paths"]) == {"/retrieve", "/access", "/healthz", "/metrics"}
    body = schema["paths"]["/retrieve"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert set(body["properties"]) == {"queries", "topk", "return_scores"}


def test_access_without_pages_is_answered_404_with_the_reason(client: TestClient) -> None:
    answer = client.post("/access", json={"urls": ["https://example.org"]})
    assert answer.status_code == 404
    assert "no pages" in answer.json()["detail"]


def test_a_pages_file_without_contents_names_file_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "pages.jsonl").write_text('{"url": "http://w/"}\n')
    with pytest.raises(RecordError, match=r"pages\.jsonl, line 1: field 'contents'"):
        PageFile(tmp_path / "pages.jsonl")


def test_a_search_that_fails_is_answered_500_and_the_next_one_works(client: TestClient) -> None:
    failed = client.post("/retrieve", json={"queries": ["broken"]})
    assert failed.status_code == 500
    assert "secret" not in failed.json()["detail"]
    assert client.post("/retrieve", json={"queries": ["a"]}).status_code == 200


def test_a_fault_of_the_server_is_answered_500_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(SearchQueue, "answer", fail)
    with serving(open_searcher()) as client:
        answer = client.post("/retrieve", json={"queries": ["a"]})
    assert answer.status_code == 500
    assert "bug" not in answer.json()["detail"]


def test_the_figures_add_up() -> None:
    with serving(open_searcher()) as client:
        for queries in (["a", "b"], ["a"], ["broken"]):
            client.post("/retrieve", json={"queries": queries})
        client.get("/nowhere")
        shown = client.get("/metrics")
    assert shown.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(shown.text)
        for sample in family.samples
    }
    assert samples["deepsearch_requests_total", "/retrieve", "200"] == 2
    assert samples["deepsearch_requests_total", "/retrieve", "500"] == 1
    assert samples["deepsearch_requests_total", "404", "other"] == 1
    assert samples["deepsearch_request_seconds_count", "/retrieve"] == 3
    assert samples["deepsearch_cache_hits_total",] == 1
    assert samples["deepsearch_cache_misses_total",] == 3
    assert samples["deepsearch_batch_queries_sum",] == 2
    assert (
        samples["deepsearch_search_seconds_count",]
        == samples["deepsearch_batch_queries_count",]
        > 0
    )
    assert samples["deepsearch_search_failures_total",] == 1
    assert samples["deepsearch_queue_queries",] == 0


def test_a_server_that_stops_leaves_nothing_running() -> None:
    async def scenario() -> set[asyncio.Task[object]]:
        app = make_app(engine(open_searcher()), service_config(), OPEN)
        async with app.router.lifespan_context(app):
            assert len(asyncio.all_tasks()) > 1
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(scenario()) == set()
