"""``deepsearch retrieve eval`` and ``frontier``: how good an index's retrievers are, which vector index to build."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from typer import Option

from deepsearch_rl.cli.defaults import first_given, require_effect
from deepsearch_rl.cli.targets import writable_folder
from deepsearch_rl.cli.terminal import print_table
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.presets import load_preset
from deepsearch_rl.data.flashrag import read_questions

if TYPE_CHECKING:
    from deepsearch_rl.search.comparison import MetricInterval, RetrieverComparison

_LEARNING = load_preset("retrieve").value("index")["fusion"]["learning"]
UNITS_MB = {"kb": 1e-3, "mb": 1.0, "gb": 1e3, "tb": 1e6}


_Questions: TypeAlias = Annotated[
    Path, Option(help="Questions with gold evidence, in any layout that is read.")
]
_Retrievers: TypeAlias = Annotated[
    list[str] | None, Option(help="bm25, dense, rrf or hybrid.", show_default="all that it has")
]
_CrossValidate: TypeAlias = Annotated[
    bool,
    Option(
        "--cross-validate/--stored-weights",
        help="The hybrid learns from the other folds of these questions, or ranks as the index has learnt to; "
        "the latter is honest only for questions that it was not built with.",
    ),
]


def eval_command(
    context: typer.Context,
    index: Annotated[Path, Option("--index", help="Folder that `retrieve build` wrote.")],
    questions: _Questions,
    retriever: _Retrievers = None,
    cross_validate: _CrossValidate = True,
    folds: Annotated[
        int, Option(help="Of the hybrid: parts that the questions are dealt into.", min=2)
    ] = _LEARNING["folds"],
    ridge: Annotated[
        float, Option(help="Of the hybrid: penalty on squared weights.", min=1e-9)
    ] = _LEARNING["ridge"],
    cutoffs: Annotated[str, Option(help="The k of hits@k and evidence recall@k.")] = "4,10",
    chunks: Annotated[
        Path | None, Option(help="The passage file, if it was moved since the build.")
    ] = None,
    seed: Annotated[int, Option(help="Of folds and resamples.", min=0, max=2**31 - 1)] = 0,
    draws: Annotated[int, Option(help="Bootstrap resamples.", min=0)] = 1000,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score an index's retrievers over questions with gold evidence, with 95 % intervals.

    A question is `{"id", "question", "golden_answers", "metadata"}`; its metadata says which
    passages are gold: `"evidence_list"` (those that contain a `"fact"`; MultiHop-RAG's official
    scores), otherwise `"supporting_doc_ids"` or `"supporting_titles"` (those of such a document,
    however its title is spelled). Questions with none of these are left out. Titles and documents
    that the index does not have are counted and listed.

        deepsearch retrieve eval --index index --questions questions.jsonl
    """
    # Here, because it loads FAISS.
    from deepsearch_rl.search.comparison import compare_retrievers  # noqa: PLC0415
    from deepsearch_rl.search.ranking import LearningConfig  # noqa: PLC0415
    from deepsearch_rl.search.searcher import open_index  # noqa: PLC0415

    depths = list(map(str.strip, cutoffs.split(",")))
    if not all(re.fullmatch("[1-9][0-9]{0,5}", depth) for depth in depths):
        raise ConfigError(
            f"--cutoffs {cutoffs!r} should be numbers from 1 to 999999 with commas between, e.g. 4,10."
        )

    _require_learning(context, index, retriever or (), cross_validate)
    rows = list(read_questions(questions))
    learning = None

    if cross_validate:
        learning = LearningConfig(
            split="given", questions=max(len(rows), 1), ridge=ridge, folds=folds
        )

    searcher = open_index(index, chunks)
    names = retriever or []
    comparison = compare_retrievers(
        searcher, index, rows, names, list(map(int, depths)), learning, seed, draws
    )

    if as_json:
        typer.echo(comparison.model_dump_json(indent=2))
    else:
        _print(comparison, "cross-validated" if cross_validate else "as stored")


def _require_learning(
    context: typer.Context, index: Path, retrievers: Sequence[str], cross_validate: bool
) -> None:
    """Raise ConfigError where an option says how the hybrid learns, and none does."""
    from deepsearch_rl.search.manifest import read_manifest  # noqa: PLC0415 - loads pydantic

    names = ("folds", "ridge")
    if first_given(context, names) is None:
        return
    if not cross_validate:
        reason = "with --stored-weights, which learns nothing; leave it out"
    elif retrievers and "hybrid" not in retrievers:
        reason = "without the hybrid, which alone learns; leave it out, or add --retriever hybrid"
    elif not retrievers and len(read_manifest(index).config.halves) < 2:
        reason = "for an index of one half, which has no hybrid that could learn; leave it out"
    else:
        return
    require_effect(context, names, reason)


def _print(comparison: "RetrieverComparison", weights: str) -> None:
    header = [""]
    # By metric, all retrievers with the same
    rows = {metric: [metric] for metric in next(iter(comparison.scores.values()))}
    for name, scores in comparison.scores.items():
        header.append(f"{name}\n{weights}" if name == "hybrid" else name)
        for metric, row in rows.items():
            row.append(_cell(scores[metric], ".3f"))

    if comparison.hybrid_minus_better_half:
        header.append("hybrid minus\nbetter half")
        for metric, row in rows.items():
            row.append(_cell(comparison.hybrid_minus_better_half[metric], "+.3f"))

    print_table("", header, list(rows.values()), is_ruled=True)
    length = comparison.chunk_length
    kinds = ", ".join(f"{count} by {kind}" for kind, count in comparison.gold.items())
    typer.echo(
        f"{comparison.questions} questions ({kinds}); {comparison.chunks} chunks of {length.words} words "
        f"({length.characters:.0f} characters) on average, titles included"
    )
    if comparison.missing_gold.missing:
        typer.echo(f"{comparison.missing_gold}.")


def _cell(interval: "MetricInterval", form: str) -> str:
    return f"{interval.mean:{form}}\n{interval.low:{form}} to {interval.high:{form}}"


_SampleQueries: TypeAlias = Annotated[
    int,
    Option(
        help="Without --queries: this many of the vectors, which do not count as hits of themselves.",
        min=1,
    ),
]
_Target: TypeAlias = Annotated[
    float,
    Option(
        help="Recall@5 to reach; of the settings that do, the fastest is recommended.",
        min=0,
        max=1,
    ),
]


def frontier_command(
    context: typer.Context,
    out: Annotated[Path, Option(help="Folder for frontier.csv.", callback=writable_folder)],
    vectors: Annotated[
        Path | None, Option(help="Vectors to index, an N x D .npy file of unit rows.")
    ] = None,
    index: Annotated[Path | None, Option(help="Or an index folder that keeps its vectors.")] = None,
    queries: Annotated[Path | None, Option(help="Query vectors, a .npy file.")] = None,
    sample_queries: _SampleQueries = 500,
    memory_budget: Annotated[
        str, Option(help="Memory that an index may take, e.g. 2GB or 300MB.")
    ] = "2GB",
    target: _Target = 0.95,
    kinds: Annotated[
        str, Option(help="With commas between.")
    ] = "flat,ivf_flat,ivf_pq,ivf_pq_refine,hnsw",
    nlist: Annotated[
        int | None, Option(help="Cells; without it the square root of the rows.", min=1)
    ] = None,
    batch: Annotated[int, Option(help="Queries searched together.", min=1)] = 64,
    seed: Annotated[int, Option(help="Seed of all random choices.", min=0, max=2**31 - 1)] = 0,
) -> None:
    """Measure recall@5, speed and memory over the kinds of vector index, and recommend one for a memory budget.

    Every kind is built over these vectors in turn and removed again. Queries/s are of one core with
    all files in the page cache. HNSW takes longest to build: leave it out of --kinds where there
    are millions of vectors.
    """
    from deepsearch_rl.search import frontier  # noqa: PLC0415 - loads FAISS
    from deepsearch_rl.search.vectors.flat import open_vector_file  # noqa: PLC0415

    kind_names = list(map(str.strip, kinds.split(",")))
    if queries is not None:
        reason = "beside --queries, all of which are searched for; leave one of them out"
        require_effect(context, ["sample_queries"], reason)
    if not any(name.startswith("ivf") for name in kind_names):
        require_effect(context, ["nlist"], "without a kind ivf in --kinds; leave it out")

    budget_mb = megabytes_of(memory_budget)
    path = vectors_of(vectors, index)
    file = open_vector_file(path)
    out.mkdir(parents=True, exist_ok=True)
    frontier.require_room(path, out)
    settings = frontier.sweeps(file.rows, file.dimension, kind_names, nlist)
    # In a folder of its own: a file of queries in ``out`` is the user's
    with tempfile.TemporaryDirectory(dir=out, prefix=".queries-") as folder:
        prepared = Path(folder, "queries.npy")
        sample = frontier.prepare_queries(file, queries, sample_queries, prepared, seed)
        points = frontier.measure_frontier(path, sample, settings, batch, out, seed)
    best = frontier.recommend(points, budget_mb, target)
    frontier.write_points(points, out / "frontier.csv")
    typer.echo("\n".join(frontier.described(point) for point in frontier.pareto(points)))
    typer.echo(f"\nAll settings: {out / 'frontier.csv'}.")
    if best is None:
        least_mb = min(point.memory_mb for point in points)
        raise ConfigError(f"no index fits {memory_budget}; the smallest takes {least_mb:.1f} MB.")

    typer.echo(
        f"For {memory_budget}, {frontier.described(best)}:\n\n  {frontier.snippet(best.config)}"
    )


def vectors_of(vectors: Path | None, index: Path | None) -> Path:
    """Return the vectors file that the options name; raise ConfigError unless exactly one of them is given."""
    if vectors is not None and index is None:
        return vectors
    if index is None or vectors is not None:
        raise ConfigError("give either --vectors FILE.npy or --index DIR.")
    path = index / "dense" / "vectors.npy"

    if not path.is_file():
        raise ArtifactError(
            f"{path} does not exist: the index is missing, or of a kind that keeps no vectors "
            "file. Give --vectors, or build the index with kind flat or ivf_pq_refine."
        )

    return path


def megabytes_of(text: str) -> float:
    """Return a size such as ``2GB`` in 10^6 bytes; raise ConfigError for any other text."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]b)\s*", text.lower())
    if match is None:
        raise ConfigError(
            f"--memory-budget {text!r} is not a size; write for example 2GB or 300MB."
        )

    return float(match[1]) * UNITS_MB[match[2]]
