"""``deepsearch retrieve build``: an index over a file of passages."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.commands.defaults import with_options
from deepsearch_rl.errors import ConfigError
from deepsearch_rl.presets import load_preset
from deepsearch_rl.profile import Profile, read_values
from deepsearch_rl.records import Device, VectorsKind

_PRESET = load_preset("retrieve")
_INDEX, _VECTORS = _PRESET.value("index"), _PRESET.value("vectors")
_ENCODER, _BM25, _CELLS = _INDEX["encoder"], _INDEX["bm25"], _VECTORS["ivf_pq"]


def build_command(
    corpus: Annotated[Path, Option(help="Passages, JSON Lines.")],
    out: Annotated[Path, Option(help="Index folder to write; an index that is there is replaced.")],
    params: Annotated[
        Path | None, Option(help="Take all settings below from section `index` of this params.yaml instead.")
    ] = None,
    corpus_name: Annotated[
        str, Option(help="With --params: the corpus, where `corpus_vectors` has settings of its own for it.")
    ] = "",
    encoder: Annotated[
        str, Option(help="`tfidf_svd`, which needs no weights, or a folder that sentence-transformers can read.")
    ] = _ENCODER["name"],
    dimension: Annotated[int, Option(help="Dimension of tfidf_svd's vectors.", min=1)] = _ENCODER["dimension"],
    query_prefix: Annotated[
        str | None, Option(help="Before every query, e.g. 'query: ' for e5.", show_default="the folder's")
    ] = None,
    passage_prefix: Annotated[
        str | None, Option(help="Before every passage, e.g. 'passage: '.", show_default="the folder's")
    ] = None,
    pooling: Annotated[str | None, Option(help="mean or cls.", show_default="the folder's")] = None,
    max_tokens: Annotated[
        int | None, Option(help="Longer passages are cut.", min=3, show_default="the folder's")
    ] = None,
    device: Annotated[Device, Option(help="Where the encoder runs; in float16 on cuda.")] = "cpu",
    vectors: Annotated[
        VectorsKind, Option(help="Vector index; `deepsearch retrieve frontier` helps to choose.")
    ] = _INDEX["vectors"]["kind"],
    nlist: Annotated[int, Option(help="ivf: cells, 1 to 8 times the root of the passages.", min=1)] = _CELLS["nlist"],
    nprobe: Annotated[int, Option(help="ivf: cells visited per query.", min=1)] = _CELLS["nprobe"],
    m: Annotated[int, Option(help="ivf_pq: codes per vector; divides the dimension.", min=1)] = _CELLS["m"],
    nbits: Annotated[int, Option(help="ivf_pq: bits of a code.", min=1, max=16)] = _CELLS["nbits"],
    train_rows: Annotated[int, Option(help="ivf: vectors that cells are learnt from.", min=1)] = _CELLS["train_rows"],
    half: Annotated[bool, Option("--half", help="Keep vectors in float16: half the disk.")] = False,
    k1: Annotated[float, Option(help="BM25: how slowly repeated terms saturate.", min=0.01)] = _BM25["k1"],
    b: Annotated[float, Option(help="BM25: how strongly long passages are discounted.", min=0, max=1)] = _BM25["b"],
    field: Annotated[
        list[str] | None,
        Option(
            help="What BM25 searches and how much a word there counts: title, source, date, body or contents, as "
            "`title=2`. Repeatable.",
            show_default="contents=1",
        ),
    ] = None,
    questions: Annotated[
        Path | None, Option(help="Questions with gold evidence, JSON Lines, that the hybrid learns from.")
    ] = None,
    work: Annotated[
        Path | None,
        Option(help="Where a killed build finds its vectors again.", show_default="a hidden folder beside --out"),
    ] = None,
    seed: Annotated[int, Option(help="Seed of whatever is drawn.", min=0, max=2**31 - 1)] = _PRESET.value("seed"),
) -> None:
    """Index a file of passages: BM25 and vectors, and a ranking learnt from questions where there are any.

    The folder appears when the index is complete; a build that was stopped goes on with the vectors that it has. The
    passages stay where they are: searching reads them from there. Memory does not grow with the corpus.

        deepsearch retrieve build --corpus corpus.jsonl --out index
        deepsearch retrieve build --corpus corpus.jsonl --out index --field title=2 --field body=1
        deepsearch retrieve build --corpus wiki-18.jsonl --out wiki --encoder models/e5-base-v2 --device cuda --half
        deepsearch retrieve build --corpus corpus.jsonl --out index --params params.yaml --corpus-name world
    """
    from deepsearch_rl.files import read_jsonl  # noqa: PLC0415 - with the rest
    from deepsearch_rl.records import Question  # noqa: PLC0415
    from deepsearch_rl.retrieval.build import IndexSection, build_index  # noqa: PLC0415 - loads FAISS and SciPy

    cells = {"nlist": nlist, "nprobe": nprobe, "train_rows": train_rows, "m": m, "nbits": nbits}
    of_kind = _VECTORS[vectors]
    options = {
        "index.encoding.dtype": "float16" if half else None,
        "index.vectors": {**of_kind, **{name: value for name, value in cells.items() if name in of_kind}},
        "index.bm25.k1": k1,
        "index.bm25.b": b,
        "index.bm25.fields": _field_weights(field) if field else None,
    }
    if params:
        settings = Profile(params, read_values(params))
    elif encoder == _ENCODER["name"]:
        settings = with_options(_PRESET, {**options, "index.encoder.dimension": dimension})
    else:
        # The manifest's reader may have another working directory. A name that is no folder is left as it is.
        model = str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder
        encoder_options: dict[str, object] = {
            "index.encoder.model": model,
            "index.encoder.device": device,
            "index.encoder.query_prefix": query_prefix,
            "index.encoder.passage_prefix": passage_prefix,
            "index.encoder.pooling": pooling,
            "index.encoder.max_tokens": max_tokens,
        }
        if device == "cuda":
            encoder_options |= {"index.encoder.dtype": "float16", "index.encoder.batch_tokens": 65_536}
        settings = with_options(load_preset("encoder"), {**options, **encoder_options})
    config = settings.section("index", IndexSection).of(corpus_name)
    known = list(read_jsonl(questions, Question)) if questions else []
    index = build_index(corpus, out, config, seed, work, known)
    size_mb = sum(index.sizes_bytes.values()) / 1e6
    typer.echo(f"{out}: {index.rows} passages, {index.dimension}-d vectors, {size_mb:.1f} MB")
    if weights := index.fusion_weights:
        held_out = ", ".join(f"{name} {scores['mrr@10']:.3f}" for name, scores in weights.held_out.items())
        counted = f"MRR@10 on {weights.questions} held-out questions"
        typer.echo(f"the hybrid ranks by {weights.ranking}; {counted}: {held_out}")
    elif questions:
        typer.echo("the hybrid has learnt nothing: there are too few questions with gold evidence.")


def _field_weights(fields: list[str]) -> dict[str, float]:
    """Return the weights of fields that are given as ``NAME=WEIGHT``; raise ConfigError for any other text."""
    weights: dict[str, float] = {}
    for field in fields:
        name, _, weight = field.partition("=")
        try:
            weights[name] = float(weight)
        except ValueError as error:
            raise ConfigError(f"--field {field!r} should be NAME=WEIGHT, e.g. title=2.") from error
    return weights
