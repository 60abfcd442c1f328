"""The rows of an evaluation in the terminal, as `deepsearch evaluate` prints them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from deepsearch_rl.cli.terminal import print_table

if TYPE_CHECKING:
    from deepsearch_rl.evaluate.f1_row import F1TableRow, ModelEvaluation


def print_rows(evaluation: "ModelEvaluation") -> None:
    """Print the rows of an evaluation as a table, and below it its controls."""
    header = [
        "set",
        "retriever",
        "n x samples",
        "T",
        "F1",
        "95 % interval",
        "EM",
        "acc",
        "searches",
        "constant",
        "failures",
    ]
    rows = evaluation.rows
    title = f"{evaluation.model}: {rows[0].checkpoint}"
    print_table(title, header, [_cells(row) for row in rows])

    for row in rows:
        for control, score in row.controls.items():
            interval = f"{score.f1:.3f} [{score.f1_low:.3f}, {score.f1_high:.3f}]"
            text = f"{row.dataset}, {control}: F1 {interval} on {score.n}; with search {score.searched_f1:.3f}"
            if score.failures:
                text += f"; ended without an answer: {_counts(score.failures)}"
            typer.echo(text)


def _counts(counts: Mapping[str, int]) -> str:
    from deepsearch_rl.evaluate.f1_row import counts_text  # noqa: PLC0415 - loads pydantic

    return counts_text(counts)


def _cells(row: "F1TableRow") -> list[str]:
    return [
        row.dataset,
        row.retriever,
        f"{row.n} x {row.samples}",
        row.temperature_text,
        f"{row.f1:.3f}",
        f"[{row.f1_low:.3f}, {row.f1_high:.3f}]",
        f"{row.em:.3f}",
        f"{row.acc:.3f}",
        f"{row.mean_tool_calls:.2f}",
        f"{row.constant.f1:.3f}",
        _counts(row.counts),
    ]
