"""``deepsearch retrieve eval``: how well an index's retrievers find gold evidence."""

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from deepsearch_rl.commands.terminal import print_table
from deepsearch_rl.errors import ConfigError
from deepsearch_rl.presets import load_preset

if TYPE_CHECKING:
    from deepsearch_rl.retrieval.measurement.comparison import Comparison, Interval

_LEARNING = load_preset("retrieve").value("index")["fusion"]["learning"]
METRICS = ("mrr", "map", "hits", "evidence_recall")
"""In the order of the table's rows."""


def eval_command(
    index: Annotated[Path, Option("--index", help="Folder that `retrieve build` wrote.")],
    questions: Annotated[Path, Option(help="Questions with gold evidence, JSON Lines.")],
    retriever: Annotated[
        list[str] | None, Option(help="bm25, dense, rrf or hybrid; repeatable.", show_default="all four")
    ] = None,
    cross_validate: Annotated[
        bool,
        Option(
            "--cross-validate/--stored-weights",
            help="The hybrid learns from the other folds of these questions, or ranks as the index has learnt to; "
            "the latter is honest only for questions that it was not built with.",
        ),
    ] = True,
    folds: Annotated[int, Option(help="Parts that the questions are dealt into.", min=2)] = _LEARNING["folds"],
    ridge: Annotated[float, Option(help="Penalty on squared weights.", min=1e-9)] = _LEARNING["ridge"],
    cutoffs: Annotated[str, Option(help="The k of hits@k and evidence recall@k.")] = "4,10",
    chunks: Annotated[Path | None, Option(help="The passage file, if it was moved since the build.")] = None,
    seed: Annotated[int, Option(help="Of folds and resamples.", min=0, max=2**31 - 1)] = 0,
    draws: Annotated[int, Option(help="Bootstrap resamples.", min=0)] = 1000,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
    as_csv: Annotated[Path | None, Option("--csv", help="Also write the figures to a CSV file.")] = None,
) -> None:
    """Score an index's retrievers over questions with gold evidence, with 95 % intervals.

    A question is `{"id", "question", "golden_answers", "metadata"}`; its metadata says which passages are gold:
    `"evidence_list"` (those that contain a `"fact"`; MultiHop-RAG's official scores), otherwise `"supporting_doc_ids"`
    or `"supporting_titles"` (those of such a document). Questions with none of these are left out.

        deepsearch retrieve eval --index index --questions questions.jsonl
    """
    from deepsearch_rl.files import read_jsonl  # noqa: PLC0415 - with the rest below, which loads FAISS
    from deepsearch_rl.records import Question  # noqa: PLC0415
    from deepsearch_rl.retrieval.fusion import LearningConfig  # noqa: PLC0415
    from deepsearch_rl.retrieval.measurement.comparison import COMPARED, compare_retrievers  # noqa: PLC0415
    from deepsearch_rl.retrieval.searcher import open_index  # noqa: PLC0415

    depths = [part.strip() for part in cutoffs.split(",")]
    if not all(re.fullmatch("[1-9][0-9]{0,5}", depth) for depth in depths):
        raise ConfigError(f"--cutoffs {cutoffs!r} should be numbers from 1 to 999999 with commas between, e.g. 4,10.")
    rows = list(read_jsonl(questions, Question))
    learning = LearningConfig(split="given", questions=max(len(rows), 1), ridge=ridge, folds=folds)
    comparison = compare_retrievers(
        open_index(index, chunks),
        index,
        rows,
        retriever or COMPARED,
        list(map(int, depths)),
        learning if cross_validate else None,
        seed,
        draws,
    )
    if as_csv:
        _write_csv(as_csv, comparison)
    if as_json:
        typer.echo(comparison.model_dump_json(indent=2))
    else:
        _print(comparison, "cross-validated" if cross_validate else "as stored")


def _print(comparison: "Comparison", weights: str) -> None:
    header = ["", *(f"{name}\n{weights}" if name == "hybrid" else name for name in comparison.scores)]
    gains = comparison.hybrid_minus_better_half
    rows = []
    for metric in _metrics(comparison):
        cells = [_cell(scores[metric], ".3f") for scores in comparison.scores.values()]
        rows.append([metric, *cells, *([_cell(gains[metric], "+.3f")] if gains else [])])
    print_table("", [*header, *(["hybrid minus\nbetter half"] if gains else [])], rows, is_ruled=True)
    length = comparison.chunk_length
    kinds = ", ".join(f"{count} by {kind}" for kind, count in comparison.gold.items())
    typer.echo(
        f"{comparison.questions} questions ({kinds}); {comparison.chunks} chunks of {length.words} words "
        f"({length.characters:.0f} characters) on average, titles included"
    )


def _cell(interval: "Interval", form: str) -> str:
    return f"{interval.mean:{form}}\n{interval.low:{form}} to {interval.high:{form}}"


def _metrics(comparison: "Comparison") -> list[str]:
    """Return the names of the metrics, such as ``hits@10``, in the order of the table."""
    names = (metric.split("@") for metric in next(iter(comparison.scores.values())))
    ranked = sorted((METRICS.index(name), int(depth)) for name, depth in names)
    return [f"{METRICS[place]}@{depth}" for place, depth in ranked]


def _write_csv(path: Path, comparison: "Comparison") -> None:
    scores = {**comparison.scores, "hybrid_minus_better_half": comparison.hybrid_minus_better_half}
    with path.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(("retriever", "metric", "mean", "low", "high"))
        for name, intervals in scores.items():
            for metric in _metrics(comparison) if intervals else ():
                score = intervals[metric]
                rows.writerow((name, metric, *(f"{value:.6f}" for value in (score.mean, score.low, score.high))))
