"""`deepsearch explain`: where the points of runs are lost, what could be reached, what differs from others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from deepsearch_rl.commands.terminal import print_table
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.core.records import RetrieverName
from deepsearch_rl.evaluation.scoring.score import Interval, bootstrap_intervals
from deepsearch_rl.evaluation.standalone.predictions import score_predictions
from deepsearch_rl.explain.causes.causes import Cause
from deepsearch_rl.explain.causes.records import (
    CEILINGS,
    CONTROLS,
    WITHOUT_EVIDENCE,
    AgainstReport,
    ControlFigure,
    ExplainReport,
    RunReport,
    title_of,
)
from deepsearch_rl.explain.standalone.explain import Options, explain_paths, report_of


def explain_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Files of trajectories or predictions, or data/<profile>/evaluate/<model> of a finished graph, or the "
            "folder of all its models.",
            show_default=False,
        ),
    ],
    questions: Annotated[
        Path | None, Option(help="Their questions, with gold evidence where it is known.")
    ] = None,
    index: Annotated[
        Path | None, Option(help="The index that was searched, a folder of `retrieve build`.")
    ] = None,
    corpus: Annotated[
        Path | None,
        Option(help="Or its passages, JSON Lines; BM25 is built over them for the time being."),
    ] = None,
    chunks: Annotated[
        Path | None, Option(help="With --index: its passage file, if it was moved since the build.")
    ] = None,
    retriever: Annotated[
        RetrieverName | None,
        Option(help="With --index: which ranking.", show_default="the run's, or the index's first"),
    ] = None,
    top_k: Annotated[
        int | None,
        Option(help="Passages per search.", min=1, show_default="the run's, or its largest search"),
    ] = None,
    dataset: Annotated[
        str | None,
        Option(help="Of a folder, this question set alone; of a file, the name of its set."),
    ] = None,
    against: Annotated[
        str | None,
        Option(help="A model of evaluation/tables/published.yaml, by its name there."),
    ] = None,
    control: Annotated[
        list[str] | None,
        Option(
            help="Predictions of the same system with gold_passage, no_search or random_passage, as NAME=FILE. "
            "Repeatable."
        ),
    ] = None,
    page: Annotated[Path | None, Option(help="Write an HTML page here, with examples.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
    draws: Annotated[int, Option(help="Bootstrap resamples.", min=1)] = 1000,
    seed: Annotated[int, Option(help="Of the resamples.", min=0)] = 0,
) -> None:
    """Show where runs lose points, cause by cause, what could be reached, and how a published row differs.

    Every answer that lost points lost them to one cause, and with F1 they add up to 1. A run of a
    finished graph needs nothing else: questions, index and setting are found beside it. A
    prediction is a row of `deepsearch score` with what was retrieved, `"retrievals": [{"query",
    "passages": [text]}]`, or `"chunk_ids"` in place of the passages; FlashRAG's `output` is read
    too. Without gold evidence the answer's string stands in. Without an index or a corpus, what the
    corpus lacks and why something was not found stays unknown. docs/evaluation.md defines every
    cause.

        deepsearch explain data/tiny/evaluate --dataset multihoprag --page explain.html
        deepsearch explain data/tiny/evaluate/sft
        deepsearch explain data/gpu/evaluate/sft_rl --dataset musique --against kimi-k2-turbo-preview
        deepsearch explain predictions.jsonl --questions questions.jsonl --corpus corpus.jsonl --json
    """
    options = Options(
        questions=questions,
        index=index,
        chunks=chunks,
        corpus=corpus,
        retriever=retriever,
        top_k=top_k,
        dataset=dataset,
        against=against,
        seed=seed,
        draws=draws,
        controls=_read_controls(control or (), runs, seed, draws),
    )
    explained = explain_paths(runs, options)
    report = report_of(explained, options)

    if page is not None:
        # Here, because it loads matplotlib
        from deepsearch_rl.explain.standalone.page import render_page  # noqa: PLC0415

        with atomic_file(page) as partial:
            partial.write_text(render_page(report), encoding="utf-8")

    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        print_report(report)
        if page is not None:
            typer.echo(f"The page with examples: {page}")


def _read_controls(
    named: Sequence[str], runs: Sequence[Path], seed: int, draws: int
) -> dict[str, ControlFigure]:
    """Return F1 of the same system under other conditions, beside that with search on the same questions."""
    if named and (len(runs) != 1 or not runs[0].is_file()):
        raise ConfigError("--control belongs to one run: name one file of answers beside it.")

    controls: dict[str, ControlFigure] = {}
    for text in named:
        name, _, file = text.partition("=")
        look_up("control", name, CONTROLS)
        scores = score_predictions(Path(file)).scores
        searched = score_predictions(runs[0]).scores
        searched_f1 = dict(zip(searched.question_ids, searched.metrics["f1"].tolist(), strict=True))
        missing = [each for each in scores.question_ids if each not in searched_f1]
        if missing:
            raise ConfigError(
                f"{file} answers {len(missing)} questions that {runs[0]} does not ({missing[0]}); a control is of "
                "the same questions."
            )

        [f1] = bootstrap_intervals(scores.metrics["f1"][:, None], seed, draws)
        same = [searched_f1[each] for each in scores.question_ids]
        controls[name] = ControlFigure(n=len(same), f1=f1, searched_f1=sum(same) / len(same))

    return controls


def print_report(report: ExplainReport) -> None:
    """Print the report as tables, by question set."""
    for name in dict.fromkeys(run.dataset for run in report.runs):
        runs = [run for run in report.runs if run.dataset == name]
        title = f"Lost points{f', {name}' if name else ''}, {runs[0].n} questions"
        print_table(title, ["", *(run.model for run in runs)], list(_loss_rows(runs)))
        print_table("Ceilings", ["", *(run.model for run in runs)], list(_ceiling_rows(runs)))

        moves = [move for move in report.movements if move.dataset == name]
        if moves:
            header = ["", *(f"{move.model} - {move.other}" for move in moves)]
            rows = [["F1", *(_signed(move.f1) for move in moves)]]
            for cause in Cause:
                if any(cause in move.lost for move in moves):
                    cells = [
                        _signed(move.lost[cause]) if cause in move.lost else "" for move in moves
                    ]
                    rows.append([title_of(cause), *cells])
            print_table("What changed, on the same questions", header, rows)

        for kind in ("types", "hops"):
            for run in runs:
                _print_groups(run, kind)
        for entry in report.against:
            if entry.dataset == name:
                _print_against(entry)
        for note in dict.fromkeys(note for run in runs for note in run.notes):
            typer.echo(f"Note: {note}")


def _loss_rows(runs: Sequence[RunReport]) -> Iterator[list[str]]:
    yield ["F1", *(_share(run.f1) for run in runs)]
    for cause in Cause:
        if any(cause in run.causes for run in runs):
            cells = [_share(run.causes[cause].lost) if cause in run.causes else "" for run in runs]
            yield [title_of(cause), *cells]

    lucky = [_share(run.right_without_evidence.lost) for run in runs]
    yield [f"(of F1) {title_of(WITHOUT_EVIDENCE)}", *lucky]


def _ceiling_rows(runs: Sequence[RunReport]) -> Iterator[list[str]]:
    for name, text in CEILINGS.items():
        found = [getattr(run.ceilings, name) for run in runs]
        cells = [_share(each.whole) if each else "not known" for each in found]
        yield [f"{text}: all evidence", *cells]
        cells = [_share(each.recall) if each else "not known" for each in found]
        yield ["  share of the evidence", *cells]

    for name, text in CONTROLS.items():
        figures = [run.ceilings.controls.get(name) for run in runs]
        yield [text, *(_share(each.f1) if each else "not run" for each in figures)]


def _print_groups(run: RunReport, kind: str) -> None:
    groups = run.types if kind == "types" else run.hops
    if len(groups) < 2:
        return

    causes = [cause for cause in Cause if any(cause in group.lost for group in groups.values())]
    rows: list[list[str]] = []
    for name, group in groups.items():
        cells = [_share(group.lost[cause]) if cause in group.lost else "" for cause in causes]
        rows.append([name, str(group.n), _share(group.f1), *cells])

    header = ["type" if kind == "types" else "hops", "n", "F1", *map(title_of, causes)]
    print_table(f"{run.model}, by {'type' if kind == 'types' else 'hops'}", header, rows)


def _print_against(entry: AgainstReport) -> None:
    rows = [
        [line.what, line.here or "unknown", line.published or "unknown", line.verdict]
        for line in entry.settings
    ]
    title = (
        f"{entry.model} against {entry.published_model}: {entry.metric or 'a metric that is not named'} "
        f"{entry.score:.3f} ({entry.source})"
    )
    print_table(title, ["", "here", "published", ""], rows)

    rows = [
        [line.what, line.metric, str(line.n), f"{line.score:.3f}", _signed(line.change)]
        for line in entry.recomputed
    ]
    header = ["", "metric", "n", "score", "minus the run's F1"]
    print_table("The same run, scored in other ways", header, rows)
    typer.echo(f"Not known from this run, and not guessed: {', '.join(entry.unknown) or 'nothing'}")


def _share(interval: Interval) -> str:
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
