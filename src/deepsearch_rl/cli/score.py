"""`deepsearch score` and `deepsearch compare`, and the reports that they print."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pydantic import Field
from typer import Option

from deepsearch_rl.cli.shared import print_table
from deepsearch_rl.core import answers
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.records import Record
from deepsearch_rl.evaluate.comparisons import holm
from deepsearch_rl.evaluate.f1_row import ConstantScore
from deepsearch_rl.evaluate.overlap import ConstantAnswers
from deepsearch_rl.evaluate.predictions import ScoredFile, score_predictions
from deepsearch_rl.evaluate.score import (
    PairedDifference,
    QuestionScores,
    bootstrap_intervals,
    paired_differences,
)

Predictions = Annotated[
    Path, typer.Argument(help="JSON Lines of predictions, or of trajectories.", show_default=False)
]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Draws = Annotated[int, Option(min=0, help="Bootstrap resamples; 0 leaves the intervals out.")]
ComparisonDraws = Annotated[
    int, Option(min=1, help="Bootstrap resamples, and random sign patterns of the test.")
]
Seed = Annotated[int, Option(min=0, help="Of the resamples.")]


class ScoreGroup(Record):
    """Scores of a set of questions; every score in [0, 1]."""

    n: int = Field(ge=1, description="questions")
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]] | None = Field(
        description="95 % bootstrap intervals; null: no resamples"
    )
    constant: ConstantScore = Field(
        description="the best that one answer to every question can reach"
    )


class ScoreReport(ScoreGroup):
    """Scores of a file."""

    rows: int = Field(
        ge=1, description="answers; more than questions where questions were answered several times"
    )
    failures: dict[str, int] = Field(
        description="answers that are none, by kind; they stay in the denominator"
    )
    types: dict[str, ScoreGroup] = Field(description="by question type, where types are known")


class ComparisonGroup(Record):
    """Differences over a set of questions, by metric."""

    n: int = Field(ge=1, description="questions")
    differences: dict[str, PairedDifference]


class ComparisonReport(ComparisonGroup):
    """The first file minus the second."""

    types: dict[str, ComparisonGroup]


def score_command(
    predictions: Predictions, as_json: AsJson = False, draws: Draws = 1000, seed: Seed = 0
) -> None:
    """Score answers: em, f1, acc, precision and recall, with 95 % intervals, by question type.

    A row is {"id", "question", "golden_answers": [...], "pred"}, optionally with "sample" (answers
    to one question are averaged), "question_type", and "failed": true or an "error": failures score
    0 and are counted by kind. Files of trajectories work, too. The last columns show the constant
    answer, the golden answer that scores best when it is given to every question.

        deepsearch score data/tiny/evaluate/sft/multihoprag.search.t0.7.jsonl
    """
    report = report_scores(score_predictions(predictions), seed, draws)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
        return

    rows: list[list[str]] = []
    for name, group in {"all": report, **report.types}.items():
        row = [name, str(group.n)]
        for metric, value in group.metrics.items():
            interval = ""
            if group.intervals:
                low, high = group.intervals[metric]
                interval = f" [{low:.3f}, {high:.3f}]"
            row.append(f"{value:.3f}{interval}")

        constant = group.constant
        row += [constant.answer, f"{constant.f1:.3f}", f"{constant.em:.3f}"]
        rows.append(row)

    header = ["questions", "n", *report.metrics, "constant answer", "its f1", "its em"]
    print_table(str(predictions), header, rows)

    if report.failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in report.failures.items())
        typer.echo(
            f"{sum(report.failures.values())} of {report.rows} answers are failures: {kinds}"
        )


def compare_command(
    first: Predictions,
    second: Predictions,
    as_json: AsJson = False,
    draws: ComparisonDraws = 10_000,
    seed: Seed = 0,
) -> None:
    """First minus second, question by question, with 95 % intervals and permutation p-values.

    Both files must answer the same questions; files as for `deepsearch score`. The p-values of
    the table are corrected for their number by Holm-Bonferroni; --json has them uncorrected.

        deepsearch compare rl.jsonl sft.jsonl
    """
    report = report_comparison(score_predictions(first), score_predictions(second), seed, draws)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
        return

    _print_differences(f"{first} minus {second}", report)


def _print_differences(title: str, report: ComparisonReport) -> None:
    """Print the paired differences of all questions and of each type of question."""
    rows: list[list[str]] = []
    p_values: list[float] = []
    for name, group in {"all": report, **report.types}.items():
        for metric, difference in group.differences.items():
            interval = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
            rows.append([name, str(group.n), metric, f"{difference.mean:+.3f}", interval])
            p_values.append(difference.p_value)

    # Corrected together: the whole table is one family of tests
    for row, p_value in zip(rows, holm(p_values), strict=True):
        row.append(f"{p_value:.4f}")

    print_table(
        title,
        ["questions", "n", "metric", "difference", "95 % interval", "p (Holm)"],
        rows,
    )


def report_scores(scored: ScoredFile, seed: int, draws: int) -> ScoreReport:
    """Return the scores of a file, also by question type; ``draws`` resamples make the intervals, 0 leaves them out."""
    constants = ConstantAnswers(scored.golds)
    kind_Q = np.array(scored.scores.question_types)
    types: dict[str, ScoreGroup] = {}
    for kind in scored.scores.type_names:
        constant = constants.best(kind_Q == kind)
        types[kind] = _group(scored.scores.of_type(kind), constant, seed, draws)

    everything = _group(scored.scores, constants.best(), seed, draws)
    return ScoreReport(
        **everything.model_dump(), rows=scored.rows, failures=scored.failures, types=types
    )


def _group(scores: QuestionScores, constant: ConstantScore, seed: int, draws: int) -> ScoreGroup:
    values_QM = np.stack([scores.metrics[name] for name in answers.METRICS], axis=1)
    intervals = None

    if draws:
        intervals = {}
        bounds = bootstrap_intervals(values_QM, seed, draws)
        for name, interval in zip(answers.METRICS, bounds, strict=True):
            intervals[name] = (interval.low, interval.high)

    return ScoreGroup(
        n=len(values_QM),
        metrics={name: scores.mean(name) for name in answers.METRICS},
        intervals=intervals,
        constant=constant,
    )


def report_comparison(
    run: ScoredFile, other: ScoredFile, seed: int, draws: int
) -> ComparisonReport:
    """Return ``run`` minus ``other``, also by the types of ``run``; raise CheckFailedError if the questions differ."""
    first_ids = set(run.scores.question_ids)
    second_ids = set(other.scores.question_ids)

    if first_ids != second_ids:
        raise CheckFailedError(
            f"{run.path} and {other.path} answer different questions, so they cannot be compared "
            f"question by question: {_count(first_ids - second_ids)} only in the first, "
            f"{_count(second_ids - first_ids)} only in the second."
        )

    # F1 against other golden answers is another figure; their order and repetitions do not count
    differing: list[str] = []
    golds = zip(run.scores.question_ids, run.golds.spelled, other.golds.spelled, strict=True)
    for question_id, first_golds, second_golds in golds:
        if set(first_golds) != set(second_golds):
            differing.append(question_id)

    if differing:
        raise CheckFailedError(
            f"{run.path} and {other.path} have other golden answers for {_count(differing)}."
        )

    def group(first: QuestionScores, second: QuestionScores) -> ComparisonGroup:
        differences = paired_differences(first, second, seed, draws, answers.METRICS)
        return ComparisonGroup(n=len(first.question_ids), differences=differences)

    # The first file's types decide for both: the second may not know them.
    typed = QuestionScores(
        other.scores.question_ids, run.scores.question_types, other.scores.metrics
    )
    types: dict[str, ComparisonGroup] = {}
    for kind in run.scores.type_names:
        types[kind] = group(run.scores.of_type(kind), typed.of_type(kind))

    everything = group(run.scores, other.scores)
    return ComparisonReport(n=everything.n, differences=everything.differences, types=types)


def _count(ids: Iterable[str]) -> str:
    names = sorted(ids)
    if not names:
        return "none"
    examples = ", ".join(names[:3])
    return f"{len(names)} ({examples}{', ...' if len(names) > 3 else ''})"
