"""Searches that are described already, against endpoints that answer in the documented formats."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.retrieve_online import PRESETS, preset_text
from deepsearch_rl.core.errors import EndpointDownError, EndpointError
from deepsearch_rl.server.online.endpoint import read_online_config
from deepsearch_rl.server.online.searcher import OnlineSearcher, open_online
from tests.search.online.loopback import Endpoint, as_json

KEY = "key-1234567890"
ANSWERS = {
    "brave": {
        "type": "search",
        "query": {"original": "q"},
        "web": {
            "type": "search",
            "results": [
                {
                    "title": "Philae",
                    "url": "https://a.example/1",
                    "description": "On a comet.",
                    "page_age": "2014-11-12T00:00:00",
                    "extra_snippets": ["More."],
                },
                {"title": "Rosetta", "url": "https://a.example/2"},
            ],
        },
    },
    "google": {
        "kind": "customsearch#search",
        "searchInformation": {"totalResults": "2"},
        "items": [
            {"title": "Philae", "link": "https://a.example/1", "snippet": "On a comet."},
            {"title": "Rosetta", "link": "https://a.example/2"},
        ],
    },
    "serpapi": {
        "search_metadata": {"id": "1", "status": "Success"},
        "organic_results": [
            {
                "position": 1,
                "title": "Philae",
                "link": "https://a.example/1",
                "snippet": "On a comet.",
                "date": "Nov 12, 2014",
            },
            {"position": 2, "title": "Rosetta", "link": "https://a.example/2"},
        ],
    },
    "searxng": {
        "query": "q",
        "number_of_results": 0,
        "results": [
            {
                "url": "https://a.example/1",
                "title": "Philae",
                "content": "On a comet.",
                "engine": "mojeek",
                "score": 4.0,
            },
            {"url": "https://a.example/2", "title": "Rosetta", "engine": "mojeek", "score": 1.0},
        ],
        "unresponsive_engines": [["brave", "timeout"]],
    },
}
NOTHING = {
    "brave": {"type": "search", "query": {"original": "q"}},
    "google": {"kind": "customsearch#search", "searchInformation": {"totalResults": "0"}},
    "serpapi": {
        "search_metadata": {"status": "Success"},
        "search_information": {"organic_results_state": "Fully empty"},
        "error": "Google hasn't returned any results for this query.",
    },
    "searxng": {"query": "q", "results": [], "unresponsive_engines": []},
}
OPTIONS = {"google": ["--engine", "0:ab c"], "searxng": ["--address", "http://127.0.0.1:8888/"]}
SENT = {
    "brave": {"q": ["comet & co"], "count": ["5"]},
    "google": {"q": ["comet & co"], "num": ["5"], "cx": ["0:ab c"], "key": [KEY]},
    "serpapi": {"q": ["comet & co"], "num": ["5"], "engine": ["google"], "api_key": [KEY]},
    "searxng": {"q": ["comet & co"], "format": ["json"]},
}


@pytest.fixture
def preset(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], OnlineSearcher]:
    """Open a preset's search as written by the command, with the endpoint's address."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda _: None)

    def opened(name: str) -> OnlineSearcher:
        path = tmp_path / "web.yaml"
        command = ["retrieve", "online", name, "--out", str(path), *OPTIONS.get(name, [])]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output

        config = read_online_config(path)
        if config.api_key_variable:
            assert config.api_key_variable in result.output
            monkeypatch.setenv(config.api_key_variable, KEY)

        parts = urlsplit(config.url)
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f"{parts.scheme}://{parts.netloc}", endpoint.url))
        return open_online(path)

    return opened


@pytest.mark.parametrize("name", PRESETS)
def test_a_documented_answer_becomes_passages(
    name: str, endpoint: Endpoint, preset: Callable[[str], OnlineSearcher]
) -> None:
    endpoint.replies = [as_json(ANSWERS[name])]
    [hits] = preset(name).find_hits(["comet & co"], 5)

    assert [hit.chunk.contents for hit in hits] == ["Philae\nOn a comet.", "Rosetta\n"]
    assert [hit.chunk.id for hit in hits] == ["https://a.example/1", "https://a.example/2"]
    [(path, headers, _)] = endpoint.asked
    assert parse_qs(urlsplit(path).query) == SENT[name]
    assert headers.get("x-subscription-token") == (KEY if name == "brave" else None)


@pytest.mark.parametrize("name", PRESETS)
def test_no_results_are_no_passages(
    name: str, endpoint: Endpoint, preset: Callable[[str], OnlineSearcher]
) -> None:
    endpoint.replies = [as_json(NOTHING[name])]
    assert preset(name).find_hits(["comet"], 5) == [[]]


@pytest.mark.parametrize(
    ("name", "answer", "named"),
    [
        ("serpapi", {"search_metadata": {"status": "Error"}, "error": "x"}, "not 'Success'"),
        ("serpapi", {"search_metadata": {"status": "Processing"}}, "Processing"),
        ("serpapi", {"error": "Invalid"}, "search_metadata.status"),
        (
            "searxng",
            {"results": [], "unresponsive_engines": [["google", "CAPTCHA"]]},
            "CAPTCHA",
        ),
        ("searxng", {"query": "q"}, "leads nowhere"),
    ],
)
def test_a_search_that_failed_is_no_empty_result(
    name: str,
    answer: dict[str, object],
    named: str,
    endpoint: Endpoint,
    preset: Callable[[str], OnlineSearcher],
) -> None:
    endpoint.replies = [as_json(answer)]
    with pytest.raises(EndpointError, match=named):
        preset(name).find_hits(["comet"], 5)


@pytest.mark.parametrize(
    ("name", "status", "answer"),
    [
        ("serpapi", 429, {"error": "Your account has run out of searches."}),
        ("serpapi", 401, {"error": "Invalid API key."}),
        (
            "google",
            429,
            {
                "error": {
                    "code": 429,
                    "status": "RESOURCE_EXHAUSTED",
                    "message": "Quota exceeded for quota metric 'Queries' and limit 'Queries per day'.",
                }
            },
        ),
        ("brave", 401, {"type": "ErrorResponse", "error": {"code": "SUBSCRIPTION_TOKEN_INVALID"}}),
    ],
)
def test_a_spent_quota_and_a_wrong_key_end_all_searches_at_once(
    name: str,
    status: int,
    answer: dict[str, object],
    endpoint: Endpoint,
    preset: Callable[[str], OnlineSearcher],
) -> None:
    endpoint.replies = [as_json(answer, status)]
    with pytest.raises(EndpointDownError):
        preset(name).find_hits(["comet"], 5)
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["google"], "the online search google needs --engine"),
        (["searxng"], "the online search searxng needs --address"),
        (["brave", "--engine", "x"], "the online search brave takes no --engine"),
        (["searxng", "--address", "localhost"], "url must begin with http"),
        (["searxng", "--address", "http://127.0.0.1:8888: x"], "Port could not be cast"),
        (["searxng", "--address", 'http://127.0.0.1:8888"'], "Port could not be cast"),
        (["searxng", "--address", ""], "url must begin with http"),
        (["bing"], "bing"),
    ],
)
def test_what_a_preset_needs_is_named_and_nothing_is_written(
    arguments: list[str], named: str, tmp_path: Path
) -> None:
    out = tmp_path / "web.yaml"
    result = CliRunner().invoke(app, ["retrieve", "online", *arguments, "--out", str(out)])
    assert result.exit_code != 0
    assert named in f"{result.output} {result.exception}"
    assert not out.exists()


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:8888/a#b", "http://127.0.0.1:8888/\\ \"'", "http://[::1]:8888/: x"],
)
def test_an_address_is_written_as_it_was_given(address: str) -> None:
    values = yaml.safe_load(preset_text("searxng", None, f"{address}/"))
    assert values["url"] == f"{address}/search?q={{query}}&format=json"


def test_the_id_of_an_engine_may_be_any_bytes() -> None:
    assert "cx=%FF%3A" in preset_text("google", "\udcff:", None)
