"""`deepsearch explain`: where the points of runs are lost, what could be reached, what differs from others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from typer import Option

from deepsearch_rl.cli.shared import print_table
from deepsearch_rl.core.errors import ConfigError, look_up
from deepsearch_rl.core.files import atomic_file
from deepsearch_rl.evaluate.explain.causes import Cause
from deepsearch_rl.evaluate.explain.explain import Options, explain_paths, report_of
from deepsearch_rl.evaluate.explain.records import (
    CEILINGS,
    CONTROLS,
    WITHOUT_EVIDENCE,
    AgainstReport,
    ControlFigure,
    ExplainReport,
    GroupReport,
    RunReport,
    title_of,
)
from deepsearch_rl.evaluate.f1_row import counts_text
from deepsearch_rl.evaluate.predictions import score_predictions
from deepsearch_rl.evaluate.score import Interval, bootstrap_intervals
from deepsearch_rl.search import RetrieverName

_Runs: TypeAlias = Annotated[
    list[Path],
    typer.Argument(
        help="Files of trajectories or predictions, or a folder `data/<profile>/evaluate[/<model>]`.",
        show_default=False,
    ),
]
_Questions: TypeAlias = Annotated[
    Path | None, Option(help="Question file, with gold evidence where known.")
]
_Index: TypeAlias = Annotated[
    Path | None, Option(help="Index that was searched, from `retrieve build`.")
]
_Corpus: TypeAlias = Annotated[
    Path | None,
    Option(help="Passages, JSON Lines, for a BM25 index built here; instead of --index."),
]
_Chunks: TypeAlias = Annotated[
    Path | None, Option(help="Passage file of --index, if it has moved.")
]
_Retriever: TypeAlias = Annotated[
    RetrieverName | None,
    Option(help="Ranking of --index.", show_default="the run's, or the index's first"),
]
_TopK: TypeAlias = Annotated[
    int | None,
    Option(help="Passages per search.", min=1, show_default="the run's, or its largest search"),
]
_Dataset: TypeAlias = Annotated[
    str | None,
    Option(help="Question set: selects runs of a folder, or names that of a file."),
]
_Against: TypeAlias = Annotated[
    str | None,
    Option(help="Compare with this model of evaluate/published.yaml."),
]
_Control: TypeAlias = Annotated[
    list[str] | None,
    Option(help="NAME=FILE of a control: gold_passage, no_search or random_passage. Repeatable."),
]
_Page: TypeAlias = Annotated[
    Path | None,
    Option(help="Also write an HTML page with examples.", dir_okay=False, writable=True),
]


def explain_command(
    runs: _Runs,
    questions: _Questions = None,
    index: _Index = None,
    corpus: _Corpus = None,
    chunks: _Chunks = None,
    retriever: _Retriever = None,
    top_k: _TopK = None,
    dataset: _Dataset = None,
    against: _Against = None,
    control: _Control = None,
    page: _Page = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
    draws: Annotated[int, Option(help="Bootstrap resamples.", min=1)] = 1000,
    seed: Annotated[int, Option(help="Seed of the resamples.", min=0)] = 0,
) -> None:
    """Show where runs lose points, cause by cause, what could be reached, and how a published row differs.

    Each answer that lost points has one cause; F1 and the points lost to all causes add up to 1.
    Runs of a graph or of `deepsearch evaluate` bring their questions, index and setting along. For
    predictions of another system, rows of `deepsearch score` with `"retrievals"`, name --questions
    and --corpus or --index. docs/contracts.md has the rows, docs/evaluation.md the causes.

        deepsearch explain data/tiny/evaluate --dataset multihoprag --page explain.html
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
        from deepsearch_rl.evaluate.report.page import render_explanation  # noqa: PLC0415

        with atomic_file(page) as partial:
            partial.write_text(render_explanation(report), encoding="utf-8")

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

    files: dict[str, Path] = {}
    for text in named:
        name, _, file = text.partition("=")
        look_up("control", name, CONTROLS)
        if not file:
            raise ConfigError(f"--control {text}: name its file of answers, {name}=FILE.")
        files[name] = Path(file)

    if not files:
        return {}
    searched = score_predictions(runs[0]).scores
    f1_by_id = dict(zip(searched.question_ids, searched.metrics["f1"].tolist(), strict=True))
    controls: dict[str, ControlFigure] = {}
    for name, file in files.items():
        controls[name] = _read_control(file, runs[0], f1_by_id, seed, draws)

    return controls


def _read_control(
    file: Path, run: Path, f1_by_id: Mapping[str, float], seed: int, draws: int
) -> ControlFigure:
    """Return F1 of a control's answers, beside that of the run on the questions that the control answers.

    ``f1_by_id`` has F1 of the run by question. Raise ConfigError where the control answers a
    question that the run does not.
    """
    control = score_predictions(file)

    # A control may answer fewer questions than the run
    question_ids = control.scores.question_ids
    missing = [question_id for question_id in question_ids if question_id not in f1_by_id]
    if missing:
        raise ConfigError(
            f"{file} answers {len(missing)} questions that {run} does not ({missing[0]}); "
            "a control is of the same questions."
        )

    [f1] = bootstrap_intervals(control.scores.metrics["f1"][:, None], seed, draws)
    return ControlFigure(
        n=len(question_ids),
        f1=f1,
        searched_f1=sum(f1_by_id[question_id] for question_id in question_ids) / len(question_ids),
        failures=control.failures,
    )


def print_report(report: ExplainReport) -> None:
    """Print the report as tables, by question set."""
    runs_by_set: dict[str, list[RunReport]] = {}
    for run in report.runs:
        runs_by_set.setdefault(run.dataset, []).append(run)

    for name, runs in runs_by_set.items():
        header = [""]
        header += [run.model for run in runs]
        title = f"Lost points{f', {name}' if name else ''}, {runs[0].n} questions"
        print_table(title, header, list(_loss_rows(runs)))
        print_table("Ceilings", header, list(_ceiling_rows(runs)))
        _print_movements(report, name)

        for run in runs:
            _print_groups(run, "type", run.types)
        for run in runs:
            _print_groups(run, "hops", run.hops)
        for entry in report.against:
            if entry.dataset == name:
                _print_against(entry)

        # Runs over one index have most of their notes in common: each is said once
        notes: dict[str, None] = {}
        for run in runs:
            notes |= dict.fromkeys(run.notes)
        for note in notes:
            typer.echo(f"Note: {note}")


def _print_movements(report: ExplainReport, dataset: str) -> None:
    """Print what changed between models that answered the same questions; nothing where there is one model."""
    moves = [move for move in report.movements if move.dataset == dataset]
    if not moves:
        return

    header = [""]
    f1_row = ["F1"]
    for move in moves:
        header.append(f"{move.model} - {move.other}")
        f1_row.append(_signed(move.f1))

    rows = [f1_row]
    for cause in _causes_in(move.lost for move in moves):
        row = [title_of(cause)]
        for move in moves:
            row.append(_signed(move.lost[cause]) if cause in move.lost else "")
        rows.append(row)

    print_table("What changed, on the same questions", header, rows)


def _causes_in(losses: Iterable[Mapping[Cause, object]]) -> list[Cause]:
    """Return the causes that occur in one of these, in their usual order."""
    present = set[Cause]().union(*losses)
    return [cause for cause in Cause if cause in present]


def _loss_rows(runs: Sequence[RunReport]) -> Iterator[list[str]]:
    f1_row = ["F1"]
    lucky_row = [f"(of F1) {title_of(WITHOUT_EVIDENCE)}"]
    for run in runs:
        f1_row.append(_share(run.f1))
        lucky_row.append(_share(run.right_without_evidence.lost))

    yield f1_row
    for cause in _causes_in(run.causes for run in runs):
        row = [title_of(cause)]
        for run in runs:
            row.append(_share(run.causes[cause].lost) if cause in run.causes else "")
        yield row

    # Last, because these points are not lost: they are the part of F1 that luck explains
    yield lucky_row


def _ceiling_rows(runs: Sequence[RunReport]) -> Iterator[list[str]]:
    for name, text in CEILINGS.items():
        whole_row = [f"{text}: all evidence"]
        recall_row = ["  share of the evidence"]
        for run in runs:
            ceiling = getattr(run.ceilings, name)
            whole_row.append(_share(ceiling.whole) if ceiling else "not known")
            recall_row.append(_share(ceiling.recall) if ceiling else "not known")

        yield whole_row
        yield recall_row

    for name, text in CONTROLS.items():
        row = [text]
        for run in runs:
            control = run.ceilings.controls.get(name)
            cell = _share(control.f1) if control else "not run"
            if control and control.failures:
                cell += f", without an answer: {counts_text(control.failures)}"
            row.append(cell)
        yield row


def _print_groups(run: RunReport, title: str, groups: Mapping[str, GroupReport]) -> None:
    """Print the causes of each group of a run's questions; ``title`` is what they are grouped by."""
    # One group is the whole run, which the table above shows
    if len(groups) < 2:
        return

    causes = _causes_in(group.lost for group in groups.values())
    rows: list[list[str]] = []
    for name, group in groups.items():
        row = [name, str(group.n), _share(group.f1)]
        for cause in causes:
            row.append(_share(group.lost[cause]) if cause in group.lost else "")
        rows.append(row)

    header = [title, "n", "F1", *map(title_of, causes)]
    print_table(f"{run.model}, by {title}", header, rows)


def _print_against(entry: AgainstReport) -> None:
    rows: list[list[str]] = []
    for setting in entry.settings:
        here = setting.here or "unknown"
        published = setting.published or "unknown"
        rows.append([setting.what, here, published, setting.verdict])

    title = (
        f"{entry.model} against {entry.published_model}: {entry.metric or 'a metric that is not named'} "
        f"{entry.score:.3f} ({entry.source})"
    )
    print_table(title, ["", "here", "published", ""], rows)

    rows = []
    for line in entry.recomputed:
        score = f"{line.score:.3f}"
        rows.append([line.what, line.metric, str(line.n), score, _signed(line.change)])

    header = ["", "metric", "n", "score", "minus the run's F1"]
    print_table("The same run, scored in other ways", header, rows)
    typer.echo(f"Not known from this run, and not guessed: {', '.join(entry.unknown) or 'nothing'}")


def _share(interval: Interval) -> str:
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
