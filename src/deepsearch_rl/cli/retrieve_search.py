"""``deepsearch retrieve search``, ``serve``, ``eval`` and ``online``: use an index, or search the web."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from pydantic import ValidationError
from typer import Option

from deepsearch_rl.cli.shared import ChangesOption, changed_field, print_table
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.benchmarks import read_judged
from deepsearch_rl.data.flashrag import read_questions

# Passages that `online` prints
SHOWN = 5

_Index: TypeAlias = Annotated[Path, Option(help="Folder that `retrieve build` wrote.")]
_Chunks: TypeAlias = Annotated[
    Path | None, Option(help="The passage file, if it was moved since the build.")
]
_Retriever: TypeAlias = Annotated[
    str | None,
    Option(help="bm25, dense, hybrid, or your FILE.py:NAME.", show_default="bm25"),
]
QrelsOption: TypeAlias = Annotated[
    Path | None,
    Option(help="The questions are BEIR's queries, and this file judges their documents."),
]
_Reranker: TypeAlias = Annotated[
    Path | None, Option(help="Cross-encoder folder that puts the best hits in order.")
]


def search_command(
    index: _Index,
    query: Annotated[str, typer.Argument(help="The words to search for.")],
    retriever: _Retriever = None,
    top_k: Annotated[int, Option(help="Passages to show, at most.", min=1)] = 5,
    source: Annotated[
        str | None, Option(help="Only passages of this source, exactly as written there.")
    ] = None,
    after: Annotated[
        datetime | None, Option(help="Published on this day or later.", formats=["%Y-%m-%d"])
    ] = None,
    before: Annotated[
        datetime | None, Option(help="Published on this day or earlier.", formats=["%Y-%m-%d"])
    ] = None,
    reranker: _Reranker = None,
    changes: ChangesOption = None,
    chunks: _Chunks = None,
    as_json: Annotated[
        bool, Option("--json", help="A JSON list of {id, score, contents, metadata}.")
    ] = False,
) -> None:
    """Print the best passages for a query, numbered, with their scores.

    A passage without a source or a date is not found by a search that filters on it.

        deepsearch retrieve search --index index --source "The Verge" --after 2023-10-01 "chip exports"
    """
    from deepsearch_rl.search.rows import Filter  # noqa: PLC0415
    from deepsearch_rl.search.searcher import open_index  # noqa: PLC0415
    from deepsearch_rl.server import rerank  # noqa: PLC0415 - loads FAISS

    try:
        # Typer reads a day as a point in time
        where = Filter(source=source, after=after and after.date(), before=before and before.date())
    except ValidationError as error:
        raise ConfigError(f"these filters cannot work: {error.errors()[0]['msg']}.") from error

    searcher = open_index(index, chunks, retriever)
    if (after or before) and (undated := searcher.rows.undated):
        typer.echo(
            f"{undated} of {len(searcher.chunks)} passages have no date (metadata.published_at), and "
            "are left out",
            err=True,
        )
    if reranker:
        settings = _changed_retrieval(changes, {"reranker.model": reranker})
        config = settings.section("reranker", rerank.RerankerConfig)
        searcher = rerank.RerankedSearcher(searcher, rerank.CrossEncoder(config), config.depth)

    [hits] = searcher.find_hits([query], top_k, where)

    rows: list[dict[str, object]] = []
    passages: list[str] = []
    for rank, hit in enumerate(hits, 1):
        chunk = hit.chunk.model_dump(mode="json")
        # Id and score first, where a reader looks for them
        rows.append({"id": hit.chunk.id, "score": hit.score, **chunk})
        passages.append(f"[{rank}] {hit.score:.4f}  {hit.chunk.contents}")

    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        typer.echo("\n\n".join(passages) or "No passages found.")


def serve_command(
    index: Annotated[Path | None, Option(help="Folder that `retrieve build` wrote.")] = None,
    online: Annotated[
        str | None,
        Option(
            help="Search the web instead of an index: serpapi, google, brave, searxng or FILE.py:NAME."
        ),
    ] = None,
    retriever: _Retriever = None,
    top_k: Annotated[
        int | None,
        Option(help="Passages per query where a request does not say.", min=1, show_default="3"),
    ] = None,
    pages: Annotated[
        Path | None, Option(help="JSON Lines of {url, contents, ...} for /access.")
    ] = None,
    reranker: _Reranker = None,
    changes: ChangesOption = None,
    chunks: _Chunks = None,
    threads: Annotated[
        int | None,
        Option(
            help="CPU threads of an encoder with weights.", min=1, show_default="one for each core"
        ),
    ] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000,
    public: Annotated[
        bool, Option("--public", help="Allow an address that other machines can reach.")
    ] = False,
    token_variable: Annotated[
        str | None,
        Option(help="Environment variable with a token that clients must send as `Bearer`."),
    ] = None,
    no_token: Annotated[
        bool, Option("--no-token", help="Let everybody search who reaches a --public address.")
    ] = False,
) -> None:
    """Serve an index to any trainer: Search-R1, veRL, RLinf, ASearcher, and agents over MCP.

    It answers POST /retrieve and /access, GET /healthz and /metrics, and MCP at /mcp (streamable
    HTTP) and /sse. It stops on Ctrl-C or SIGTERM, after it has answered the
    requests that it has accepted.

        deepsearch retrieve serve --index index --port 8000 -S retrieval.max_batch=64
    """
    from deepsearch_rl.server import launch  # noqa: PLC0415 - and the MCP library
    from deepsearch_rl.server.config import RetrievalConfig, ServerConfig  # noqa: PLC0415
    from deepsearch_rl.server.rerank import RerankerConfig  # noqa: PLC0415 - loads FAISS

    if (index is None) == (online is None):
        what = "--index with an index folder, or --online with a search engine"
        raise ConfigError(f"say what to serve: {what}.")

    given = {
        "retrieval.online": online,
        "retrieval.retriever": retriever,
        "retrieval.top_k": top_k,
        "retrieval.pages": pages,
        "reranker.model": reranker,
    }
    settings = _changed_retrieval(changes, given)
    if reranker:
        settings = settings.with_overrides(
            {"retrieval.reranker": settings.section("reranker", RerankerConfig)}
        )

    config = ServerConfig(
        retrieval=settings.section("retrieval", RetrievalConfig),
        index=index,
        chunks=chunks,
        threads=threads,
        host=host,
        port=port,
        public=public,
        token_variable=token_variable,
        no_token=no_token,
    )
    launch.log_to_stderr()
    with launch.open_listener(config) as listener:
        launch.serve(config, listener)


def _changed_retrieval(changes: list[str] | None, given: dict[str, object]) -> Profile:
    """Return the preset with the changes of ``-S`` and the options that are given; None leaves a field as it is."""
    options = {name: value for name, value in given.items() if value is not None}
    return load_preset("retrieve").with_overrides(
        {**dict(map(changed_field, changes or ())), **options}
    )


def eval_command(
    index: _Index,
    questions: Annotated[
        Path, Option(help="Questions with gold evidence, in any layout that is read.")
    ],
    retriever: Annotated[
        list[str] | None,
        Option(help="bm25, dense, hybrid, or your FILE.py:NAME.", show_default="all that it has"),
    ] = None,
    cutoffs: Annotated[str, Option(help="The k of hits@k and evidence recall@k.")] = "4,10",
    chunks: _Chunks = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
    qrels: QrelsOption = None,
) -> None:
    """Score an index's retrievers over questions with gold evidence.

    A question is `{"id", "question", "golden_answers", "metadata"}`; its metadata says which
    passages are gold: `"evidence_list"` (those that contain a `"fact"`; MultiHop-RAG's official
    scores), otherwise `"supporting_doc_ids"` or `"supporting_titles"`. Questions with none of these
    are left out. A hybrid that learnt from these questions looks better than it is: `retrieve build
    --questions` prints its scores on questions held out.

        deepsearch retrieve eval --index index --questions questions.jsonl
        deepsearch retrieve eval --index index --questions queries.jsonl --qrels qrels/test.tsv
    """
    # Here, because it loads FAISS.
    from deepsearch_rl.search.gold import warn_of_missing, with_gold  # noqa: PLC0415
    from deepsearch_rl.search.manifest import read_manifest  # noqa: PLC0415
    from deepsearch_rl.search.own_retriever import RETRIEVERS  # noqa: PLC0415
    from deepsearch_rl.search.quality import measure  # noqa: PLC0415
    from deepsearch_rl.search.searcher import open_index  # noqa: PLC0415

    depths = list(map(str.strip, cutoffs.split(",")))
    if not all(re.fullmatch("[1-9][0-9]{0,5}", depth) for depth in depths):
        raise ConfigError(
            f"--cutoffs {cutoffs!r} should be numbers from 1 to 999999 with commas between, e.g. 4,10."
        )

    rows = read_judgeable(questions, qrels)
    examples = with_gold(rows)
    if not examples:
        raise ArtifactError(
            f"none of {len(rows)} questions has gold evidence (metadata.evidence_list, supporting_doc_ids or "
            "supporting_titles), so that there is nothing to score retrievers by."
        )

    halves = read_manifest(index).config.halves
    names = retriever or (RETRIEVERS if len(halves) > 1 else halves)
    scores: dict[str, dict[str, float]] = {}
    for name in names:
        searcher = open_index(index, chunks, name)
        if not scores:
            warn_of_missing(searcher.chunks, rows, str(questions))
        scores[name] = measure(searcher, examples, list(map(int, depths)))

    if as_json:
        typer.echo(json.dumps(scores, indent=2))
    else:
        metrics = list(next(iter(scores.values())))[1:]
        table = [[metric, *(f"{scores[name][metric]:.3f}" for name in names)] for metric in metrics]
        print_table("", ["", *names], table)
        typer.echo(f"{len(examples)} of {len(rows)} questions have gold evidence")


def read_judgeable(questions: Path, qrels: Path | None) -> list[Question]:
    """Return questions with their gold evidence, or BEIR's queries with the judgements in ``qrels``."""
    return list(read_judged(questions, qrels) if qrels else read_questions(questions))


def online_command(
    name: Annotated[
        str, typer.Argument(help="serpapi | google | brave | searxng, or your own FILE.py:NAME.")
    ],
    query: Annotated[str, typer.Argument(help="The words to search for.")],
) -> None:
    """Search the web once and print the passages, to try a key before `serve --online NAME`.

    Keys and addresses are read from the environment or .env: SERPAPI_API_KEY; GOOGLE_API_KEY and
    GOOGLE_ENGINE_ID; BRAVE_API_KEY; SEARXNG_URL.

        deepsearch retrieve online brave "first lander on a comet"
    """
    from deepsearch_rl.chat.chat_messages import format_passages  # noqa: PLC0415
    from deepsearch_rl.server.online import open_online  # noqa: PLC0415 - loads FAISS

    [hits] = open_online(name).find_hits([query], SHOWN)
    typer.echo(format_passages([hit.chunk for hit in hits]))
