"""Online search against an endpoint on loopback: what is asked, what is made of the answer, and every way to fail."""

import json
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError, EndpointDownError, EndpointError
from deepsearch_rl.search.rows import Filter
from deepsearch_rl.server.online.endpoint import (
    OnlineConfig,
    SearchEndpoint,
    read_online_config,
)
from deepsearch_rl.server.online.searcher import OnlineSearcher, open_online
from tests.search.online.loopback import Endpoint, Reply, as_json

KEY = "sk/secret+key-1234567890"
RESULTS = [
    {
        "title": "Philae\nlands",
        "snippet": "On a comet.",
        "link": "https://a.example/1",
        "rank": 0.5,
        "age": "2014-11-12",
    },
    {
        "title": "Rosetta",
        "snippet": ["An orbiter.", "Launched 2004."],
        "link": "https://a.example/2",
        "rank": 0.9,
    },
]
FIELDS = {"results": "web.items", "title": "title", "text": "snippet", "url": "link"}


@pytest.fixture
def endpoint(endpoint: Endpoint) -> Endpoint:
    """One that finds both results."""
    endpoint.replies = [as_json({"web": {"items": RESULTS}})]
    return endpoint


@pytest.fixture
def searching(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OnlineSearcher]:
    def make(**changes: object) -> OnlineSearcher:
        values = {
            "name": "test web",
            "url": f"{endpoint.url}/s?q={{query}}&n={{top_k}}",
            "fields": FIELDS,
        } | changes
        config = OnlineConfig.model_validate(values)
        waits: list[float] = []
        monkeypatch.setattr("time.sleep", waits.append)
        found = OnlineSearcher(SearchEndpoint(config, KEY if config.api_key_variable else None))
        found.waits = waits  # type: ignore[attr-defined]
        return found

    return make


def test_results_become_hits_in_the_endpoints_order(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    [hits] = searching(fields=FIELDS | {"metadata": {"published_at": "age"}}).find_hits(
        ["comet & co?"], 5
    )
    assert [hit.chunk.contents for hit in hits] == [
        "Philae lands\nOn a comet.",
        "Rosetta\nAn orbiter.\nLaunched 2004.",
    ]
    assert [(hit.row, hit.score, hit.chunk.id) for hit in hits] == [
        (0, 1.0, "https://a.example/1"),
        (1, 0.5, "https://a.example/2"),
    ]
    assert hits[0].chunk.metadata.model_extra == {
        "url": "https://a.example/1",
        "published_at": "2014-11-12",
    }
    assert hits[1].chunk.metadata.model_extra == {"url": "https://a.example/2"}
    assert parse_qs(urlsplit(endpoint.asked[0][0]).query) == {"q": ["comet & co?"], "n": ["5"]}


def test_half_of_a_character_at_the_end_of_an_excerpt_costs_no_answer(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    excerpt = "A \\ud83d \U0001f600 of \ud83d"
    result = {**RESULTS[0], "snippet": excerpt}
    endpoint.replies = [as_json({"web": {"items": [result, RESULTS[1]]}})]
    [hits] = searching().find_hits(["comet"], 5)
    assert [hit.chunk.text for hit in hits] == [
        "A \\ud83d \U0001f600 of ?",
        "An orbiter.\nLaunched 2004.",
    ]


def test_scores_decide_the_order_where_there_are_any(
    searching: Callable[..., OnlineSearcher],
) -> None:
    [hits] = searching(fields=FIELDS | {"score": "rank"}).find_hits(["comet"], 1)
    assert [(hit.chunk.title, hit.score) for hit in hits] == [("Rosetta", 0.9)]


def test_a_post_fills_its_body_and_a_query_is_never_a_template(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    body = {"query": "{query}", "max": "{top_k}", "nested": [{"about": "on {query}"}], "raw": False}
    searcher = searching(
        method="POST",
        url=f"{endpoint.url}/p",
        body=body,
        headers={"Authorization": "Bearer {key}"},
        api_key_variable="K",
    )
    searcher.find_hits(["{key} {top_k}"], 3)
    [(path, headers, sent)] = endpoint.asked
    assert path == "/p"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert json.loads(sent) == {
        "query": "{key} {top_k}", "max": 3, "nested": [{"about": "on {key} {top_k}"}], "raw": False,
    }  # fmt: skip


def test_no_more_is_asked_for_than_the_endpoint_gives(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    searching(max_results=10).find_hits(["comet"], 500)
    assert endpoint.asked[0][0].endswith("n=10")


def test_blank_queries_and_no_queries_ask_nothing(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    searcher = searching()
    assert searcher.find_hits([], 3) == []
    assert searcher.find_hits(["", " \n"], 3) == [[], []]
    assert endpoint.asked == []


def test_repeated_results_are_given_once_and_ids_differ(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    same_url = RESULTS[0] | {"snippet": "Another passage."}
    endpoint.replies = [as_json({"web": {"items": [RESULTS[0], RESULTS[0], same_url]}})]
    [hits] = searching().find_hits(["comet"], 5)
    assert [hit.chunk.text for hit in hits] == ["On a comet.", "Another passage."]
    assert len({hit.chunk.id for hit in hits}) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"items": RESULTS}, r"results path 'web\.items' leads nowhere; the answer has 'items'"),
        ({"web": {"items": {"a": 1}}}, r"results path 'web\.items' is no list but an object"),
        ([1], r"leads nowhere; the answer is a list"),
        ({"web": {"items": [{"title": "T", "link": "u"}]}}, r"result 0 has nothing at text path 'snippet'; it has 't"),
        ({"web": {"items": [RESULTS[0], {"title": 3, "snippet": "x", "link": "u"}]}}, r"result 1: title .* a number"),
        ({"web": {"items": ["x"]}}, r"result 0 has nothing at url path 'link'; it is text"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_as_the_config_says_is_an_error_that_names_the_path(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher], answer: object, message: str
) -> None:
    endpoint.replies = [as_json(answer)]
    with pytest.raises(EndpointError, match=message):
        searching().find_hits(["comet"], 3)


def test_what_may_be_missing_may_be_missing(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    fields = FIELDS | {"optional": ["text", "url"], "results_optional": True}
    endpoint.replies = [
        as_json({"web": {"items": [{"title": "T"}]}}),
        as_json({"nothing": "found"}),
    ]
    searcher = searching(fields=fields)
    [[hit]] = searcher.find_hits(["comet"], 3)
    assert hit.chunk.contents == "T\n"
    assert len(hit.chunk.id) == 16
    assert searcher.find_hits(["comet"], 3) == [[]]


def test_too_many_requests_are_tried_again_after_as_long_as_was_asked(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    endpoint.replies = [as_json({}, 429, Retry_After="7"), as_json({}, 503), endpoint.replies[0]]
    searcher = searching()
    assert len(searcher.find_hits(["comet"], 3)[0]) == 2
    assert searcher.waits == [7.0, 1.0]


def test_a_longer_wait_than_allowed_and_a_last_failure_are_errors(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    endpoint.replies = [as_json({}, 429, Retry_After="3600")]
    with pytest.raises(
        EndpointDownError, match="asks to wait 3600 s, longer than max_wait_s allows"
    ):
        searching().find_hits(["comet"], 3)
    endpoint.replies = [Reply(b"down for repair", 502)]
    down = r"'test web' at http://127.*/s: status 502, 'down for repair'.*3 attempts"
    for queries, kind in ((["comet"], EndpointError), (["comet", "river"], EndpointDownError)):
        with pytest.raises(EndpointError, match=down) as raised:
            searching().find_hits(queries, 3)
        assert type(raised.value) is kind  # one failure may be about the query


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(b"{]"), "something that is not JSON: '{]'"),
        (Reply(b"<html><body>Log in</body></html>"), "an HTML page: '<html>"),
        (Reply(b""), "not JSON"),
        (Reply(b"[" * 100_000), "not JSON"),
        (Reply(b'"' + b"x" * 3_000_000 + b'"'), "longer than max_response_bytes, 100000"),
        (Reply(b"unknown parameter", 400), "status 400, 'unknown parameter'"),
        (Reply(b"", 302, {"location": "http://elsewhere.example/s"}), "redirect to 'http://elsewhere.example/s'"),
        (Reply(b"", 302, {"location": "http://bob:hidden@elsewhere.example/s"}), r"to 'http://\*{3}@elsewhere"),
        (Reply(b"moved", 307, {"location": "/new?q=comet"}), "status 307, a redirect to '/new'; correct the url"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_with_an_answer_is_an_error_and_is_not_asked_again(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher], reply: object, message: str
) -> None:
    endpoint.replies = [reply]
    with pytest.raises(EndpointError, match=message) as raised:
        searching(max_response_bytes=100_000).find_hits(["comet"], 3)
    assert type(raised.value) is EndpointError  # another query may well be answered
    assert len(endpoint.asked) == 1


def test_an_endpoint_that_hangs_or_is_not_there_is_an_error(
    searching: Callable[..., OnlineSearcher],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/s?q={{query}}"
        with pytest.raises(EndpointError, match=r"no answer within 0\.05 s.*2 attempts"):
            searching(url=url, timeout_s=0.05, attempts=2).find_hits(["comet"], 3)
    with pytest.raises(EndpointDownError, match=r"the connection failed.*3 attempts"):
        searching(url=url).find_hits(["comet"], 3)


def test_a_lost_connection_without_a_message_is_named_by_its_kind(
    searching: Callable[..., OnlineSearcher],
) -> None:
    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("", request=request)

    searcher = searching()
    searcher._endpoint._transport = httpx.MockTransport(lose)
    with pytest.raises(EndpointError, match=r"the connection failed \(ReadError\)"):
        searcher.find_hits(["comet"], 3)


def test_one_failing_query_fails_the_search_and_leaves_nothing_empty(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    endpoint.replies = [endpoint.replies[0], Reply(b"no", 400)]
    with pytest.raises(EndpointError, match="status 400"):
        searching(max_concurrency=1).find_hits(["a", "b"], 3)


def test_requests_go_out_together_up_to_the_bound(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    endpoint.gate = threading.Barrier(3)  # nobody is answered before three are there
    found = searching(max_concurrency=3).find_hits([f"q{number}" for number in range(6)], 3)
    assert [len(hits) for hits in found] == [2] * 6
    assert endpoint.most_at_once == 3


def test_the_key_is_sent_and_never_shown(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echoing = [
        as_json({"message": f"bad key {KEY}"}, 500),
        Reply(f"<html>{KEY} sk%2Fsecret%2Bkey-1234567890</html>".encode()),
        as_json(
            {
                "web": {
                    "items": [
                        {"title": KEY, "snippet": f"key={KEY}", "link": f"https://x/?k={KEY}"}
                    ]
                }
            }
        ),
        Reply(f"{'x' * 190}{KEY}".encode(), 401),
    ]
    url = f"{endpoint.url}/s?q={{query}}&api_key={{key}}"
    searcher = searching(url=url, api_key_variable="SEARCH_KEY", attempts=2)
    endpoint.replies = echoing
    shown = [repr(searcher), repr(searcher._endpoint)]
    with pytest.raises(EndpointError, match="HTML page") as html:
        searcher.find_hits(["comet"], 3)
    [[hit]] = searcher.find_hits(["comet"], 3)
    with pytest.raises(EndpointError, match="is the key in SEARCH_KEY right") as refused:
        searcher.find_hits(["comet"], 3)
    assert all(parse_qs(urlsplit(path).query)["api_key"] == [KEY] for path, _, _ in endpoint.asked)
    shown += [hit.chunk.model_dump_json(), caplog.text]
    for error in (html.value, refused.value):
        cause: BaseException | None = error
        while cause:
            shown += [str(cause), repr(cause)]
            cause = cause.__cause__ or cause.__context__
    assert not [text for text in shown if "sk/s" in text or "secret" in text]
    assert "***" in hit.chunk.contents


def test_no_part_of_the_key_is_shown_where_a_redirects_address_is_cut(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher]
) -> None:
    endpoint.replies = [
        Reply(b"", 301, {"location": f"https://elsewhere.example/{'x' * 165}{KEY}/s"})
    ]
    searcher = searching(
        url=f"{endpoint.url}/s?q={{query}}&api_key={{key}}", api_key_variable="SEARCH_KEY"
    )
    with pytest.raises(EndpointError, match="a redirect to 'https://elsewhere") as error:
        searcher.find_hits(["comet"], 3)
    assert "sk/s" not in str(error.value)


def test_filters_are_refused(searching: Callable[..., OnlineSearcher]) -> None:
    with pytest.raises(ConfigError, match="takes no filters"):
        searching().find_hits(["comet"], 3, Filter(source="x"))
    assert len(searching().find_hits(["comet"], 3, Filter())[0]) == 2


def write_config(folder: Path, **changes: object) -> Path:
    path = folder / "online.yaml"
    values = {
        "name": "web",
        "url": "https://a.example/s?q={query}&key={key}",
        "api_key_variable": "SEARCH_KEY",
    }
    path.write_text(json.dumps(values | {"fields": FIELDS} | changes))  # JSON is YAML
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "ftp://a.example/{query}{key}"}, "must begin with http"),
        ({"url": "https://{query}.example/{key}"}, "a host without placeholders"),
        ({"url": "https://a.example/s?key={key}"}, "hold {query}"),
        ({"url": "https://a.example/s?q={query}"}, "go together"),
        ({"url": "https://a.example/s?q={query}&q={key}&n={count}"}, "unknown placeholder {count}"),
        ({"url": "http://a.example/s?q={query}&key={key}"}, "must not travel over plain http"),
        ({"body": {"q": 1}}, "a GET has no body"),
        ({"fields": FIELDS | {"text": "a..b"}}, r"online\.yaml, fields\.text: "),
        ({"field": {}}, r"online\.yaml, field: Extra inputs"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_the_reason(
    tmp_path: Path, changes: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_online_config(write_config(tmp_path, **changes))


def test_a_config_file_that_is_missing_or_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"online\.yaml cannot be read"):
        read_online_config(tmp_path / "online.yaml")
    (tmp_path / "online.yaml").write_text("a: [")
    with pytest.raises(ArtifactError, match="cannot be read as YAML"):
        read_online_config(tmp_path / "online.yaml")


def test_a_missing_or_damaged_key_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path)
    monkeypatch.delenv("SEARCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="set the environment variable SEARCH_KEY"):
        open_online(path)
    monkeypatch.setenv("SEARCH_KEY", "sec\nret")
    with pytest.raises(ConfigError, match=r"SEARCH_KEY .* holds spaces") as error:
        open_online(path)
    assert "ret" not in str(error.value).replace("control", "").replace("environment", "")
    monkeypatch.setenv("SEARCH_KEY", f" {KEY}\n")
    assert open_online(path)._endpoint._key == KEY


@pytest.mark.slow
def test_a_429_without_a_wait_is_waited_for_longer_than_other_failures(
    endpoint: Endpoint, searching: Callable[..., OnlineSearcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepsearch_rl.core.retries.FIRST_CAPACITY_WAIT_S", 0.01)
    endpoint.replies = [*[as_json({}, 429)] * 5, endpoint.replies[0]]
    assert len(searching().find_hits(["comet"], 3)[0]) == 2
    endpoint.replies = [as_json({}, 429)]
    with pytest.raises(EndpointDownError, match="for longer than rate_limit_wait_s allows"):
        searching(rate_limit_wait_s=0.05).find_hits(["comet"], 3)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        # SerpApi, serpapi/serpapi-python#16
        (429, {"error": "Your account has run out of searches."}),
        (429, {"error": {"message": "Quota exceeded for limit 'Queries per day'"}}),  # Google
        (400, {"message": "Not enough credits", "statusCode": 400}),  # Serper
        (432, {"detail": {"error": "This request exceeds your plan's set usage limit."}}),  # Tavily
        (433, {"detail": {"error": "over"}}),
    ],
)
def test_an_endpoint_whose_quota_is_out_is_down_for_every_query_at_once(
    endpoint: Endpoint,
    searching: Callable[..., OnlineSearcher],
    status: int,
    body: dict[str, object],
) -> None:
    endpoint.replies = [as_json(body, status)]
    with pytest.raises(EndpointDownError, match=f"status {status}"):
        searching().find_hits(["comet"], 3)
    assert len(endpoint.asked) == 1
