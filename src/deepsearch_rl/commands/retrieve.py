"""``deepsearch retrieve``: build an index over any passage file, search it, serve it, measure it."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from deepsearch_rl.commands.defaults import reranker_config
from deepsearch_rl.commands.retrieve_build import build_command
from deepsearch_rl.commands.retrieve_measure import eval_command, frontier_command
from deepsearch_rl.errors import ConfigError
from deepsearch_rl.presets import load_preset
from deepsearch_rl.records import RetrieverName

if TYPE_CHECKING:
    from deepsearch_rl.retrieval.searcher import SearchesChunks

app = typer.Typer(
    no_args_is_help=True,
    help="""
    Build, search, serve and measure passage indexes.

    Any file of passages in FlashRAG's layout will do, one JSON object a line: `{"id", "contents": "title\\ntext"}` or
    `{"id", "title", "text"}`, with or without `"metadata"`. An example session:

        deepsearch retrieve build --corpus corpus.jsonl --out index
        deepsearch retrieve search --index index "When did Philae land?"
        deepsearch retrieve search --index index --source "The Verge" --after 2023-10-01 "chip exports"
        deepsearch retrieve search --index index --retriever hybrid --json "comet" | jq .[0].id
        deepsearch retrieve serve --index index --port 8000
        deepsearch retrieve eval --index index --questions questions.jsonl
    """,
)
_PRESET = load_preset("retrieve")
_RETRIEVAL, _RERANKER = _PRESET.value("retrieval"), _PRESET.value("reranker")
_Chunks = Annotated[Path | None, Option(help="The passage file, if it was moved since the build.")]
_Retriever = Annotated[RetrieverName, Option(help="Which ranking.")]
_Reranker = Annotated[Path | None, Option(help="Cross-encoder folder for the best hits.")]
_RerankDepth = Annotated[int, Option(help="Hits that the reranker puts in order.", min=1)]


def search_command(
    index: Annotated[Path, Option(help="Folder that `retrieve build` wrote.")],
    query: Annotated[str, typer.Argument(help="The words to search for.")],
    top_k: Annotated[int, Option(help="Passages to show, at most.", min=1)] = 5,
    retriever: _Retriever = _RETRIEVAL["retriever"],
    source: Annotated[str | None, Option(help="Only passages of this source, exactly as written there.")] = None,
    after: Annotated[
        datetime | None, Option(help="Only passages published on this day or later.", formats=["%Y-%m-%d"])
    ] = None,
    before: Annotated[
        datetime | None, Option(help="Only passages published on this day or earlier.", formats=["%Y-%m-%d"])
    ] = None,
    chunks: _Chunks = None,
    reranker: _Reranker = None,
    rerank_depth: _RerankDepth = _RERANKER["depth"],
    as_json: Annotated[bool, Option("--json", help="A JSON list of {id, score, contents, metadata}.")] = False,
) -> None:
    """Print the best passages for a query, numbered, with their scores.

    A passage without a source or a date is not found by a search that filters on it. The passage file is read once
    first, to prove that it is the one that was indexed: seconds for many gigabytes.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - with the rest

    from deepsearch_rl.retrieval.rerank import CrossEncoder, RerankedSearcher  # noqa: PLC0415 - loads FAISS
    from deepsearch_rl.retrieval.rows import Filter  # noqa: PLC0415
    from deepsearch_rl.retrieval.searcher import open_index  # noqa: PLC0415

    try:
        where = Filter(source=source, after=after and after.date(), before=before and before.date())
    except ValidationError as error:
        raise ConfigError(f"these filters contradict each other: {error.errors()[0]['msg']}.") from error
    searcher: SearchesChunks = open_index(index, chunks, retriever)
    if reranker:
        config = reranker_config(reranker, {"reranker.depth": rerank_depth})
        searcher = RerankedSearcher(searcher, CrossEncoder(config), config.depth)
    [hits] = searcher.search([query], top_k, where)
    if as_json:
        rows = [{"id": hit.chunk.id, "score": hit.score, **hit.chunk.model_dump(mode="json")} for hit in hits]
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        passages = [f"[{rank}] {hit.score:.4f}  {hit.chunk.contents}" for rank, hit in enumerate(hits, 1)]
        typer.echo("\n\n".join(passages) or "No passages found.")


def serve_command(
    index: Annotated[Path | None, Option(help="Folder that `retrieve build` wrote.")] = None,
    online: Annotated[Path | None, Option(help="YAML file of a search endpoint, instead of an index.")] = None,
    chunks: _Chunks = None,
    retriever: _Retriever = _RETRIEVAL["retriever"],
    top_k: Annotated[int, Option(help="Passages per query where a request does not say.", min=1)] = _RETRIEVAL["top_k"],
    reranker: _Reranker = None,
    rerank_depth: _RerankDepth = _RERANKER["depth"],
    rerank_tokens: Annotated[int, Option(help="Tokens of query and passage that it reads.", min=8)] = _RERANKER[
        "max_tokens"
    ],
    rerank_batch_tokens: Annotated[int, Option(help="Tokens of its batches, padding counted.", min=1)] = _RERANKER[
        "batch_tokens"
    ],
    rerank_device: Annotated[str, Option(help="Where it runs: cpu or cuda.")] = _RERANKER["device"],
    rerank_dtype: Annotated[str, Option(help="float32, float16 or bfloat16.")] = _RERANKER["dtype"],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    public: Annotated[bool, Option("--public", help="Allow an address that other machines can reach.")] = False,
    token_variable: Annotated[
        str | None, Option(help="Environment variable with a token that clients must send as `Bearer`.")
    ] = None,
    pages: Annotated[Path | None, Option(help="JSON Lines of {url, contents, ...} for /access.")] = None,
    window_ms: Annotated[float, Option(help="How long a search waits for others to share it.", min=0)] = _RETRIEVAL[
        "window_ms"
    ],
    max_batch: Annotated[int, Option(help="Queries that share a search at most.", min=1)] = _RETRIEVAL["max_batch"],
    max_pending: Annotated[int, Option(help="Queries that may wait; more are answered 503.", min=1)] = _RETRIEVAL[
        "max_pending"
    ],
    cache_entries: Annotated[int, Option(help="Answers kept for repeated queries; 0: none.", min=0)] = _RETRIEVAL[
        "cache_entries"
    ],
) -> None:
    """Serve an index to any trainer: Search-R1, veRL, RLinf, ASearcher, and agents over MCP.

    One process answers POST /retrieve and /access, GET /healthz and /metrics, and MCP at /mcp (streamable HTTP) and
    /sse. It stops on Ctrl-C or SIGTERM, after it has answered the requests that it has accepted.

        deepsearch retrieve serve --index index --port 8000
    """
    from deepsearch_rl.retrieval.server import launch  # noqa: PLC0415 - loads FAISS and the MCP library
    from deepsearch_rl.retrieval.server.config import RetrievalConfig, ServerConfig  # noqa: PLC0415

    if (index is None) == (online is None):
        raise ConfigError("say what to serve: --index with an index folder, or --online with a search endpoint.")
    rerank_options = {
        "reranker.depth": rerank_depth,
        "reranker.max_tokens": rerank_tokens,
        "reranker.batch_tokens": rerank_batch_tokens,
        "reranker.device": rerank_device,
        "reranker.dtype": rerank_dtype,
    }
    options = {
        "retrieval.online": online,
        "retrieval.retriever": retriever,
        "retrieval.top_k": top_k,
        "retrieval.reranker": reranker_config(reranker, rerank_options) if reranker else None,
        "retrieval.pages": pages,
        "retrieval.window_ms": window_ms,
        "retrieval.max_batch": max_batch,
        "retrieval.max_pending": max_pending,
        "retrieval.cache_entries": cache_entries,
    }
    config = ServerConfig(
        retrieval=_PRESET.with_overrides(options).section("retrieval", RetrievalConfig),
        index=index,
        chunks=chunks,
        host=host,
        port=port,
        public=public,
        token_variable=token_variable,
    )
    launch.log_to_stderr()
    with launch.open_listener(config) as listener:
        launch.serve(config, listener)


app.command("build")(build_command)
app.command("search")(search_command)
app.command("serve")(serve_command)
app.command("eval")(eval_command)
app.command("frontier")(frontier_command)
