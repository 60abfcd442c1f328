"""``deepsearch retrieve``: build an index over any passage file, search it, serve it, measure it."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from pydantic import ValidationError
from typer import Option

from deepsearch_rl.cli.defaults import changed_field
from deepsearch_rl.cli.retrieve_convert import convert_command
from deepsearch_rl.cli.retrieve_eval import eval_command
from deepsearch_rl.cli.retrieve_online import online_command
from deepsearch_rl.cli.targets import writable_folder
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.profile import Profile, read_values
from deepsearch_rl.data.flashrag import read_questions
from deepsearch_rl.search import IndexHalf

if TYPE_CHECKING:
    from deepsearch_rl.search.manifest import IndexManifest

app = typer.Typer(
    no_args_is_help=True,
    help="""
    Build, search, serve and measure passage indexes.

    Any file of passages in FlashRAG's layout will do, one JSON object a line: `{"id", "contents": "title\\ntext"}` or
    `{"id", "title", "text"}`, with or without `"metadata"`; `retrieve convert` writes other files so. An example
    session:

        deepsearch retrieve build --corpus corpus.jsonl --out index
        deepsearch retrieve search --index index "When did Philae land?"
        deepsearch retrieve search --index index --source "The Verge" --after 2023-10-01 "chip exports"
        deepsearch retrieve search --index index --retriever hybrid --json "comet" | jq .[0].id
        deepsearch retrieve serve --index index --port 8000
        deepsearch retrieve eval --index index --questions questions.jsonl

    An index of another project (FAISS, .npy, Lucene) is taken over by `retrieve import`.
    """,
)
# The encoder of a build where none is named
TFIDF_SVD = "tfidf_svd"

_Corpus: TypeAlias = Annotated[Path, Option(help="Passages, JSON Lines.")]
_Out: TypeAlias = Annotated[
    Path,
    Option(
        help="Index folder to write; an index that is there is replaced.", callback=writable_folder
    ),
]
_Encoder: TypeAlias = Annotated[
    str | None,
    Option(
        help="A folder that sentence-transformers reads, or with -S index.encoder.revision=COMMIT a hub's repository.",
        show_default="tfidf_svd, which needs no weights",
    ),
]
_Changes: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "-S",
        metavar="NAME=VALUE",
        help="Change a field of section `index`, `retrieval` or `reranker`. Repeatable.",
        show_default=False,
    ),
]
_Index: TypeAlias = Annotated[Path, Option(help="Folder that `retrieve build` wrote.")]
_Chunks: TypeAlias = Annotated[
    Path | None, Option(help="The passage file, if it was moved since the build.")
]
_Retriever: TypeAlias = Annotated[
    str | None,
    Option(help="bm25, dense, hybrid, or your FILE.py:NAME.", show_default="bm25"),
]
_Reranker: TypeAlias = Annotated[
    Path | None, Option(help="Cross-encoder folder that puts the best hits in order.")
]


@app.command("build")
def build_command(
    corpus: _Corpus,
    out: _Out,
    encoder: _Encoder = None,
    only: Annotated[
        IndexHalf | None,
        Option(help="Build one half alone.", show_default="both, and the hybrid of them"),
    ] = None,
    questions: Annotated[
        Path | None,
        Option(help="Questions with gold evidence: the hybrid of both halves learns from them."),
    ] = None,
    params: Annotated[
        Path | None, Option(help="Start from section `index` of this file, not from defaults.")
    ] = None,
    corpus_name: Annotated[
        str, Option(help="With --params: the corpus, which can have settings of its own there.")
    ] = "",
    changes: _Changes = None,
    work: Annotated[
        Path | None,
        Option(
            help="Where a killed build finds its vectors.",
            show_default="a hidden folder beside --out",
        ),
    ] = None,
    seed: Annotated[int, Option(help="Seed of whatever is drawn.", min=0, max=2**31 - 1)] = 0,
) -> None:
    r"""Index a file of passages: BM25 and vectors, and a ranking learnt from questions where there are any.

    The folder appears when the index is complete; a build that was stopped goes on with the vectors
    that it has. The passages stay where they are: searching reads them from there.

        deepsearch retrieve build --corpus wiki-18.jsonl --out wiki --encoder models/e5-base-v2 \
            -S index.encoder.device=cuda -S index.encoder.query_prefix="query: " -S index.bm25.b=0.75
    """
    from deepsearch_rl.search.build import IndexSection, build_index  # noqa: PLC0415 - loads FAISS and SciPy

    if params and encoder:
        raise ConfigError("--params has an encoder; leave --encoder out, or change it in the file.")
    if encoder and only == "bm25":
        raise ConfigError("--only bm25 makes no vectors; leave --encoder out.")

    settings = Profile(params, read_values(params)) if params else _encoder_settings(encoder)
    settings = settings.with_overrides(dict(map(changed_field, changes or ())))
    if only:
        settings = settings.with_overrides({"index.corpus_only": {corpus_name: only}})

    config = settings.section("index", IndexSection).of(corpus_name)
    if questions and (len(config.halves) < 2 or config.fusion.learning is None):
        raise ConfigError(
            "--questions are for the hybrid of both halves, and this index learns none: it has one half, or "
            "index.fusion.learning is null. Leave them out."
        )

    known = list(read_questions(questions)) if questions else []
    index = build_index(corpus, out, config, seed, work, known)
    _print_build(out, index, bool(questions))


def _print_build(out: Path, index: "IndexManifest", has_questions: bool) -> None:
    """Print what an index holds and takes, and what its hybrid has learnt from questions."""
    size_mb = sum(index.sizes_bytes.values()) / 1e6
    vectors_text = f"{index.dimension}-d vectors" if index.dimension else "no vectors"
    typer.echo(f"{out}: {index.rows} passages, {vectors_text}, {size_mb:.1f} MB")

    weights = index.fusion_weights
    if weights:
        scores = [f"{name} {row['mrr@10']:.3f}" for name, row in weights.held_out.items()]
        measure = f"MRR@10 on {weights.questions} held-out questions"
        typer.echo(f"the hybrid ranks by {weights.ranking}; {measure}: {', '.join(scores)}")
    elif has_questions:
        typer.echo("the hybrid has learnt nothing: there are too few questions with gold evidence.")


@app.command("import")
def import_command(
    source: Annotated[
        Path, typer.Argument(help="A .npy or FAISS file, or the folder of a Lucene index.")
    ],
    corpus: Annotated[Path, Option(help="The passages of the index, JSON Lines, in its order.")],
    out: _Out,
    encoder: Annotated[
        str | None, Option(help="Of the vectors; as that of `build`.", show_default=False)
    ] = None,
    search: Annotated[
        str,
        Option(help="FAISS's search parameters, e.g. nprobe=48.", show_default="those of the file"),
    ] = "",
    changes: _Changes = None,
) -> None:
    """Take over an index of another project as it is: its file is linked or copied, and searched unchanged.

    Read are vectors (.npy), FAISS indexes of any kind that compare by inner product, and Lucene's
    or Anserini's with the fields `id` and `contents`. Row N of vectors is line N of the corpus.
    Rows, dimension and, where whole vectors are there, three of them are compared with corpus and
    encoder.

        deepsearch retrieve import e5_Flat.index --corpus wiki-18.jsonl --out wiki --encoder models/e5-base-v2
    """
    from deepsearch_rl.search.build import IndexSection, build_index  # noqa: PLC0415 - loads FAISS and SciPy
    from deepsearch_rl.search.importing import imported_config, is_lucene  # noqa: PLC0415

    from_lucene = is_lucene(source)
    if from_lucene == (encoder is not None):
        problem = (
            "a Lucene index has no vectors; leave --encoder out."
            if from_lucene
            else "say which encoder the vectors are of: --encoder FOLDER."
        )
        raise ConfigError(problem)

    settings = _encoder_settings(encoder)
    if from_lucene:
        lucene = {"engine": "lucene", "k1": 0.9, "b": 0.4, "heap_mb": 1024}
        settings = settings.with_overrides({"index.bm25": lucene})
    else:
        faiss = {"kind": "faiss", "factory": None, "search": search}
        settings = settings.with_overrides({"index.vectors": faiss})

    settings = settings.with_overrides(dict(map(changed_field, changes or ())))
    config = imported_config(source, settings.section("index", IndexSection).of(""))
    index = build_index(corpus, out, config, 0, imported=source)
    kind = f"{index.dimension}-d vectors" if index.dimension else "Lucene's BM25"
    typer.echo(f"{out}: {index.rows} passages, {kind} of {source}")


def _encoder_settings(encoder: str | None) -> Profile:
    """Return the preset of the weightless encoder, or that of a model with its name."""
    if encoder in (None, TFIDF_SVD):
        return load_preset("retrieve")

    # The manifest's reader may have another working directory. A hub's name is left as it is.
    model = str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder
    return load_preset("encoder").with_overrides({"index.encoder.model": model})


@app.command("search")
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
    changes: _Changes = None,
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


@app.command("serve")
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
    changes: _Changes = None,
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


app.command("convert")(convert_command)
app.command("eval")(eval_command)
app.command("online")(online_command)
