"""The F1 table as files: JSON, Markdown, CSV and metrics, with the texts of figures that the page shows as well.

Nested records are JSON. What is flat, and what plots and spreadsheets read, is CSV, which is
checked column by column with pandera before it is written.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa
from jinja2 import Environment, StrictUndefined

from deepsearch_rl.core.files import atomic_file, write_json
from deepsearch_rl.core.frames import check_frame
from deepsearch_rl.evaluation.scoring.f1_row import F1Score, F1TableRow, IfevalScore
from deepsearch_rl.evaluation.tables.published import PublishedRow
from deepsearch_rl.evaluation.tables.tables import CONTROL_TITLES, F1Table

MARKDOWN = Path(__file__).with_name("f1_table.md")
_NO_COLUMNS = {"temperature_sent", "asked_again", "pass_at", "constant", "types", "controls"}
CSV_COLUMNS = tuple(name for name in F1TableRow.model_fields if name not in _NO_COLUMNS)
"""The key and figures of a row as docs/contracts.md lists them; pass@k and baselines follow under their own names."""
BASELINE_COLUMNS = ("constant_f1", "no_search_f1", "gold_passage_f1")
_SHARE = pa.Check.in_range(0, 1)
_COUNT = pa.Check.ge(0)
_SCORES = ("em", "f1", "f1_low", "f1_high", "acc", "precision", "recall", "constant_f1")
F1_TABLE = pa.DataFrameSchema(
    {
        **{
            name: pa.Column(str)
            for name in (
                "model",
                "checkpoint",
                "dataset",
                "corpus",
                "prompt",
                "retriever",
                "variant",
            )
        },
        **{name: pa.Column(int, pa.Check.ge(1)) for name in ("top_k", "samples", "n")},
        "chunk_size": pa.Column(int, _COUNT),
        "trained_with_other": pa.Column(str),
        **{name: pa.Column(float, _SHARE, coerce=True) for name in _SCORES},
        **{
            name: pa.Column(float, _COUNT, coerce=True)
            for name in ("mean_rounds", "mean_tool_calls")
        },
        "temperature": pa.Column(float, _COUNT, coerce=True, nullable=True),
    },
    checks=pa.Check(
        lambda frame: (frame.f1_low <= frame.f1) & (frame.f1 <= frame.f1_high),
        name="f1 in its interval",
    ),
    unique=[
        *(
            "model",
            "checkpoint",
            "dataset",
            "corpus",
            "prompt",
            "top_k",
            "chunk_size",
            "retriever",
            "temperature",
        ),
        "variant",
    ],
)
"""One line per row of the F1 table; baselines and failures may stand beside these columns."""


def write_table(table: F1Table, ifeval: Sequence[IfevalScore], folder: Path) -> None:
    """Write ``f1_table.json``, ``.md``, ``.csv`` and ``metrics.json``; raises as :func:`check_frame`."""
    write_json(folder / "f1_table.json", table.model_dump(mode="json"))
    write_json(folder / "metrics.json", metrics(table, ifeval))
    columns = (*CSV_COLUMNS, *(f"pass_at_{k}" for k in passes(table.rows)), *BASELINE_COLUMNS)
    lines = [
        flat
        | {"constant_f1": row.constant.f1}
        | {f"{name}_f1": score.f1 for name, score in row.controls.items()}
        for row, flat in zip(table.rows, flat_rows(table.rows), strict=True)
    ]
    frame = pd.DataFrame(lines, columns=list(columns), dtype=object)
    check_frame(frame.infer_objects(), F1_TABLE, "f1_table.csv")
    with atomic_file(folder / "f1_table.csv") as partial:
        frame.to_csv(partial, index=False, lineterminator="\n")
    with atomic_file(folder / "f1_table.md") as partial:
        partial.write_text(markdown(table), encoding="utf-8")


def flat_rows(rows: Iterable[F1TableRow]) -> list[dict[str, Any]]:
    """Return rows by :data:`CSV_COLUMNS` and ``pass_at_<k>``.

    Failures and rollouts that were asked for again are ``kind=count``, what a model was trained
    with in another form is ``prompt;tool``; a temperature that was not sent is missing.
    """
    return [
        {name: getattr(row, name) for name in CSV_COLUMNS}
        | row.pass_scores
        | {"failures": ";".join(f"{kind}={count}" for kind, count in sorted(row.counts.items()))}
        | {"trained_with_other": row.flat_trained_with_other, "temperature": row.sent_temperature}
        for row in rows
    ]


def published_lines(table: F1Table) -> list[dict[str, Any]]:
    """Return the published scores as rows beside those of :func:`flat_rows`, with ``source`` and ``published``."""
    return [
        {
            "model": row.model,
            "dataset": row.run,
            "n": row.n,
            row.metric: row.score,
            "source": row.source,
        }
        | {"published": True}
        for row in table.published
    ]


def metrics(
    table: F1Table, ifeval: Sequence[IfevalScore]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the main figures by dataset and model, nested for ``dvc metrics show`` and ``dvc metrics diff``."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for row in table.rows:
        suffix = f"_{row.kind}" if row.kind else ""
        figures = {"f1": row.f1, "em": row.em, "tool_calls": row.mean_tool_calls, **row.pass_scores}

        for name, value in figures.items():
            result.setdefault(name + suffix, {}).setdefault(row.dataset, {})[row.model] = round(
                value, 4
            )

    for score in ifeval:
        result.setdefault("ifeval", {}).setdefault("prompt_strict", {})[score.model] = round(
            score.prompt_strict, 4
        )

    return result


def passes(rows: Iterable[F1TableRow]) -> list[int]:
    """Return the k of every pass@k that rows have, ascending."""
    return sorted({k for row in rows for k in row.pass_at})


def score_text(value: float) -> str:
    """Return a score or difference with three decimals and no leading zero: ``.712``, ``-.030``, ``1.000``."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def signed(value: float) -> str:
    """Return a difference with its sign: ``+.062``."""
    return ("+" if value >= 0 else "-") + score_text(abs(value))


def p_text(p_value: float) -> str:
    """Return a p-value with three decimals, or the bound that the number of draws can show."""
    return "< .001" if p_value < 0.001 else score_text(p_value)


def published_text(row: PublishedRow) -> str:
    """Return a published score as a cell: ``.521``, ``EM .433``."""
    return f"{'EM ' if row.metric == 'em' else ''}{score_text(row.score)}"


def interval_text(score: F1Score) -> str:
    """Return F1 with its interval: ``.712 [.680, .741]``."""
    return f"{score_text(score.f1)} [{score_text(score.f1_low)}, {score_text(score.f1_high)}]"


FILTERS = {
    "interval": interval_text,
    "p": p_text,
    "pass_at": "pass@{}".format,
    "published": published_text,
    "score": score_text,
    "signed": signed,
}
"""Texts of figures, by their names in templates."""


def markdown(table: F1Table) -> str:
    """Return the table as Markdown: main figures by set and model, baselines, variants and paired differences.

    A sentence stands for a model that kept its start (:attr:`F1Table.kept_start`).
    """
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS | {"aligned": _aligned}
    template = environment.from_string(MARKDOWN.read_text(encoding="utf-8"))

    shown = table.shown
    main = [row for row in shown.reading_order if not row.kind]
    controls = set[str]().union(*(row.controls for row in main))

    return template.render(
        table=shown,
        kept_start_notes=table.kept_start_notes,
        tests=table.tests,
        passes=passes(main),
        controls={name: title for name, title in CONTROL_TITLES.items() if name in controls},
        main={(row.model, row.dataset): row for row in main},
        variants=[row for row in shown.rows if row.variant],
    )


def _aligned(text: str) -> str:
    """Return lines of cells with bars between as a Markdown table that can be read as plain text."""
    head, *body = ([cell.strip() for cell in line.split("|")] for line in text.strip().splitlines())
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    padded = [
        map(str.ljust, line, widths) for line in (head, ["-" * width for width in widths], *body)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
