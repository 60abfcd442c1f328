"""``deepsearch retrieve``: build an index over any passage file, search it, serve it, measure it."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from pydantic import ValidationError
from typer import Option

from deepsearch_rl.cli import retrieve_options as options
from deepsearch_rl.cli.defaults import Fields, field_options, named_numbers, require_effect
from deepsearch_rl.cli.retrieve_convert import convert_command
from deepsearch_rl.cli.retrieve_measure import eval_command, frontier_command
from deepsearch_rl.cli.retrieve_online import online_command
from deepsearch_rl.cli.retrieve_quantize import quantize_command
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.profile import Profile, read_values
from deepsearch_rl.data.flashrag import read_questions
from deepsearch_rl.search.names import VectorsKind

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
_PRESET = load_preset("retrieve")
_INDEX = _PRESET.value("index")
_ENCODER = _INDEX["encoder"]
_SEED = _PRESET.value("seed")
# Those of the options of `build` that say how the vectors of a foreign index were made
_ENCODER_FIELDS = (
    "revision",
    "query_prefix",
    "passage_prefix",
    "pooling",
    "max_tokens",
    "device",
)


@app.command("build")
@field_options("encoder", options.BUILD_FIELDS)
def build_command(
    context: typer.Context,
    corpus: options.Corpus,
    out: options.Out,
    params: options.Params = None,
    corpus_name: options.CorpusName = "",
    encoder: options.Encoder = _ENCODER["name"],
    engine: options.Engine = "transformers",
    dtype: options.Dtype = None,
    dimension: options.Dimension = _ENCODER["dimension"],
    vectors: options.Vectors = _INDEX["vectors"]["kind"],
    *,
    fields: Fields,
    only: options.Only = None,
    half: options.Half = False,
    field: options.FieldWeights = None,
    questions: options.Questions = None,
    work: options.Work = None,
    threads: options.Threads = None,
    seed: options.Seed = _SEED,
) -> None:
    """Index a file of passages: BM25 and vectors, and a ranking learnt from questions where there are any.

    The folder appears when the index is complete; a build that was stopped goes on with the vectors
    that it has. The passages stay where they are: searching reads them from there. Memory does not
    grow with the corpus.

        deepsearch retrieve build --corpus corpus.jsonl --out index
        deepsearch retrieve build --corpus corpus.jsonl --out index --only bm25
        deepsearch retrieve build --corpus corpus.jsonl --out index --field title=2 --field body=1
        deepsearch retrieve build --corpus wiki-18.jsonl --out wiki --encoder models/e5-base-v2 --device cuda --half
        deepsearch retrieve build --corpus corpus.jsonl --out index --encoder intfloat/e5-base-v2 --revision f52bf8e
        deepsearch retrieve build --corpus corpus.jsonl --out index --params params.yaml --corpus-name world
    """
    from deepsearch_rl.search.build import IndexSection, build_index  # noqa: PLC0415 - loads FAISS and SciPy

    weights = named_numbers("--field", field or (), "NAME=WEIGHT, e.g. title=2")
    options.require_effect_of_half(context, only)
    if params:
        reason = "beside --params, whose file has this setting; change it there"
        require_effect(context, options.SETTINGS, reason)
        settings = Profile(params, read_values(params))
    else:
        options.require_effect_on_build(
            context, vectors, _PRESET.value("vectors")[vectors], encoder != _ENCODER["name"]
        )
        settings = _build_settings(
            encoder, dimension, vectors, fields, half, weights, engine=engine, dtype=dtype
        )

    if only:
        settings = settings.with_overrides({"index.corpus_only": {corpus_name: only}})

    config = settings.section("index", IndexSection).of(corpus_name)
    if questions:
        options.require_learning(config)

    known = list(read_questions(questions)) if questions else []
    index = build_index(corpus, out, config, seed, work, known, None, threads)
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


_ImportedEncoder: TypeAlias = Annotated[
    str | None,
    Option(
        help="Of the vectors: a folder that sentence-transformers can read, or with --revision the name of a "
        "hub's repository.",
        show_default="none, for Lucene",
    ),
]
_Nprobe: TypeAlias = Annotated[
    int | None, Option(help="IVF: cells visited.", min=1, show_default="the file's")
]
_EfSearch: TypeAlias = Annotated[
    int | None, Option(help="HNSW: vectors in view.", min=1, show_default="the file's")
]


@app.command("import")
@field_options("encoder", {name: options.BUILD_FIELDS[name] for name in _ENCODER_FIELDS})
def import_command(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(help="A .npy or FAISS file, or the folder of a Lucene index.")
    ],
    corpus: Annotated[Path, Option(help="The passages of the index, JSON Lines, in its order.")],
    out: options.Out,
    encoder: _ImportedEncoder = None,
    engine: options.Engine = "transformers",
    dtype: options.Dtype = None,
    nprobe: _Nprobe = None,
    ef_search: _EfSearch = None,
    k1: Annotated[
        float, Option(help="Lucene: how slowly repeated terms saturate.", min=0.01)
    ] = 0.9,
    b: Annotated[
        float, Option(help="Lucene: how strongly long passages are discounted.", min=0, max=1)
    ] = 0.4,
    heap_mb: Annotated[int, Option(help="Lucene: memory for Java, MiB.", min=64)] = 1024,
    *,
    fields: Fields,
) -> None:
    """Take over an index of another project as it is: its file is linked or copied, and searched unchanged.

    Read are vectors (.npy), FAISS indexes of any kind that compare by inner product (Search-R1's
    e5_Flat.index, HNSW, IVF, product codes), and Lucene's or Anserini's with the fields `id` and
    `contents`. Row N of vectors is line N of the corpus. Rows, dimension and, where whole vectors
    are there, three of them are compared with corpus and encoder.

        deepsearch retrieve import e5_Flat.index --corpus wiki-18.jsonl --out wiki --encoder models/e5-base-v2
        deepsearch retrieve import vectors.npy --corpus corpus.jsonl --out index --encoder models/e5-base-v2
        deepsearch retrieve import lucene-index --corpus wiki-18.jsonl --out wiki-bm25
    """
    from deepsearch_rl.search.bm25.configs import LuceneConfig  # noqa: PLC0415
    from deepsearch_rl.search.build import IndexSection, build_index  # noqa: PLC0415 - loads FAISS and SciPy
    from deepsearch_rl.search.importing import imported_config, is_lucene  # noqa: PLC0415
    from deepsearch_rl.search.vectors.config import FaissConfig  # noqa: PLC0415

    from_lucene = is_lucene(source)
    options.require_effect_on_import(context, source, from_lucene)
    if encoder is None and not from_lucene:
        raise ConfigError("say which encoder the vectors are of: --encoder FOLDER.")

    settings = _PRESET
    if encoder is not None:
        settings = _build_settings(encoder, 1, "flat", fields, engine=engine, dtype=dtype)

    lucene = LuceneConfig(engine="lucene", k1=k1, b=b, heap_mb=heap_mb)
    search_effort = FaissConfig(kind="faiss", nprobe=nprobe, ef_search=ef_search)
    own_config = settings.section("index", IndexSection).of("").model_copy(update={"bm25": lucene})
    config = imported_config(source, own_config, search_effort)
    if config.vectors.kind == "faiss":
        options.require_effect_on_faiss(context, source)

    index = build_index(corpus, out, config, _PRESET.value("seed"), imported=source)
    kind = f"{index.dimension}-d vectors" if index.dimension else "Lucene's BM25"
    typer.echo(f"{out}: {index.rows} passages, {kind} of {source}")


def _build_settings(
    encoder: str,
    dimension: int,
    vectors: VectorsKind,
    fields: Fields,
    half: bool = False,
    weights: Mapping[str, float] = MappingProxyType({}),
    *,
    engine: options.EncoderEngine = "transformers",
    dtype: options.EncoderDtype | None = None,
) -> Profile:
    """Return the preset of an encoder with the options of ``build``; ``weights`` are those of BM25's fields."""
    has_weights = encoder != _ENCODER["name"]
    options.require_fitting_engine(has_weights, engine, dtype)

    # A kind of vector index has some of the settings --nlist, --m and so on, and ignores the others
    vector_settings = dict(_PRESET.value("vectors")[vectors])
    for name, value in _values_below("vectors.", fields).items():
        setting = name.rpartition(".")[2]
        if setting in vector_settings:
            vector_settings[setting] = value

    changes = {**_values_below("index.bm25.", fields), "index.vectors": vector_settings}
    if half:
        changes["index.encoding.dtype"] = "float16"
    if weights:
        changes["index.bm25.fields"] = dict(weights)
    if not has_weights:
        return _PRESET.with_overrides({**changes, "index.encoder.dimension": dimension})

    # The manifest's reader may have another working directory. A hub's name is left as it is.
    is_folder = Path(encoder).is_dir() and fields["index.encoder.revision"] is None
    changes["index.encoder.model"] = str(Path(encoder).resolve()) if is_folder else encoder
    # A CPU has no fast float16
    if dtype or fields["index.encoder.device"] == "cuda":
        changes["index.encoder.dtype"] = dtype or "float16"

    encoder_changes = _values_below("index.encoder.", fields)
    settings = load_preset("encoder").with_overrides({**changes, **encoder_changes})
    if engine == "transformers":
        return settings

    # An export has a type of its own
    described = settings.value("index.encoder")
    exported = {name: value for name, value in described.items() if name != "dtype"}
    return settings.with_overrides({"index.encoder": {**exported, "name": engine}})


def _values_below(prefix: str, fields: Fields) -> Fields:
    """Return the values of the fields whose dotted name begins with a prefix, without those that are None."""
    values: Fields = {}
    for name, value in fields.items():
        if name.startswith(prefix) and value is not None:
            values[name] = value

    return values


@app.command("search")
@field_options("retrieve", options.SEARCH_FIELDS)
def search_command(
    context: typer.Context,
    index: options.Index,
    query: options.Query,
    top_k: options.TopK = 5,
    source: options.Source = None,
    after: options.After = None,
    before: options.Before = None,
    chunks: options.Chunks = None,
    *,
    fields: Fields,
    as_json: options.HitsAsJson = False,
) -> None:
    """Print the best passages for a query, numbered, with their scores.

    A passage without a source or a date is not found by a search that filters on it. The passage
    file is read when it is first searched, and again after a change, to prove that it is the one
    that was indexed: seconds for many gigabytes.
    """
    from deepsearch_rl.search.rows import Filter  # noqa: PLC0415
    from deepsearch_rl.search.searcher import open_index  # noqa: PLC0415
    from deepsearch_rl.server import rerank  # noqa: PLC0415 - loads FAISS

    options.require_reranker(context, fields["reranker.model"])
    try:
        # Typer reads a day as a point in time
        where = Filter(source=source, after=after and after.date(), before=before and before.date())
    except ValidationError as error:
        raise ConfigError(f"these filters cannot work: {error.errors()[0]['msg']}.") from error

    searcher = open_index(index, chunks, fields["retrieval.retriever"])
    if fields["reranker.model"]:
        config = _PRESET.with_overrides(fields).section("reranker", rerank.RerankerConfig)
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
@field_options("retrieve", options.SERVE_FIELDS)
def serve_command(
    context: typer.Context,
    index: Annotated[Path | None, Option(help="Folder that `retrieve build` wrote.")] = None,
    chunks: options.Chunks = None,
    *,
    fields: Fields,
    threads: options.Threads = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    public: options.Public = False,
    token_variable: options.TokenVariable = None,
    no_token: options.NoToken = False,
) -> None:
    """Serve an index to any trainer: Search-R1, veRL, RLinf, ASearcher, and agents over MCP.

    It answers POST /retrieve and /access, GET /healthz and /metrics, and MCP at /mcp (streamable
    HTTP) and /sse. It stops on Ctrl-C or SIGTERM, after it has answered the
    requests that it has accepted.

        deepsearch retrieve serve --index index --port 8000
    """
    from deepsearch_rl.server import launch  # noqa: PLC0415 - and the MCP library
    from deepsearch_rl.server.config import RetrievalConfig, ServerConfig  # noqa: PLC0415
    from deepsearch_rl.server.rerank import RerankerConfig  # noqa: PLC0415 - loads FAISS

    if (index is None) == (fields["retrieval.online"] is None):
        what = "--index with an index folder, or --online with a search engine"
        raise ConfigError(f"say what to serve: {what}.")

    if index is None:
        reason = "with --online, which searches no index; leave it out"
        require_effect(context, ["retriever", "chunks", "threads"], reason)
    options.require_reranker(context, fields["reranker.model"])

    settings = _PRESET.with_overrides(fields)
    if fields["reranker.model"]:
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


app.command("convert")(convert_command)
app.command("eval")(eval_command)
app.command("frontier")(frontier_command)
app.command("online")(online_command)
app.command("quantize")(quantize_command)
