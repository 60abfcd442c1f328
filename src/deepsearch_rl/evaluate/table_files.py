"""The F1 table as files: JSON, Markdown, CSV and metrics, with the texts of figures that the page shows as well.

Nested records are JSON. What is flat, and what plots and spreadsheets read, is CSV, which is
checked column by column with pandera before it is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa
from jinja2 import Environment, StrictUndefined

from deepsearch_rl.core.files import atomic_file, check_frame, write_json
from deepsearch_rl.evaluate.f1_row import F1Score, F1TableRow, IfevalScore
from deepsearch_rl.evaluate.published import PublishedRow
from deepsearch_rl.evaluate.tables import F1Table, control_titles

MARKDOWN = Path(__file__).with_name("f1_table.md")
_NO_COLUMNS = {
    "temperature_sent",
    "greedy_only",
    "asked_again",
    "pass_at",
    "constant",
    "types",
    "controls",
}
# The key and figures of a row as docs/contracts.md lists them; pass@k and baselines follow under
# their own names.
CSV_COLUMNS = tuple(name for name in F1TableRow.model_fields if name not in _NO_COLUMNS)
BASELINE_COLUMNS = ("constant_f1", "no_search_f1", "no_search_failures")
BASELINE_COLUMNS += ("gold_passage_f1", "gold_passage_failures")
# Of a control that a profile has to name
RANDOM_COLUMNS = ("random_passage_f1", "random_passage_failures")
_SHARE = pa.Check.in_range(0, 1)
_COUNT = pa.Check.ge(0)


def _text_column() -> pa.Column:
    return pa.Column(str)


def _size_column() -> pa.Column:
    return pa.Column(int, pa.Check.ge(1))


def _share_column() -> pa.Column:
    return pa.Column(float, _SHARE, coerce=True)


def _mean_column() -> pa.Column:
    return pa.Column(float, _COUNT, coerce=True)


# One line per row of the F1 table; baselines and failures may stand beside these columns
F1_TABLE = pa.DataFrameSchema(
    {
        "model": _text_column(),
        "checkpoint": _text_column(),
        "dataset": _text_column(),
        "corpus": _text_column(),
        "prompt": _text_column(),
        "retriever": _text_column(),
        "variant": _text_column(),
        "top_k": _size_column(),
        "samples": _size_column(),
        "n": _size_column(),
        "chunk_size": pa.Column(int, _COUNT),
        "trained_with_other": _text_column(),
        "em": _share_column(),
        "f1": _share_column(),
        "f1_low": _share_column(),
        "f1_high": _share_column(),
        "acc": _share_column(),
        "precision": _share_column(),
        "recall": _share_column(),
        "constant_f1": _share_column(),
        "mean_rounds": _mean_column(),
        "mean_tool_calls": _mean_column(),
        # Missing where the endpoint's own temperature was used, which nobody knows
        "temperature": pa.Column(float, _COUNT, coerce=True, nullable=True),
    },
    checks=pa.Check(
        lambda frame: (frame.f1_low <= frame.f1) & (frame.f1 <= frame.f1_high),
        name="f1 in its interval",
    ),
    # The key of a row: two rows with one key would be one cell of the Markdown table
    unique=[
        "model",
        "checkpoint",
        "dataset",
        "corpus",
        "prompt",
        "top_k",
        "chunk_size",
        "retriever",
        "temperature",
        "variant",
    ],
)


def write_table(table: F1Table, ifeval: Sequence[IfevalScore], folder: Path) -> None:
    """Write ``f1_table.json``, ``.md``, ``.csv`` and ``metrics.json``; raises as :func:`check_frame`."""
    write_json(folder / "f1_table.json", table.model_dump(mode="json"))
    write_json(folder / "metrics.json", metrics(table, ifeval))
    columns = [*CSV_COLUMNS, *map("pass_at_{}".format, passes(table.rows)), *BASELINE_COLUMNS]
    if any("random_passage" in row.controls for row in table.rows):
        columns += RANDOM_COLUMNS
    lines: list[dict[str, Any]] = []
    for row, flat in zip(table.rows, flat_rows(table.rows), strict=True):
        line = flat | {"constant_f1": row.constant.f1}
        for name, score in row.controls.items():
            line[f"{name}_f1"] = score.f1
            line[f"{name}_failures"] = _flat_counts(score.failures)
        lines.append(line)

    # As objects first: pandas would turn the counts of a column with gaps into floats
    frame = pd.DataFrame(lines, columns=columns, dtype=object)
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
    return [_flat_row(row) for row in rows]


def _flat_row(row: F1TableRow) -> dict[str, Any]:
    line: dict[str, Any] = {name: getattr(row, name) for name in CSV_COLUMNS}
    line |= row.pass_scores
    line["failures"] = _flat_counts(row.counts)
    line["trained_with_other"] = row.flat_trained_with_other
    line["temperature"] = row.sent_temperature
    return line


def _flat_counts(counts: Mapping[str, int]) -> str:
    """Return counts by kind in one cell of a flat table, ``kind=count`` with semicolons between."""
    return ";".join(f"{kind}={count}" for kind, count in sorted(counts.items()))


def published_lines(table: F1Table) -> list[dict[str, Any]]:
    """Return the published scores as rows beside those of :func:`flat_rows`, with ``source`` and ``published``."""
    lines: list[dict[str, Any]] = []
    for row in table.published:
        line: dict[str, Any] = {"model": row.model, "dataset": row.run, "n": row.n}
        line[row.metric] = row.score
        line["source"] = row.source
        line["published"] = True
        lines.append(line)

    return lines


def metrics(
    table: F1Table, ifeval: Sequence[IfevalScore]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the main figures by dataset and model, nested for ``dvc metrics show`` and ``dvc metrics diff``."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for row in table.rows:
        suffix = f"_{row.kind}" if row.kind else ""
        figures = {"f1": row.f1, "em": row.em, "tool_calls": row.mean_tool_calls, **row.pass_scores}

        for name, value in figures.items():
            by_dataset = result.setdefault(name + suffix, {})
            by_dataset.setdefault(row.dataset, {})[row.model] = round(value, 4)

    for score in ifeval:
        by_accuracy = result.setdefault("ifeval", {})
        by_accuracy.setdefault("prompt_strict", {})[score.model] = round(score.prompt_strict, 4)

    return result


def passes(rows: Iterable[F1TableRow]) -> list[int]:
    """Return the k of every pass@k that rows have, ascending."""
    return sorted(set[int]().union(*(row.pass_at for row in rows)))


def score_text(value: float) -> str:
    """Return a score or difference with three decimals and no leading zero: ``.712``, ``-.030``, ``1.000``."""
    # Only below 1: 10.500 has a "0." of its own
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


# Texts of figures, by their names in templates
FILTERS = {
    "interval": interval_text,
    "p": p_text,
    "pass_at": "pass@{}".format,
    "published": published_text,
    "score": score_text,
    "signed": signed,
}


def markdown(table: F1Table) -> str:
    """Return the table as Markdown: main figures by set and model, baselines, variants and paired differences.

    A sentence stands for a model that kept its start (:attr:`F1Table.kept_start`).
    """
    # Strict: a name that is misspelt in the template would leave an empty cell
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS | {"aligned": _aligned}
    template = environment.from_string(MARKDOWN.read_text(encoding="utf-8"))

    table_for_readers = table.for_readers
    main: dict[tuple[str, str], F1TableRow] = {}
    controls: set[str] = set()
    for row in table_for_readers.reading_order:
        if not row.kind:
            main[row.model, row.dataset] = row
            controls.update(row.controls)

    return template.render(
        table=table_for_readers,
        kept_start_notes=table.kept_start_notes,
        tests=table.tests,
        passes=passes(main.values()),
        controls=control_titles(controls),
        main=main,
        variants=[row for row in table_for_readers.rows if row.variant],
    )


def _aligned(text: str) -> str:
    """Return lines of cells with bars between as a Markdown table that can be read as plain text."""
    rows: list[list[str]] = []
    for line in text.strip().splitlines():
        rows.append(list(map(str.strip, line.split("|"))))

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width for width in widths]
    rows.insert(1, rule)

    lines: list[str] = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append(f"| {' | '.join(cells)} |")

    return "\n".join(lines)
