"""The options of ``deepsearch retrieve build``, ``search`` and ``serve``; many are fields of a preset."""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from typer import Option

from deepsearch_rl.cli.defaults import FieldOption, first_given, require_effect
from deepsearch_rl.cli.targets import writable_folder
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.search.names import Device, IndexHalf, RetrieverName, VectorsKind

if TYPE_CHECKING:
    from deepsearch_rl.search.manifest import IndexConfig

# Who computes an encoder with weights: sentence-transformers on torch, or onnxruntime an export
EncoderEngine: TypeAlias = Literal["transformers", "onnx"]
EncoderDtype: TypeAlias = Literal["float32", "float16", "bfloat16"]

Corpus: TypeAlias = Annotated[Path, Option(help="Passages, JSON Lines.")]
Out: TypeAlias = Annotated[
    Path,
    Option(
        help="Index folder to write; an index that is there is replaced.", callback=writable_folder
    ),
]
Params: TypeAlias = Annotated[
    Path | None, Option(help="Take all settings below from `index` of this file instead.")
]
CorpusName: TypeAlias = Annotated[
    str,
    Option(
        help="With --params: the corpus, where `corpus_vectors` has settings of its own for it."
    ),
]
Encoder: TypeAlias = Annotated[
    str,
    Option(
        help="`tfidf_svd`, which needs no weights, a folder that sentence-transformers can read, or with "
        "--revision the name of a hub's repository."
    ),
]
Engine: TypeAlias = Annotated[
    EncoderEngine,
    Option(
        help="What computes --encoder: torch, or onnxruntime an export in the folder, in float32 or int8 "
        "(`retrieve quantize`)."
    ),
]
Dtype: TypeAlias = Annotated[
    EncoderDtype | None,
    Option(
        help="Of the encoder in torch: bfloat16 for CPUs that multiply it, float16 for GPUs.",
        show_default="float32; float16 on cuda",
    ),
]
Dimension: TypeAlias = Annotated[int, Option(help="Dimension of tfidf_svd's vectors.", min=1)]
Vectors: TypeAlias = Annotated[
    VectorsKind, Option(help="Kind of vector index; `retrieve frontier` helps to choose.")
]
Only: TypeAlias = Annotated[
    IndexHalf | None,
    Option(
        help="Build one half alone: bm25 or dense.", show_default="both, and the hybrid of them"
    ),
]
Half: TypeAlias = Annotated[bool, Option("--half", help="Keep vectors in float16: half the disk.")]
FieldWeights: TypeAlias = Annotated[
    list[str] | None,
    Option(
        help="What BM25 searches and how much a word there counts: title, source, date, body or contents, as "
        "`title=2`. Repeatable.",
        show_default="contents=1",
    ),
]
Questions: TypeAlias = Annotated[
    Path | None,
    Option(help="Questions with gold evidence: the hybrid of both halves learns from them."),
]
Work: TypeAlias = Annotated[
    Path | None,
    Option(
        help="Where a killed build finds its vectors.",
        show_default="a hidden folder beside --out",
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    Option(
        help="CPU threads of an encoder with weights; the index does not keep them.",
        min=1,
        show_default="one for each core",
    ),
]
Seed: TypeAlias = Annotated[int, Option(help="Seed of whatever is drawn.", min=0, max=2**31 - 1)]

Index: TypeAlias = Annotated[Path, Option(help="Folder that `retrieve build` wrote.")]
Chunks: TypeAlias = Annotated[
    Path | None, Option(help="The passage file, if it was moved since the build.")
]
Host: TypeAlias = Annotated[str, Option(help="Address to listen on.")]
Port: TypeAlias = Annotated[
    int, Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
]
Public: TypeAlias = Annotated[
    bool, Option("--public", help="Allow an address that other machines can reach.")
]
TokenVariable: TypeAlias = Annotated[
    str | None,
    Option(help="Environment variable with a token that clients must send as `Bearer`."),
]
NoToken: TypeAlias = Annotated[
    bool, Option("--no-token", help="Let everybody search who reaches a --public address.")
]
Query: TypeAlias = Annotated[str, typer.Argument(help="The words to search for.")]
TopK: TypeAlias = Annotated[int, Option(help="Passages to show, at most.", min=1)]
Source: TypeAlias = Annotated[
    str | None, Option(help="Only passages of this source, exactly as written there.")
]
After: TypeAlias = Annotated[
    datetime | None, Option(help="Published on this day or later.", formats=["%Y-%m-%d"])
]
Before: TypeAlias = Annotated[
    datetime | None, Option(help="Published on this day or earlier.", formats=["%Y-%m-%d"])
]
HitsAsJson: TypeAlias = Annotated[
    bool, Option("--json", help="A JSON list of {id, score, contents, metadata}.")
]

SEARCH_FIELDS = {
    "retriever": FieldOption("retrieval.retriever", RetrieverName, "Which ranking."),
    "reranker": FieldOption(
        "reranker.model", Path | None, "Cross-encoder folder for the best hits."
    ),
    "rerank_depth": FieldOption(
        "reranker.depth", int, "Hits that the reranker puts in order.", min=1
    ),
}
SERVE_FIELDS = {
    **SEARCH_FIELDS,
    "online": FieldOption(
        "retrieval.online",
        str | None,
        "Search the web instead of an index: serpapi, google, brave, searxng or FILE.py:NAME.",
    ),
    "pages": FieldOption(
        "retrieval.pages", Path | None, "JSON Lines of {url, contents, ...} for /access."
    ),
    "rerank_tokens": FieldOption(
        "reranker.max_tokens", int, "Tokens of query and passage that the reranker reads.", min=8
    ),
    "rerank_batch_tokens": FieldOption(
        "reranker.batch_tokens", int, "Tokens of the reranker's batches, padding counted.", min=1
    ),
    "rerank_device": FieldOption("reranker.device", str, "Where the reranker runs: cpu or cuda."),
    "rerank_dtype": FieldOption(
        "reranker.dtype", str, "Of the reranker: float32, float16 or bfloat16."
    ),
    "top_k": FieldOption(
        "retrieval.top_k", int, "Passages per query where a request does not say.", min=1
    ),
    "window_ms": FieldOption(
        "retrieval.window_ms", float, "How long a search waits for others to share it.", min=0
    ),
    "max_batch": FieldOption(
        "retrieval.max_batch", int, "Queries that share a search at most.", min=1
    ),
    "search_timeout_s": FieldOption(
        "retrieval.search_timeout_s", float, "Longest search; then 503.", min=0.001
    ),
    "cache_entries": FieldOption(
        "retrieval.cache_entries", int, "Answers kept for repeated queries; 0: none.", min=0
    ),
}
_FOLDERS = {"show_default": "the folder's"}
BUILD_FIELDS = {
    "revision": FieldOption(
        "index.encoder.revision",
        str | None,
        "Commit of a hub's repository that --encoder names.",
        show_default="none",
    ),
    "query_prefix": FieldOption(
        "index.encoder.query_prefix",
        str | None,
        "Before every query, e.g. 'query: ' for e5.",
        **_FOLDERS,
    ),
    "passage_prefix": FieldOption(
        "index.encoder.passage_prefix",
        str | None,
        "Before every passage, e.g. 'passage: '.",
        **_FOLDERS,
    ),
    "pooling": FieldOption("index.encoder.pooling", str | None, "mean or cls.", **_FOLDERS),
    "max_tokens": FieldOption(
        "index.encoder.max_tokens", int | None, "Longer passages are cut.", min=3, **_FOLDERS
    ),
    "device": FieldOption("index.encoder.device", Device, "Where the encoder runs."),
    "nlist": FieldOption(
        "vectors.ivf_pq.nlist",
        int,
        "ivf: cells, 1 to 8 times the square root of the number of passages.",
        min=1,
    ),
    "nprobe": FieldOption("vectors.ivf_pq.nprobe", int, "ivf: cells visited per query.", min=1),
    "m": FieldOption(
        "vectors.ivf_pq.m", int, "ivf_pq: codes per vector; divides the dimension.", min=1
    ),
    "nbits": FieldOption("vectors.ivf_pq.nbits", int, "ivf_pq: bits of a code.", min=1, max=16),
    "train_rows": FieldOption(
        "vectors.ivf_pq.train_rows", int, "ivf: vectors that cells are learnt from.", min=1
    ),
    "k1": FieldOption(
        "index.bm25.k1", float, "BM25: how slowly repeated terms saturate.", min=0.01
    ),
    "b": FieldOption(
        "index.bm25.b", float, "BM25: how strongly long passages are discounted.", min=0, max=1
    ),
}
# What --params takes from its file
SETTINGS = ("encoder", "engine", "dtype", "dimension", "vectors", "half", "field", *BUILD_FIELDS)


def require_fitting_engine(
    has_weights: bool, engine: EncoderEngine, dtype: EncoderDtype | None
) -> None:
    """Raise ConfigError where ``--engine`` or ``--dtype`` is given for an encoder that has no such choice."""
    if not has_weights and (dtype or engine == "onnx"):
        raise ConfigError(
            "--engine and --dtype are of an encoder with weights: name it by --encoder."
        )
    if dtype and engine == "onnx":
        raise ConfigError(
            "--dtype is of an encoder in torch; an export has a type of its own (`retrieve quantize` writes int8)."
        )


def require_effect_of_half(context: typer.Context, only: IndexHalf | None) -> None:
    """Raise ConfigError where an option of ``build`` is of a half that is not built."""
    if only == "bm25":
        of_vectors = ("vectors", "half", "work", *_named("vectors."))
        of_encoder = (
            "encoder",
            "engine",
            "dtype",
            "dimension",
            "threads",
            *_named("index.encoder."),
        )
        reason = "with --only bm25, which makes no vectors; leave it out"
        require_effect(context, (*of_encoder, *of_vectors), reason)
    elif only == "dense":
        of_bm25 = ("field", *_named("index.bm25."))
        require_effect(context, of_bm25, "with --only dense, which has no BM25; leave it out")


def require_learning(index: "IndexConfig") -> None:
    """Raise ConfigError for ``--questions`` where an index learns nothing from questions."""
    halves = index.halves
    if len(halves) < 2:
        reason = f"for {''.join(halves)} alone: the hybrid learns from them, and is of both halves"
    elif index.fusion.learning is None:
        reason = "where index.fusion.learning of --params is null"
    else:
        return
    raise ConfigError(f"--questions does nothing {reason}; leave it out.")


def require_effect_on_build(
    context: typer.Context, kind: str, settings_of_kind: Collection[str], has_weights: bool
) -> None:
    """Raise ConfigError where an option of ``build`` is of another kind of vector index or encoder than these.

    For a build without ``--params``: there, ``--corpus-name`` has nothing to choose from, and is
    refused as well.
    """
    reason = "without --params, whose file may have settings of its own for a corpus; leave it out"
    require_effect(context, ["corpus_name"], reason)
    of_vectors = [name for name in _named("vectors.") if name not in settings_of_kind]
    require_effect(
        context, of_vectors, f"with --vectors {kind}; leave it out, or choose another kind"
    )
    if has_weights:
        reason = "with an encoder that has weights: these decide it; leave it out"
        require_effect(context, ["dimension"], reason)
    else:
        reason = "with tfidf_svd; name an encoder with weights by --encoder"
        require_effect(context, ["threads", *_named("index.encoder.")], reason)


def require_effect_on_import(context: typer.Context, source: Path, is_lucene: bool) -> None:
    """Raise ConfigError where an option of ``import`` is of another kind of index than ``source``."""
    if is_lucene:
        names = ["encoder", "engine", "dtype", "nprobe", "ef_search", *_named("index.encoder.")]
        reason = "with a Lucene index, which has no vectors; leave it out"
        require_effect(context, names, reason)
        return

    of_lucene = ["k1", "b", "heap_mb"]
    require_effect(context, of_lucene, "with vectors: it is for a Lucene index; leave it out")
    if source.suffix == ".npy":
        reason = "with a .npy file, all of whose vectors are compared; leave it out"
        require_effect(context, ["nprobe", "ef_search"], reason)


def require_effect_on_faiss(context: typer.Context, source: Path) -> None:
    """Raise ConfigError where an effort of ``import`` is not that of the searches of a FAISS file's kind."""
    if first_given(context, ["nprobe", "ef_search"]) is None:
        return
    from deepsearch_rl.search.search_effort import effort_of  # noqa: PLC0415 - loads FAISS

    kind, field = effort_of(source)
    others = [name for name in ("nprobe", "ef_search") if name != field]
    require_effect(context, others, f"with {source}, a FAISS {kind}; leave it out")


def _named(prefix: str) -> list[str]:
    """Return the options of ``build`` for fields below a prefix."""
    return [name for name, option in BUILD_FIELDS.items() if option.field.startswith(prefix)]


def require_reranker(context: typer.Context, reranker: Path | None) -> None:
    """Raise ConfigError where an option is about a reranker and none is named."""
    if reranker is None:
        names = [name for name in SERVE_FIELDS if name.startswith("rerank_")]
        require_effect(context, names, "without a cross-encoder; name its folder by --reranker")
