"""``deepsearch retrieve``: build an index over any passage file, and search it.

Each command imports what it needs when it is called, so that ``deepsearch --help`` stays quick.
"""

import json
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepsearch_rl.retrieval.eval_command import eval_command
from deepsearch_rl.retrieval.server.command import serve_command
from deepsearch_rl.retrieval.vectors.frontier_command import frontier_command

if TYPE_CHECKING:
    from deepsearch_rl.retrieval.manifest import IndexManifest
    from deepsearch_rl.retrieval.searcher import Hit

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Build, search, serve and measure passage indexes.

Any file of passages in FlashRAG's layout will do, one JSON object a line: {"id", "contents": "title\\ntext"} or
{"id", "title", "text"}, with or without "metadata". An example session:

\b
    deepsearch retrieve build --corpus corpus.jsonl --out index
    deepsearch retrieve search --index index "When did Philae land?"
    deepsearch retrieve search --index index --source "The Verge" --after 2023-10-01 "chip exports"
    deepsearch retrieve search --index index --retriever hybrid --json "comet" | jq .[0].id
    deepsearch retrieve serve --index index --port 8000
    deepsearch retrieve eval --index index --questions questions.jsonl
""",
)
IndexFolder = Annotated[Path, typer.Option("--index", help="Folder that `retrieve build` wrote.")]


class RetrieverOption(StrEnum):
    """The retrievers of an index, as an option's values."""

    BM25 = "bm25"
    DENSE = "dense"
    HYBRID = "hybrid"


@app.command("build")
def build_command(
    corpus: Annotated[Path, typer.Option(help="Passages, JSON Lines.")],
    out: Annotated[Path, typer.Option(help="Index folder to write; an index that is there is replaced.")],
    dimension: Annotated[int, typer.Option(help="Dimension of the TF-IDF + SVD vectors.", min=1)] = 256,
    k1: Annotated[float, typer.Option(help="BM25: how slowly repeated terms saturate.", min=0.01)] = 0.9,
    b: Annotated[float, typer.Option(help="BM25: how strongly long passages are discounted.", min=0, max=1)] = 0.4,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="What BM25 searches and how much a word there counts: title, source, date, body or contents, as "
            "`title=2`. Repeatable.",
            show_default="contents=1",
        ),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Questions with gold evidence, JSON Lines, that the hybrid learns from.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of whatever is drawn.")] = 0,
) -> None:
    """Index a file of passages: BM25 and vectors, and a ranking learnt from questions where there are any.

    The folder appears when the index is whole. The passages stay where they are: searching reads them from there.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - with the rest below

    from deepsearch_rl.errors import ConfigError  # noqa: PLC0415
    from deepsearch_rl.files import read_jsonl  # noqa: PLC0415
    from deepsearch_rl.records import Question  # noqa: PLC0415
    from deepsearch_rl.retrieval.build import build_index  # noqa: PLC0415 - loads FAISS and SciPy
    from deepsearch_rl.retrieval.manifest import IndexConfig  # noqa: PLC0415

    values = {
        "bm25": {"engine": "builtin", "k1": k1, "b": b, "fields": _field_weights(field)},
        "encoder": {"name": "tfidf_svd", "dimension": dimension, "fit_rows": 50_000, "max_terms": 50_000},
        "encoding": {"engine": "local", "dtype": "float32", "block_rows": 4096, "ray": None},
        "vectors": {"kind": "flat"},
        "fusion": {
            "depth": 100,
            "source_depth": 30,
            "rrf_k": 60,
            "bm25_weight": 1.0,
            "dense_weight": 0.5,
            "learning": {"split": "train", "questions": 5000, "ridge": 0.001, "folds": 5},
        },
    }
    try:
        config = IndexConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"--field is NAME=WEIGHT, e.g. title=2: {error.errors()[0]['msg']}.") from error
    known = list(read_jsonl(questions, Question)) if questions else []
    built = build_index(corpus, out, config, seed, questions=known)
    size_mb = sum(built.sizes_bytes.values()) / 1e6
    typer.echo(f"{out}: {built.rows} passages, {built.dimension}-d vectors, {size_mb:.1f} MB")
    if questions:
        typer.echo(_learnt(built))


def _field_weights(fields: list[str] | None) -> dict[str, str]:
    return {name: weight for name, _, weight in (field.partition("=") for field in fields or ["contents=1"])}


def _learnt(built: "IndexManifest") -> str:
    weights = built.fusion_weights
    if weights is None:
        return "the hybrid has learnt nothing: there are too few questions with gold evidence."
    held_out = ", ".join(f"{name} {scores['mrr@10']:.3f}" for name, scores in weights.held_out.items())
    return f"the hybrid ranks by {weights.ranking}; MRR@10 on {weights.questions} held-out questions: {held_out}"


@app.command("search")
def search_command(
    index: IndexFolder,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top_k: Annotated[int, typer.Option(help="Passages to show, at most.", min=1)] = 5,
    retriever: Annotated[RetrieverOption, typer.Option(help="Which ranking.")] = RetrieverOption.BM25,
    source: Annotated[str | None, typer.Option(help="Only passages of this source, exactly as written there.")] = None,
    after: Annotated[
        datetime | None, typer.Option(help="Only passages published on this day or later.", formats=["%Y-%m-%d"])
    ] = None,
    before: Annotated[
        datetime | None, typer.Option(help="Only passages published on this day or earlier.", formats=["%Y-%m-%d"])
    ] = None,
    chunks: Annotated[Path | None, typer.Option(help="The passage file, if it was moved since the build.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of {id, score, contents, metadata}.")] = False,
) -> None:
    """Print the best passages for a query, numbered, with their scores.

    Passages without a source or a date are never found by a search that filters on it.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - with the rest below

    from deepsearch_rl.errors import ConfigError  # noqa: PLC0415
    from deepsearch_rl.retrieval.row_table import Filter  # noqa: PLC0415
    from deepsearch_rl.retrieval.searcher import open_index  # noqa: PLC0415 - loads FAISS

    try:
        where = Filter(source=source, after=after and after.date(), before=before and before.date())
    except ValidationError as error:
        raise ConfigError(f"these filters cannot be: {error.errors()[0]['msg']}.") from error
    [hits] = open_index(index, chunks, retriever.value).search([query], top_k, where)
    typer.echo(_as_json(hits) if as_json else _as_text(hits))


app.command("serve")(serve_command)
app.command("eval")(eval_command)
app.command("frontier")(frontier_command)


def _as_text(hits: "list[Hit]") -> str:
    shown = [f"[{rank}] {hit.score:.4f}  {hit.chunk.contents}" for rank, hit in enumerate(hits, 1)]
    return "\n\n".join(shown) or "No passages found."


def _as_json(hits: "list[Hit]") -> str:
    rows = [
        {
            "id": hit.chunk.id,
            "score": hit.score,
            "contents": hit.chunk.contents,
            "metadata": hit.chunk.metadata.model_dump(mode="json"),
        }
        for hit in hits
    ]
    return json.dumps(rows, ensure_ascii=False, indent=2)
