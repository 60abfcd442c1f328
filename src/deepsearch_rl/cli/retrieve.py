"""``deepsearch retrieve``: build an index over any passage file, or import one; retrieve_search.py uses it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from typer import Option

from deepsearch_rl.cli.retrieve_search import (
    QrelsOption,
    eval_command,
    online_command,
    read_judgeable,
    search_command,
    serve_command,
)
from deepsearch_rl.cli.shared import ChangesOption, changed_field
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import distinct, require_another_file, write_jsonl
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.core.profile import Profile, read_values
from deepsearch_rl.core.records import Document
from deepsearch_rl.data.flashrag import numbered_documents
from deepsearch_rl.search import IndexHalf

if TYPE_CHECKING:
    from deepsearch_rl.search.manifest import IndexManifest

app = typer.Typer(
    no_args_is_help=True,
    help="""
    Build, search, serve and measure passage indexes.

    Passages are JSON Lines in FlashRAG's layout, `{"id", "contents": "title\\ntext"}` or `{"id", "title", "text"}`,
    with optional `"metadata"`; `retrieve convert` writes them from other files.

        deepsearch retrieve build --corpus corpus.jsonl --out index
        deepsearch retrieve search --index index "When did Philae land?"
        deepsearch retrieve serve --index index --port 8000
    """,
)
# The encoder of a build where none is named
TFIDF_SVD = "tfidf_svd"

_Corpus: TypeAlias = Annotated[Path, Option(help="Passages, JSON Lines.")]
_Out: TypeAlias = Annotated[
    Path,
    Option(
        help="Index folder to write; an index that is there is replaced.",
        file_okay=False,
        writable=True,
    ),
]
_Encoder: TypeAlias = Annotated[
    str | None,
    Option(
        help="A folder that sentence-transformers reads, or with -S index.encoder.revision=COMMIT a hub's repository.",
        show_default="tfidf_svd, which needs no weights",
    ),
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
    qrels: QrelsOption = None,
    params: Annotated[
        Path | None, Option(help="Start from section `index` of this file, not from defaults.")
    ] = None,
    corpus_name: Annotated[
        str, Option(help="With --params: the corpus, which can have settings of its own there.")
    ] = "",
    changes: ChangesOption = None,
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

    known = read_judgeable(questions, qrels) if questions else []
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
    changes: ChangesOption = None,
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


@app.command("convert")
def convert_command(
    source: Annotated[
        Path, typer.Argument(help="Passages or documents in any layout that is read.")
    ],
    out: Annotated[
        Path, typer.Argument(help="JSON Lines file to write.", dir_okay=False, writable=True)
    ],
) -> None:
    """Write passages of another layout as JSON Lines, which an index is built over.

    Formats: JSON Lines, a JSON array, CSV and TSV with a header, and Parquet, each also gzipped. The
    keys or columns are `id` (or BEIR's `_id`), `contents`, `title` and `text`.

        deepsearch retrieve convert psgs_w100.tsv.gz corpus.jsonl
    """
    require_another_file(out, [source])
    documents = distinct(lambda: numbered_documents(source), source)
    count = write_jsonl(out, _require_one(documents, source))
    typer.echo(f"{count} documents in {out}")


def _require_one(documents: Iterable[Document], source: Path) -> Iterator[Document]:
    """Yield documents; raise ArtifactError where there is none, so that no empty file is written."""
    is_empty = True
    for document in documents:
        is_empty = False
        yield document

    if is_empty:
        raise ArtifactError(
            f"{source} holds no document; a table has rows below its header, and other files a document a line."
        )


app.command("search")(search_command)
app.command("serve")(serve_command)
app.command("eval")(eval_command)
app.command("online")(online_command)
