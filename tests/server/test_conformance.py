"""Each client that already exists, replayed whole from docs/contracts.md §1 against a running server.

Every client below does what its original does with an answer, its bad habits included: reading keys
without asking whether they are there, trusting the first line to be a title, trying again on some
status codes and on no others.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import mcp
import pytest
from agents import RunContextWrapper
from agents.mcp import MCPServer, MCPServerSse, MCPServerStreamableHttp, MCPUtil
from mcp.client.sse import sse_client

from deepsearch_rl.chat.chat_messages import NO_PASSAGES
from deepsearch_rl.server.requests import Guard
from deepsearch_rl.server.service import make_app
from tests.search_servers import serve_app
from tests.server.searchers import GatedSearcher, engine, service_config

VIENNA = "Vienna\nVienna is the capital of Austria, on the Danube."
VERL_RETRIES = {500, 502, 503, 504}


def post_json(url: str, body: object) -> Any:
    """What ``requests.post(url, json=body)`` sends; other status codes than 200 raise HTTPError."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def verl_search_tool(
    url: str, queries: list[str], top_k: int, wait: Callable[[int], object]
) -> list[str]:
    """veRL's SearchTool: scores are asked for; passages per query as ``Doc 1 (Title: t)`` and text.

    ``wait`` stands for its growing pauses between attempts; it is given the number of the attempt.
    """
    body = {"queries": queries, "topk": top_k, "return_scores": True}
    for attempt in range(1, 11):
        try:
            found = post_json(f"{url}/retrieve", body)["result"]
        except urllib.error.HTTPError as error:
            if error.code not in VERL_RETRIES:
                raise
            wait(attempt)
        else:
            return [_as_documents(hits) for hits in found]
    raise TimeoutError("ten attempts")


def _as_documents(hits: list[dict[str, Any]]) -> str:
    passages = []
    for rank, hit in enumerate(hits, 1):
        title, *text = hit["document"]["contents"].split("\n")
        passages.append(f"Doc {rank} (Title: {title})\n" + "\n".join(text))
    return "\n\n".join(passages)


def search_r1_batch(url: str, rollouts: list[str | None], top_k: int) -> list[str]:
    """Search-R1's generation loop: one request for all rollouts that search, answers dealt out in their order."""
    queries = [query for query in rollouts if query is not None]
    found = post_json(
        f"{url}/retrieve", {"queries": queries, "topk": top_k, "return_scores": True}
    )["result"]
    written = [_as_documents(hits) for hits in found]
    return [written.pop(0) if query is not None else "" for query in rollouts] + written


def rlinf_search(url: str, key_words: str, top_k: int) -> tuple[list[str], list[str]]:
    """RLinf's search client: texts and URLs. A KeyError makes the original try again, ten times ten seconds long."""
    found = post_json(
        f"{url}/retrieve", {"queries": [key_words], "topk": top_k, "return_scores": False}
    )
    return [document["contents"] for document in found["result"][0]], [
        document["url"] for document in found["result"][0]
    ]


def rlinf_access(url: str, page_url: str) -> str | None:
    """RLinf's page client: the page's text, or None where there is no such page."""
    [page] = post_json(f"{url}/access", {"urls": [page_url]})["result"]
    return page["contents"] if page else None


def no_wait(_: int) -> None:
    """For clients that are not expected to wait."""
    raise AssertionError("the first attempt failed")


def test_verls_search_tool_reads_titles_and_texts(server_url: str) -> None:
    [austria, nothing] = verl_search_tool(server_url, ["capital Austria", "zebra"], 1, no_wait)
    assert austria == "Doc 1 (Title: Vienna)\nVienna is the capital of Austria, on the Danube."
    assert nothing == ""


@pytest.mark.parametrize("top_k", [3, 1000])
def test_search_r1s_rollouts_get_their_own_passages_and_never_the_same_one_twice(
    server_url: str, top_k: int
) -> None:
    comet, idle, danube = search_r1_batch(server_url, ["comet", None, "Danube"], top_k)
    assert idle == ""
    for written, titles in (
        (comet, {"Philae", "Rosetta", "Comet"}),
        (danube, {"Vienna", "Danube"}),
    ):
        shown = [
            line.partition("(Title: ")[2].rstrip(")")
            for line in written.splitlines()
            if line.startswith("Doc ")
        ]
        assert sorted(shown) == sorted(titles)


def test_a_step_of_search_r1_in_which_nobody_searches_costs_no_error(server_url: str) -> None:
    assert search_r1_batch(server_url, [None, None], 3) == ["", ""]


def test_rlinf_reads_texts_and_urls_of_everything_found(server_url: str) -> None:
    texts, urls = rlinf_search(server_url, "capital of Austria", 5)
    assert texts == [VIENNA]
    assert urls == ["vienna-0"]
    assert rlinf_search(server_url, "zebra", 5) == ([], [])


def test_rlinf_opens_a_page_by_either_spelling_of_its_url(server_url: str) -> None:
    assert rlinf_access(server_url, "http://w/index.php/Vienna") == "A city."
    assert rlinf_access(server_url, "http://w/index.php?title=Vienna") == "A city."
    assert rlinf_access(server_url, "http://w/index.php/Atlantis") is None


def test_a_top_k_that_cannot_be_reaches_verl_as_an_error_at_once(server_url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        verl_search_tool(server_url, ["comet"], 0, no_wait)
    assert raised.value.code == 422
    assert json.load(raised.value)["detail"].startswith("topk")


@pytest.mark.slow
def test_verl_gets_through_to_a_server_that_was_stuck() -> None:
    searcher = GatedSearcher()
    app = make_app(
        engine(searcher), service_config(search_timeout_s=0.2), Guard(token=None, loopback=True)
    )
    with serve_app(app) as url:
        with pytest.raises(urllib.error.HTTPError) as refused:
            post_json(f"{url}/retrieve", {"queries": ["first"], "topk": 1})
        assert (refused.value.code, int(refused.value.headers["Retry-After"])) == (503, 1)

        def until_it_goes_on(_: int) -> None:
            searcher.gate.set()

        assert verl_search_tool(url, ["second"], 1, until_it_goes_on) == [
            "Doc 1 (Title: second/1/)\n."
        ]


def agents_sdk_search(server: MCPServer, arguments: str) -> Any:
    """What an agent of the OpenAI Agents SDK puts into the conversation, tools listed first as it does."""

    async def call() -> Any:
        async with server:
            tools = await server.list_tools()
            [retrieve] = [tool for tool in tools if tool.name == "retrieve"]
            return await MCPUtil.invoke_mcp_tool(
                server, retrieve, RunContextWrapper(None), arguments
            )

    return asyncio.run(call())


@pytest.fixture(params=["mcp", "sse"])
def agents_sdk_server(request: pytest.FixtureRequest, server_url: str) -> MCPServer:
    url = f"{server_url}/{request.param}"
    return (
        MCPServerSse({"url": url})
        if request.param == "sse"
        else MCPServerStreamableHttp({"url": url})
    )


def test_an_agent_reads_plain_numbered_passages_over_either_transport(
    agents_sdk_server: MCPServer,
) -> None:
    read = agents_sdk_search(
        agents_sdk_server, '{"query": "capital of Austria", "with_meta": true}'
    )
    assert read == {"type": "text", "text": f"[1] {VIENNA}"}


def test_an_agent_that_finds_nothing_reads_so(agents_sdk_server: MCPServer) -> None:
    assert agents_sdk_search(agents_sdk_server, '{"query": "zebra"}') == {
        "type": "text",
        "text": NO_PASSAGES,
    }


def test_an_agent_that_calls_the_tool_wrongly_reads_an_error_and_not_an_empty_result(
    agents_sdk_server: MCPServer,
) -> None:
    read = agents_sdk_search(agents_sdk_server, '{"query": ["zebra"]}')
    assert "query" in read["text"]
    assert NO_PASSAGES not in read["text"]


def test_the_original_client_opens_a_session_per_question_over_sse(server_url: str) -> None:
    async def ask(question: str) -> list[dict[str, Any]]:
        async with (
            sse_client(f"{server_url}/sse") as streams,
            mcp.ClientSession(*streams) as session,
        ):
            told = await session.initialize()
            assert told.server_info.name == "retrieval_server"
            answer = await session.call_tool("retrieve", {"query": question, "with_meta": True})
            return answer.structured_content["result"]

    async def scenario() -> list[list[dict[str, Any]]]:
        return await asyncio.gather(*(ask(question) for question in ["Austria", "lander", "zebra"]))

    [[austria], landers, nothing] = asyncio.run(scenario())
    assert (austria["chunk"], austria["chunk_id"]) == (VIENNA, "vienna-0")
    assert austria["metadata"] == {"doc_id": "vienna", "doc_chunks": 1, "doc_chunk_id": 0}
    assert [hit["score"] for hit in landers] == sorted(
        (hit["score"] for hit in landers), reverse=True
    )
    assert len(landers) == 2
    assert nothing == []
