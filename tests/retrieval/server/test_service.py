"""The HTTP dialect against a real server process."""

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from starlette.testclient import TestClient

from deepsearch_rl.errors import RecordError
from deepsearch_rl.retrieval.searcher import open_index
from deepsearch_rl.retrieval.server.batching import OverloadedError, SearchQueue
from deepsearch_rl.retrieval.server.service import RetrievalService, make_app, read_pages


def post(url: str, body: object) -> tuple[int, dict]:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def test_scored_results_have_search_r1s_shape(server_url):
    status, body = post(f"{server_url}/retrieve", {"queries": ["lander", "Austria"], "topk": 1, "return_scores": True})
    assert status == 200
    [[lander], [austria]] = body["result"]
    assert lander["score"] > 0
    assert austria["document"] == {
        "id": "vienna-0",
        "contents": "Vienna\nVienna is the capital of Austria, on the Danube.",
        "url": "vienna-0",
        "metadata": {"doc_id": "vienna", "doc_chunks": 1, "doc_chunk_id": 0},
    }


def test_results_without_scores_are_the_documents_themselves(server_url):
    _, body = post(f"{server_url}/retrieve", {"queries": ["Austria"], "topk": 1, "return_scores": False})
    assert [document["id"] for document in body["result"][0]] == ["vienna-0"]


def test_the_servers_own_top_k_is_used_where_a_request_has_none(server_url):
    _, body = post(f"{server_url}/retrieve", {"queries": ["comet"], "topk": None})
    assert len(body["result"][0]) == 2


def test_a_top_k_above_the_corpus_gives_what_matches_and_nothing_more(server_url):
    _, body = post(f"{server_url}/retrieve", {"queries": ["comet", "zebra", ""], "topk": 1000})
    assert [len(hits) for hits in body["result"]] == [3, 0, 0]


def test_no_queries_give_no_results(server_url):
    assert post(f"{server_url}/retrieve", {"queries": []}) == (200, {"result": []})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"queries": ["a"], "topk": 0}, "topk"),
        ({"queries": ["a"], "topk": -3}, "topk"),
        ({"queries": ["a"], "topk": "3"}, "topk"),
        ({"queries": "a"}, "queries"),
        ({"queries": [1]}, "queries.0"),
        ({}, "queries"),
        ([], "body"),
    ],
)
def test_a_request_that_does_not_fit_is_answered_422_and_names_the_field(server_url, body, field):
    status, answer = post(f"{server_url}/retrieve", body)
    assert status == 422
    assert answer["detail"].startswith(f"{field}: ")


def test_access_finds_pages_by_either_spelling_of_their_url(server_url):
    urls = ["http://w/index.php?title=Vienna", "http://w/index.php/Vienna", "http://w/nowhere"]
    page = {"url": "http://w/index.php/Vienna", "contents": "A city.", "lang": "en"}
    assert post(f"{server_url}/access", {"urls": urls}) == (200, {"result": [page, page, None]})


@pytest.fixture
def service_without_pages(index_dir, chunks_path) -> RetrievalService:
    return RetrievalService(SearchQueue(open_index(index_dir, chunks_path, "bm25"), 64), top_k=2, pages=None)


def test_access_without_pages_is_answered_404_with_the_reason(service_without_pages):
    with TestClient(make_app(service_without_pages, "127.0.0.1")) as client:
        answer = client.post("/access", json={"urls": ["https://example.org"]})
    assert answer.status_code == 404
    assert "no pages" in answer.json()["detail"]


def test_an_overloaded_server_says_when_to_come_back(service_without_pages, monkeypatch):
    async def refuse(*_):
        raise OverloadedError("64 queries are waiting")

    monkeypatch.setattr(SearchQueue, "search", refuse)
    with TestClient(make_app(service_without_pages, "127.0.0.1")) as client:
        answer = client.post("/retrieve", json={"queries": ["comet"]})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json() == {"detail": "64 queries are waiting"}


def test_a_pages_file_without_contents_names_file_line_and_field(tmp_path):
    (tmp_path / "pages.jsonl").write_text('{"url": "http://w/"}\n')
    with pytest.raises(RecordError, match=r"pages\.jsonl, line 1: field 'contents'"):
        read_pages(tmp_path / "pages.jsonl")
