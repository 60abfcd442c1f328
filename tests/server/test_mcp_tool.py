"""The MCP tool through its own client; ``test_conformance.py`` has the clients that agents use."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import mcp
import pytest

from deepsearch_rl.chat.chat_messages import NO_PASSAGES, RETRIEVE_TOOL, format_passages
from deepsearch_rl.search.searcher import Hit, open_index
from deepsearch_rl.server.batching import Metrics, SearchQueue
from deepsearch_rl.server.mcp_tool import make_mcp_server
from deepsearch_rl.server.requests import MAX_QUERY_CHARS
from tests.server.searchers import open_searcher, service_config

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def expected_hits(index_dir: Path, chunks_path: Path) -> list[Hit]:
    [hits] = open_index(index_dir, chunks_path, "bm25").find_hits(["lander comet"], 2)
    return hits


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_structured_content_holds_what_the_model_was_shown(
    server_url: str, expected_hits: list[Hit], mode: str
) -> None:
    async with mcp.Client(f"{server_url}/mcp", mode=mode) as client:
        result = await client.call_tool("retrieve", {"query": "lander comet"})
    assert result.content[0].text == format_passages([hit.chunk for hit in expected_hits])
    assert result.structured_content == {
        "result": [
            {"chunk": hit.chunk.contents, "chunk_id": hit.chunk.id, "score": hit.score}
            for hit in expected_hits
        ]
    }


async def test_a_search_that_finds_nothing_says_so_and_is_no_error(server_url: str) -> None:
    async with mcp.Client(f"{server_url}/mcp") as client:
        result = await client.call_tool("retrieve", {"query": ""})
    assert not result.is_error
    assert result.content[0].text == NO_PASSAGES
    assert result.structured_content == {"result": []}


async def called(
    tool: str, arguments: dict[str, object], filters: bool = True
) -> mcp.types.CallToolResult:
    """The result of one call of a tool over a searcher whose answers are known."""
    queue = SearchQueue(open_searcher(), service_config(), Metrics())
    async with queue, mcp.Client(make_mcp_server(queue, filters)) as client:
        return await client.call_tool(tool, arguments)


async def test_a_broken_index_is_an_error_and_not_an_empty_result() -> None:
    result = await called("retrieve", {"query": "broken"})
    assert result.is_error
    assert result.structured_content is None
    assert "secret" not in result.content[0].text


async def test_a_filtered_search_finds_only_what_the_filter_allows_and_says_where_it_is_from() -> (
    None
):
    result = await called(
        "retrieve_filtered", {"query": "a", "source": "The Verge", "after": "2023-10-01"}
    )
    assert result.content[0].text.startswith("[1] a/3/The Verge\n")
    assert result.structured_content["result"][0]["metadata"]["doc_id"] == "a/3/The Verge"


@pytest.mark.parametrize("filters", [{}, {"source": "", "after": "", "before": None}])
async def test_a_filtered_search_without_filters_is_a_search(
    filters: dict[str, str | None],
) -> None:
    result = await called("retrieve_filtered", {"query": "a", **filters})
    assert result.structured_content["result"][0]["chunk_id"] == "a/3/"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("retrieve_filtered", {"query": "a", "after": "yesterday"}),
        ("retrieve_filtered", {"query": "a", "after": "2024-01-02", "before": "2024-01-01"}),
        ("retrieve", {"query": "a" * (MAX_QUERY_CHARS + 1)}),
        ("retrieve", {"query": 7}),
        ("retrieve", {"q": "a"}),
        ("nonexistent", {}),
    ],
)
async def test_a_call_that_cannot_be_is_an_error_with_a_reason(
    tool: str, arguments: object
) -> None:
    result = await called(tool, arguments)
    assert result.is_error
    assert result.content[0].text


@pytest.mark.parametrize("filters", [True, False])
async def test_the_filtered_search_is_offered_where_the_corpus_has_something_to_filter_by(
    filters: bool,
) -> None:
    queue = SearchQueue(open_searcher(), service_config(), Metrics())
    async with mcp.Client(make_mcp_server(queue, filters)) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert names == ["retrieve", "retrieve_filtered"][: 1 + filters]


@pytest.mark.slow
async def test_many_agents_at_once_get_their_own_answers(server_url: str) -> None:
    titles = ["Philae", "Rosetta", "Vienna", "Comet"]

    async def ask(client: mcp.Client, title: str) -> bool:
        result = await client.call_tool("retrieve", {"query": f"{title} {title}"})
        return title in result.structured_content["result"][0]["chunk"]

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(mcp.Client(f"{server_url}/mcp")) for _ in range(3)
        ]
        own = await asyncio.gather(*(ask(clients[i % 3], titles[i % 4]) for i in range(64)))
    assert own == [True] * 64


async def test_the_frozen_schema_is_one_that_the_server_accepts(server_url: str) -> None:
    async with mcp.Client(f"{server_url}/mcp") as client:
        [tool] = (await client.list_tools()).tools
    function = RETRIEVE_TOOL["function"]
    assert tool.name == function["name"]
    assert tool.input_schema["required"] == function["parameters"]["required"]
    for name, schema in function["parameters"]["properties"].items():
        assert tool.input_schema["properties"][name]["type"] == schema["type"]
